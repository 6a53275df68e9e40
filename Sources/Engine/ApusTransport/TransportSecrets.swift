package import ApusCore
import ApusCrypto
package import Foundation

/// The keys and certificates of a node's links, read and checked. ``Transport/use(_:)`` replaces them while links are
/// open.
package struct TransportSecrets: Sendable {
    let contexts: TLSContexts
    /// The node's own certificate.
    package let certificate: CertificateFacts
    /// The authority of the trust bundle that issued it, or the first one if none did.
    package let authority: CertificateFacts
    /// The certificates of other nodes that are refused.
    package let revoked: RevokedCertificates
    let forwardingKey: ForwardingKey?

    /// Reads and checks the files for a node.
    ///
    /// - Throws: 10022 with the file, if one cannot be read, if the key is not the certificate's, or if other nodes
    ///   would refuse the certificate: it names another node, is not valid now, is revoked, or has an issuer that is
    ///   not in the trust bundle.
    package init(
        _ tls: TransportTLS, node: NodeName, revoked: RevokedCertificates = .none, forwardingKey: ForwardingKey? = nil,
        at now: Date = Date()
    ) throws(ApusError) {
        // The texts are read once, so that what was checked is what is used.
        let texts = try tls.read()
        let chain = try CertificateFacts.parsed(texts.certificateChain.pem, tls.certificateChain.name)
        let bundle = try CertificateFacts.parsed(texts.authority.pem, tls.authority.name)
        guard let leaf = chain.first else { throw ApusError(.configurationInvalid) }
        certificate = CertificateFacts(leaf)
        let place = tls.certificateChain.name
        guard certificate.node == node else {
            let named = certificate.node.map { "names node \($0)" } ?? "names no node"
            throw ApusError(.configurationInvalid, "the certificate in \(place) \(named), not node \(node)")
        }
        try certificate.checkValidity(at: now, source: place)
        guard !revoked.contains(certificate) else {
            throw ApusError(.configurationInvalid, "the certificate in \(place) is revoked (\(certificate.serial))")
        }
        let trusted = bundle.filter { now < $0.notAfter }
        guard !trusted.isEmpty else {
            throw ApusError(.configurationInvalid, "every authority in \(tls.authority.name) has expired")
        }
        authority = CertificateFacts(leaf.issuer(among: trusted) ?? trusted[0])
        guard leaf.issuer(among: chain.dropFirst() + trusted) != nil else {
            throw ApusError(
                .configurationInvalid,
                "no authority in \(tls.authority.name) issued the certificate in \(place): other nodes would refuse it")
        }
        contexts = try TLSContexts(texts, from: tls)
        self.revoked = revoked
        self.forwardingKey = forwardingKey
    }

    /// Reads the files without the checks, for a start: a node whose certificate has expired reports that, and serves
    /// its clients.
    init(unchecked tls: TransportTLS, revoked: RevokedCertificates, forwardingKey: ForwardingKey?) throws(ApusError) {
        let texts = try tls.read()
        contexts = try TLSContexts(texts, from: tls)
        let leaf = try CertificateFacts.parsed(texts.certificateChain.pem, tls.certificateChain.name)[0]
        let bundle = try CertificateFacts.parsed(texts.authority.pem, tls.authority.name)
        certificate = CertificateFacts(leaf)
        authority = CertificateFacts(leaf.issuer(among: bundle) ?? bundle[0])
        self.revoked = revoked
        self.forwardingKey = forwardingKey
    }
}

extension Certificate {
    /// The first of these certificates with whose key this one was signed.
    fileprivate func issuer(among candidates: some Sequence<Certificate>) -> Certificate? {
        candidates.first { isSigned(by: $0) }
    }
}

extension TransportTLS {
    /// The same with the content of its files.
    fileprivate func read() throws(ApusError) -> TransportTLS {
        TransportTLS(
            authority: try authority.read("authority"), certificateChain: try certificateChain.read("node certificate"),
            privateKey: try privateKey.read("private key"))
    }
}

extension TransportTLS.Source {
    /// The file's name, for errors.
    var name: String { if case .file(let path) = self { path } else { "the text" } }

    /// Empty for a file.
    var pem: [UInt8] { if case .bytes(let bytes) = self { bytes } else { [] } }

    fileprivate func read(_ what: String) throws(ApusError) -> Self {
        guard case .file(let path) = self else { return self }
        do {
            return .bytes(try PEMFile.bytes(of: path))
        } catch {
            throw ApusError(
                .configurationInvalid, "the \(what) in \(path) cannot be read: \(error.localizedDescription)")
        }
    }
}
