package import ApusCore
import ApusCrypto
package import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Calls the system's `write`. ``ClusterPKI`` has methods of the same name.
private func systemWrite(_ file: CInt, _ bytes: UnsafeRawPointer?, _ count: Int) -> Int {
    // SAFETY: the caller's pointer is valid for the count.
    write(file, bytes, count)
}

/// Issues the cluster's certificates: one authority, one certificate per node, and one for the client listeners (D3).
/// Keys are P-256. Input and output are PEM.
package enum ClusterPKI {
    /// A certificate with its private key.
    package struct Issued: Sendable {
        package var certificatePEM: String
        /// PKCS#8, PEM. A secret: only ``write(_:certificate:key:)`` writes it.
        package var privateKeyPEM: String

        package init(certificatePEM: String, privateKeyPEM: String) {
            self.certificatePEM = certificatePEM
            self.privateKeyPEM = privateKeyPEM
        }
    }

    /// The validity of an authority's certificate: ten years.
    package static let authorityLifetime = Duration.seconds(10 * 365 * 86_400)
    /// The validity of a node's or client listener's certificate: two years.
    package static let certificateLifetime = Duration.seconds(2 * 365 * 86_400)
    /// Alternative names that every certificate includes, so that a cluster on one machine works unconfigured.
    package static let localHosts = ["localhost", "127.0.0.1", "::1"]
    private static let organization = "Apus"

    /// Creates the cluster's authority.
    ///
    /// Each authority has another name: while it is changed, nodes trust two, and OpenSSL finds the issuer of a
    /// certificate by its name.
    ///
    /// - Throws: 10018 if the certificate cannot be created.
    package static func makeAuthority(cluster: ClusterID, at now: Date = Date()) throws(ApusError) -> Issued {
        try minting {
            let key = P256.Signing.PrivateKey()
            let serial = Certificate.Fields.randomSerial()
            let fields = Certificate.Fields(
                organization: organization,
                commonName: "Apus cluster \(cluster) \(Hexadecimal.text(serial.prefix(4)))", serial: serial,
                notBefore: now.addingTimeInterval(-3600), notAfter: now.advanced(by: authorityLifetime),
                role: .authority)
            let certificate = try Certificate.issue(
                fields, subject: key.publicKey, issuer: nil, issuerKey: Certificate.PrivateKey(key))
            return Issued(
                certificatePEM: certificate.pemRepresentation, privateKeyPEM: key.pemRepresentation)
        }
    }

    /// Issues a node's certificate. It is valid for both ends of a node link.
    ///
    /// - Parameter hosts: names and addresses of the node, in addition to ``localHosts``.
    /// - Throws: 10022 if the authority cannot be read, 10018 if the certificate cannot be created.
    package static func issueNode(
        _ name: NodeName, hosts: [String] = [], authority: Issued, at now: Date = Date(),
        lifetime: Duration = certificateLifetime
    ) throws(ApusError) -> Issued {
        try issue(
            commonName: name.rawValue, hosts: hosts, uris: [NodeCertificate.uri(of: name)], isClient: true,
            authority: authority, at: now, lifetime: lifetime)
    }

    /// Issues the certificate of the client listeners. Node links do not accept it.
    ///
    /// - Throws: as ``issueNode(_:hosts:authority:at:lifetime:)``.
    package static func issueClientEndpoint(
        hosts: [String] = [], authority: Issued, at now: Date = Date(), lifetime: Duration = certificateLifetime
    ) throws(ApusError) -> Issued {
        try issue(
            commonName: "Apus client listener", hosts: hosts, uris: [], isClient: false, authority: authority, at: now,
            lifetime: lifetime)
    }

    /// Writes a certificate and its key. Only the owner may read the key's file (mode 0600). Each file is replaced as a
    /// whole.
    ///
    /// - Throws: 10021 with the path.
    package static func write(_ issued: Issued, certificate: String, key: String) throws(ApusError) {
        try write(issued.privateKeyPEM, to: key, mode: 0o600)
        try write(issued.certificatePEM, to: certificate, mode: 0o644)
    }

    /// Reads what ``write(_:certificate:key:)`` wrote.
    ///
    /// - Throws: 10021 with the path.
    package static func read(certificate: String, key: String) throws(ApusError) -> Issued {
        Issued(certificatePEM: try text(of: certificate), privateKeyPEM: try text(of: key))
    }

    /// The whole PEM blocks of a text, each with its markers.
    package static func pemBlocks(_ text: String) -> [String] {
        var blocks: [String] = []
        var block: [Substring] = []
        for line in text.split(whereSeparator: \.isNewline) {
            if line.hasPrefix("-----BEGIN ") { block = [] }
            block.append(line)
            if line.hasPrefix("-----END ") { blocks.append(block.joined(separator: "\n") + "\n") }
        }
        return blocks
    }

    /// The content of a PEM block, whose lines may have any length. Empty if it is not in Base64.
    static func der(of block: String) -> [UInt8] {
        let lines = block.split(whereSeparator: \.isNewline).dropFirst().dropLast()
        let content = lines.joined().filter { !$0.isWhitespace }
        return [UInt8](Data(base64Encoded: content) ?? Data())
    }

    /// The names and addresses in a certificate, in addition to ``localHosts``, so that its successor gets the same.
    ///
    /// - Throws: 10022 if it cannot be read.
    package static func hosts(ofPEM text: String) throws(ApusError) -> [String] {
        let certificate: Certificate
        do {
            certificate = try first(of: text)
        } catch {
            throw ApusError(.configurationInvalid, "a certificate cannot be read: \(error)")
        }
        guard let names = certificate.alternativeNames else {
            throw ApusError(.configurationInvalid, "the names in a certificate cannot be read")
        }
        return names.compactMap { Self.host($0) }.filter { !localHosts.contains($0) }
    }

    /// The first certificate of a text in which the certificates of its issuers may follow.
    private static func first(of text: String) throws(CryptoError) -> Certificate {
        try Certificate(derRepresentation: der(of: pemBlocks(text).first ?? ""))
    }

    private static func host(_ name: Certificate.AlternativeName) -> String? {
        switch name {
        case .dns(let host): return host
        case .address(let bytes):
            var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
            let family = bytes.count == 4 ? AF_INET : AF_INET6
            guard bytes.count == 4 || bytes.count == 16 else { return nil }
            // SAFETY: the address has the length of its family, and the text that of the longest address.
            guard inet_ntop(family, bytes, &text, socklen_t(text.count)) != nil else { return nil }
            return String(decoding: text.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
        case .uri: return nil
        }
    }

    private static func issue(
        commonName: String, hosts: [String], uris: [String], isClient: Bool, authority: Issued, at now: Date,
        lifetime: Duration
    ) throws(ApusError) -> Issued {
        let issuer: Certificate
        let issuerKey: Certificate.PrivateKey
        do {
            // Of a bundle, the first one belongs to the key.
            issuer = try first(of: authority.certificatePEM)
            issuerKey = try Certificate.PrivateKey(pemRepresentation: authority.privateKeyPEM)
        } catch {
            throw ApusError(.configurationInvalid, "the cluster's authority cannot be read: \(error)")
        }
        return try minting {
            let key = P256.Signing.PrivateKey()
            let names = (localHosts + hosts.filter { !localHosts.contains($0) }).map(alternativeName)
            let fields = Certificate.Fields(
                organization: organization, commonName: commonName, notBefore: now.addingTimeInterval(-3600),
                notAfter: now.advanced(by: lifetime),
                role: .end(isServer: true, isClient: isClient, names: names + uris.map { .uri($0) }))
            let certificate = try Certificate.issue(
                fields, subject: key.publicKey, issuer: issuer, issuerKey: issuerKey)
            return Issued(
                certificatePEM: certificate.pemRepresentation, privateKeyPEM: key.pemRepresentation)
        }
    }

    private static func minting(_ body: () throws -> Issued) throws(ApusError) -> Issued {
        do {
            return try body()
        } catch {
            throw ApusError(.internalFailure, "a certificate cannot be created: \(error)")
        }
    }

    private static func alternativeName(_ host: String) -> Certificate.AlternativeName {
        var four = in_addr()
        var six = in6_addr()
        // SAFETY: the bytes are the value's own, and are copied within the closure.
        if inet_pton(AF_INET, host, &four) == 1 { return .address(withUnsafeBytes(of: four) { [UInt8]($0) }) }
        // SAFETY: as above.
        if inet_pton(AF_INET6, host, &six) == 1 { return .address(withUnsafeBytes(of: six) { [UInt8]($0) }) }
        return .dns(host)
    }

    private static func text(of path: String) throws(ApusError) -> String {
        do {
            return try String(contentsOfFile: path, encoding: .utf8)
        } catch {
            throw ApusError(.storageFailed, "\(path) cannot be read: \(error.localizedDescription)")
        }
    }

    private static func write(_ text: String, to path: String, mode: mode_t) throws(ApusError) {
        try writeFile(Array(text.utf8), to: path, mode: mode)
    }

    /// Writes a file of keys or certificates. It is replaced as a whole.
    ///
    /// - Throws: 10021 with the path.
    package static func writeFile(_ bytes: [UInt8], to path: String, mode: mode_t) throws(ApusError) {
        let partial = path + ".new"
        unlink(partial)
        let file = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)
        guard file >= 0 else { throw failure(path) }
        var written = 0
        while written < bytes.count {
            // SAFETY: the pointer is valid for the count given, within the closure.
            let count = bytes[written...].withUnsafeBytes { systemWrite(file, $0.baseAddress, $0.count) }
            guard count > 0 else {
                close(file)
                throw failure(path)
            }
            written += count
        }
        close(file)
        guard rename(partial, path) == 0 else { throw failure(path) }
    }

    private static func failure(_ path: String) -> ApusError {
        ApusError(.storageFailed, "\(path) cannot be written: \(String(cString: strerror(errno)))")
    }
}

extension Date {
    fileprivate func advanced(by span: Duration) -> Date { addingTimeInterval(span.milliseconds / 1000) }
}
