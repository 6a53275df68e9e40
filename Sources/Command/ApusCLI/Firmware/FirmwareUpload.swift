import ApusContract
import ApusCore
import ArgumentParser
import Foundation
import SwiftProtobuf

/// `apus firmware add MANIFEST`
struct FirmwareAddCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "add", abstract: "Add a version by its signed manifest, or replace its descriptions.",
        discussion: "Upload its image afterwards, unless it is at an address of its own (--url).")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The file of `apus firmware sign`.") var manifest: String
    @Option(help: "Describe it for people: LANGUAGE=TEXT, such as en='Better night vision'. Repeatable.")
    var description: [String] = []
    @Option(help: "Let devices load the image from https://…") var url = ""

    func validate() throws {
        guard description.allSatisfy({ $0.contains("=") }) else {
            throw ValidationError("--description must be LANGUAGE=TEXT.")
        }
    }

    func run() async throws {
        let signed = try SignedManifest(path: manifest)
        guard let signature = Data(base64Encoded: signed.signature) else {
            throw ApusError(.badParameter, "\(manifest) is not a file of `apus firmware sign`")
        }
        let request = ClientCreateFirmwareRequest.with {
            ($0.customer, $0.manifest, $0.signature, $0.url) = (firmware.customer, signed.manifest, signature, url)
            $0.descriptions = description.map { text in
                let parts = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
                return .with { ($0.language, $0.text) = (String(parts[0]), String(parts[1])) }
            }
        }
        try await firmware.options.show(request) { FirmwareCommand.table($0) }
    }
}

/// `apus firmware upload MANIFEST IMAGE`
struct FirmwareUploadCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "upload", abstract: "Upload the image of a version, and seal it.",
        discussion: "It can be repeated, and goes on at --from-chunk.")
    @ParentCommand var firmware: FirmwareCommand
    @Argument(help: "The file of `apus firmware sign`.") var manifest: String
    @Argument(help: "The file of the image.") var image: String
    @Option(help: "Begin with this chunk of 32 KiB.") var fromChunk: UInt32 = 0

    /// Attempts for one chunk.
    private static let attemptsMax = 6

    func run() async throws {
        let manifest = try FirmwareManifest(text: SignedManifest(path: manifest).manifest)
        let digest = try FirmwareFile.digest(image)
        guard digest.sha256 == manifest.sha256, digest.size == manifest.size else {
            throw ApusError(.badParameter, "\(image) is not the image of the manifest")
        }
        let api = try await firmware.options.api()
        guard let file = FileHandle(forReadingAtPath: image) else {
            throw ApusError(.storageFailed, "the file \(image) cannot be read")
        }
        defer { try? file.close() }
        try file.seek(toOffset: UInt64(fromChunk) * UInt64(FirmwareLeaf.chunkByteCount))
        var (index, shown) = (fromChunk, 0 as UInt64)
        while let data = try FirmwareFile.next(file, FirmwareLeaf.chunkByteCount, image) {
            let request = ClientUploadFirmwareRequest.with {
                ($0.customer, $0.product) = (firmware.customer, manifest.product)
                ($0.version, $0.index, $0.data) = (manifest.version.description, index, data)
            }
            try await Self.repeating(request, api)
            index += 1
            let percent = UInt64(index) * UInt64(FirmwareLeaf.chunkByteCount) * 100 / manifest.size
            if percent >= shown + 10 {
                shown = percent
                firmware.options.output.progress("\(min(100, percent))%")
            }
        }
        let request = ClientSealFirmwareRequest.with {
            ($0.customer, $0.product) = (firmware.customer, manifest.product)
            $0.version = manifest.version.description
        }
        try await firmware.options.show(request) { FirmwareCommand.table($0) }
    }

    /// Sends a chunk again if a node or the store cannot take it now.
    private static func repeating(_ request: ClientUploadFirmwareRequest, _ api: ClusterAPI) async throws {
        var attempt = 1
        while true {
            do throws(ApusError) {
                _ = try await api.ask(request)
                return
            } catch {
                let passing: [ErrorCode] = [.connectFailed, .deadlineExceeded, .overloaded, .storageFailed, .linkLost]
                guard passing.contains(error.code), attempt < attemptsMax else {
                    throw ApusError(error.code, "\(error.message); go on with --from-chunk \(request.index)")
                }
            }
            try await Task.sleep(for: .milliseconds(100 << attempt))
            attempt += 1
        }
    }
}
