import ApusContract
import ApusCore
import ApusCrypto
import ArgumentParser
import Foundation

// Keys and manifests. These verbs need no cluster: the private key stays where images are made.

/// A manifest with its signature, as `apus firmware sign` writes it to a file.
struct SignedManifest: Codable, Sendable {
    var manifest: String
    /// Base64.
    var signature: String

    /// Reads the file.
    /// - Throws: 10021 if it cannot be read, 21031 if it is not such a file.
    init(path: String) throws(ApusError) {
        let data = try FirmwareFile.read(path, byteCountMax: 4096)
        guard let signed = try? JSONDecoder().decode(Self.self, from: data) else {
            throw ApusError(.badParameter, "\(path) is not a file of `apus firmware sign`")
        }
        self = signed
    }

    init(manifest: FirmwareManifest, key: Curve25519.Signing.PrivateKey) throws(ApusError) {
        self.manifest = manifest.text
        do {
            signature = try key.signature(for: Data(manifest.text.utf8)).base64EncodedString()
        } catch {
            throw ApusError(.internalFailure, "the manifest cannot be signed")
        }
    }
}

/// Files of the verbs.
enum FirmwareFile {
    private static let pieceByteCount = 1 << 20

    /// - Throws: 10021 if the file cannot be read, 10002 if it is longer.
    static func read(_ path: String, byteCountMax: Int) throws(ApusError) -> Data {
        do {
            guard let file = FileHandle(forReadingAtPath: path) else {
                throw ApusError(.storageFailed, "the file \(path) cannot be read")
            }
            defer { try? file.close() }
            let data = try file.read(upToCount: byteCountMax + 1) ?? Data()
            guard data.count <= byteCountMax else {
                throw ApusError(.frameTooLarge, "the file \(path) has over \(byteCountMax) bytes")
            }
            return data
        } catch {
            throw error as? ApusError ?? ApusError(.storageFailed, "the file \(path) cannot be read")
        }
    }

    /// Writes a file that does not exist yet.
    /// - Throws: 10021 if it exists, or cannot be written.
    static func create(_ path: String, _ text: String, mode: Int) throws(ApusError) {
        guard !FileManager.default.fileExists(atPath: path) else {
            throw ApusError(.storageFailed, "the file \(path) exists already")
        }
        guard
            FileManager.default.createFile(
                atPath: path, contents: Data(text.utf8), attributes: [.posixPermissions: mode])
        else { throw ApusError(.storageFailed, "the file \(path) cannot be written") }
    }

    /// The size of an image, and its SHA-256 in hexadecimal.
    /// - Throws: 10021 if the file cannot be read.
    static func digest(_ path: String) throws(ApusError) -> (size: UInt64, sha256: String) {
        var hash = SHA256()
        var size: UInt64 = 0
        try pieces(of: path, byteCount: pieceByteCount) { piece, _ in
            hash.update(data: piece)
            size += UInt64(piece.count)
        }
        return (size, Hexadecimal.text(hash.finalize()))
    }

    /// Reads a file in pieces of the same size; the last one may be shorter.
    /// - Throws: 10021 if the file cannot be read.
    static func pieces(
        of path: String, byteCount: Int, _ body: (Data, Int) -> Void
    ) throws(ApusError) {
        guard let file = FileHandle(forReadingAtPath: path) else {
            throw ApusError(.storageFailed, "the file \(path) cannot be read")
        }
        defer { try? file.close() }
        var index = 0
        while let piece = try Self.next(file, byteCount, path) {
            body(piece, index)
            index += 1
        }
    }

    static func next(_ file: FileHandle, _ byteCount: Int, _ path: String) throws(ApusError) -> Data? {
        do {
            let piece = try file.read(upToCount: byteCount) ?? Data()
            return piece.isEmpty ? nil : piece
        } catch {
            throw ApusError(.storageFailed, "the file \(path) cannot be read")
        }
    }

    /// The 32 bytes of a key in base64.
    /// - Throws: 10021 if the file cannot be read, 21031 if it has no key.
    static func key(_ path: String) throws(ApusError) -> [UInt8] {
        let text = String(decoding: try read(path, byteCountMax: 1024), as: UTF8.self)
        guard let key = Data(base64Encoded: text.trimmingCharacters(in: .whitespacesAndNewlines)), key.count == 32
        else { throw ApusError(.badParameter, "\(path) is not a key of `apus firmware keygen`") }
        return Array(key)
    }
}

/// `apus firmware keygen FILE`
struct FirmwareKeygenCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "keygen", abstract: "Create a key that signs firmware, and the key that devices check it with.",
        discussion: "FILE has the private key and stays where images are made. FILE.pub is built into devices.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The file of the private key. It must not exist.") var file: String

    private struct Report: Encodable {
        var privateKey: String
        var publicKey: String
    }

    func run() async throws {
        let key = Curve25519.Signing.PrivateKey()
        try FirmwareFile.create(file, key.rawRepresentation.base64EncodedString() + "\n", mode: 0o600)
        try FirmwareFile.create(
            file + ".pub", key.publicKey.rawRepresentation.base64EncodedString() + "\n", mode: 0o644)
        try firmware.options.output.show(
            Report(privateKey: file, publicKey: file + ".pub"),
            ["The private key is in \(file), the public key in \(file).pub."])
    }
}

/// `apus firmware sign IMAGE`
struct FirmwareSignCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sign", abstract: "Write the manifest of an image, and sign it.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The file of the image.") var image: String
    @Option(help: "Sign with the private key in this file.") var key: String
    @Option(help: "Set the product's name.") var product: String
    @Option(help: "Set the version, such as 1.5.0.") var version: String
    @Option(help: "Set the oldest version from which a device may install it. Default: any.") var from: String?
    @Option(help: "Write the manifest to this file. Default: IMAGE.manifest.") var output: String?

    func run() async throws {
        guard let signer = try? Curve25519.Signing.PrivateKey(rawRepresentation: FirmwareFile.key(key)) else {
            throw ApusError(.badParameter, "\(key) is not a private key of `apus firmware keygen`")
        }
        let digest = try FirmwareFile.digest(image)
        let oldest = try from.map { text throws(ApusError) in try FirmwareVersion(checking: text, "--from") }
        let manifest = try FirmwareManifest(
            product: product, version: FirmwareVersion(checking: version, "--version"), size: digest.size,
            sha256: digest.sha256, from: oldest)
        let signed = try SignedManifest(manifest: manifest, key: signer)
        let path = output ?? image + ".manifest"
        let text = try OutputOptions.text(signed)
        do {
            try Data((text + "\n").utf8).write(to: URL(fileURLWithPath: path), options: .atomic)
        } catch {
            throw ApusError(.storageFailed, "the file \(path) cannot be written")
        }
        try firmware.options.output.show(signed, ["The manifest of \(product) \(version) is in \(path)."])
    }
}
