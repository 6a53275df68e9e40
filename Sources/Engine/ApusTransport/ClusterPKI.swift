package import ApusCore
import Crypto
package import Foundation
import SwiftASN1
import X509

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

    /// Creates the cluster's authority.
    ///
    /// Each authority has another name: while it is changed, nodes trust two, and OpenSSL finds the issuer of a
    /// certificate by its name.
    ///
    /// - Throws: 10018 if the certificate cannot be created.
    package static func makeAuthority(cluster: ClusterID, at now: Date = Date()) throws(ApusError) -> Issued {
        try minting {
            let key = P256.Signing.PrivateKey()
            let serial = Certificate.SerialNumber()
            let name = try DistinguishedName {
                OrganizationName("Apus")
                CommonName("Apus cluster \(cluster) \(CertificateFacts.text(serial).prefix(8))")
            }
            let issuerKey = Certificate.PrivateKey(key)
            let certificate = try Certificate(
                version: .v3, serialNumber: serial, publicKey: issuerKey.publicKey,
                notValidBefore: now.addingTimeInterval(-3600), notValidAfter: now.advanced(by: authorityLifetime),
                issuer: name, subject: name,
                extensions: try Certificate.Extensions {
                    Critical(BasicConstraints.isCertificateAuthority(maxPathLength: 0))
                    Critical(KeyUsage(keyCertSign: true, cRLSign: true))
                    SubjectKeyIdentifier(hash: issuerKey.publicKey)
                },
                issuerPrivateKey: issuerKey)
            return Issued(
                certificatePEM: try certificate.serializeAsPEM().pemString, privateKeyPEM: key.pemRepresentation)
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
            commonName: name.rawValue, hosts: hosts, uris: [NodeCertificate.uri(of: name)],
            usages: [.serverAuth, .clientAuth], authority: authority, at: now, lifetime: lifetime)
    }

    /// Issues the certificate of the client listeners. Node links do not accept it.
    ///
    /// - Throws: as ``issueNode(_:hosts:authority:at:lifetime:)``.
    package static func issueClientEndpoint(
        hosts: [String] = [], authority: Issued, at now: Date = Date(), lifetime: Duration = certificateLifetime
    ) throws(ApusError) -> Issued {
        try issue(
            commonName: "Apus client listener", hosts: hosts, uris: [], usages: [.serverAuth], authority: authority,
            at: now, lifetime: lifetime)
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

    /// The names and addresses in a certificate, in addition to ``localHosts``, so that its successor gets the same.
    ///
    /// - Throws: 10022 if it cannot be read.
    package static func hosts(ofPEM text: String) throws(ApusError) -> [String] {
        do {
            let certificate = try Certificate(pemEncoded: pemBlocks(text).first ?? "")
            let names = try certificate.extensions.subjectAlternativeNames ?? SubjectAlternativeNames([])
            return names.compactMap { Self.host($0) }.filter { !localHosts.contains($0) }
        } catch {
            throw ApusError(.configurationInvalid, "a certificate cannot be read: \(error)")
        }
    }

    private static func host(_ name: GeneralName) -> String? {
        switch name {
        case .dnsName(let host): return host
        case .ipAddress(let address):
            let bytes = Array(address.bytes)
            var text = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
            let family = bytes.count == 4 ? AF_INET : AF_INET6
            guard bytes.count == 4 || bytes.count == 16 else { return nil }
            // SAFETY: the address has the length of its family, and the text that of the longest address.
            guard inet_ntop(family, bytes, &text, socklen_t(text.count)) != nil else { return nil }
            return String(decoding: text.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
        default: return nil
        }
    }

    private static func issue(
        commonName: String, hosts: [String], uris: [String], usages: [ExtendedKeyUsage.Usage], authority: Issued,
        at now: Date, lifetime: Duration
    ) throws(ApusError) -> Issued {
        let issuer: Certificate
        let issuerKey: Certificate.PrivateKey
        do {
            // Of a bundle, the first one belongs to the key.
            issuer = try Certificate(pemEncoded: pemBlocks(authority.certificatePEM).first ?? "")
            issuerKey = try Certificate.PrivateKey(pemEncoded: authority.privateKeyPEM)
        } catch {
            throw ApusError(.configurationInvalid, "the cluster's authority cannot be read: \(error)")
        }
        return try minting {
            let key = P256.Signing.PrivateKey()
            let publicKey = Certificate.PrivateKey(key).publicKey
            var names: [GeneralName] = []
            for host in localHosts + hosts.filter({ !localHosts.contains($0) }) { names.append(generalName(host)) }
            names += uris.map { .uniformResourceIdentifier($0) }
            let certificate = try Certificate(
                version: .v3, serialNumber: Certificate.SerialNumber(), publicKey: publicKey,
                notValidBefore: now.addingTimeInterval(-3600), notValidAfter: now.advanced(by: lifetime),
                issuer: issuer.subject,
                subject: try DistinguishedName {
                    OrganizationName("Apus")
                    CommonName(commonName)
                },
                extensions: try Certificate.Extensions {
                    Critical(BasicConstraints.notCertificateAuthority)
                    Critical(KeyUsage(digitalSignature: true))
                    try ExtendedKeyUsage(usages)
                    SubjectAlternativeNames(names)
                    SubjectKeyIdentifier(hash: publicKey)
                    // RFC 5280, 4.2.1.1.
                    AuthorityKeyIdentifier(
                        keyIdentifier: SubjectKeyIdentifier(hash: issuerKey.publicKey).keyIdentifier)
                },
                issuerPrivateKey: issuerKey)
            return Issued(
                certificatePEM: try certificate.serializeAsPEM().pemString, privateKeyPEM: key.pemRepresentation)
        }
    }

    private static func minting(_ body: () throws -> Issued) throws(ApusError) -> Issued {
        do {
            return try body()
        } catch {
            throw ApusError(.internalFailure, "a certificate cannot be created: \(error)")
        }
    }

    private static func generalName(_ host: String) -> GeneralName {
        var four = in_addr()
        var six = in6_addr()
        if inet_pton(AF_INET, host, &four) == 1 {
            // SAFETY: the bytes are the value's own, and are copied within the closure.
            return .ipAddress(ASN1OctetString(contentBytes: withUnsafeBytes(of: four) { ArraySlice($0) }))
        }
        if inet_pton(AF_INET6, host, &six) == 1 {
            // SAFETY: as above.
            return .ipAddress(ASN1OctetString(contentBytes: withUnsafeBytes(of: six) { ArraySlice($0) }))
        }
        return .dnsName(host)
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
