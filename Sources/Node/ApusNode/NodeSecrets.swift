package import ApusCore
import ApusGateway
import ApusHTTP
package import ApusNodeConfiguration
import ApusRelayService
import ApusSessions
import ApusStorage
import ApusTLS
package import ApusTransport
package import Foundation

/// Everything that a node reads from its files of keys and certificates, checked. It is read as a whole: if one file
/// cannot be used, none is.
package struct NodeSecrets: Sendable {
    package let links: TransportSecrets
    let heartbeats: HeartbeatSeal
    let sessions: SessionKeys
    let signer: TokenSigner?
    let clients: TLSServerContext
    /// Nil if the HTTP listener has no TLS.
    let http: HTTPCertificate.Content?
    /// Nil if the node has no relay.
    let relay: RelayKeys?
    package let expiries: [CertificateExpiry]

    /// - Parameter started: the configuration with which the node was started.
    /// - Throws: 10022 with the file and the reason.
    package init(
        _ new: NodeConfiguration, startedAs started: NodeConfiguration, at now: Date = Date()
    ) throws(ApusError) {
        guard new.cluster == started.cluster, new.node == started.node else {
            throw ApusError(.configurationInvalid, "the names of the cluster and the node cannot change while it runs")
        }
        let keys = try new.clusterKeys()
        links = try TransportSecrets(
            new.transport.tls, node: new.node, revoked: try RevokedCertificates(file: new.revokedCertificatesFile),
            forwardingKey: ForwardingKey(keys: keys), at: now)
        heartbeats = try HeartbeatSeal(keys: keys)
        sessions = SessionKeys(verifier: try new.tokenVerifier(), sealer: TicketSealer(keys: keys))
        signer = try new.tokenSigner()
        if let signer { try new.check(signer, sessions.verifier, at: now) }
        clients = try TLSServerContext(
            certificateFile: new.gateway.certificateFile, keyFile: new.gateway.keyFile, tickets: new.ticketKeys(keys))
        // Whether the listener has TLS cannot change while it is open.
        http = try started.httpListener.tls == nil ? nil : new.httpListener.tls.map(HTTPCertificate.Content.init)
        relay = new.relay.isEnabled ? try new.relayKeys(keys) : nil
        expiries = try new.certificateExpiries()
        for expiry in expiries where expiry.isServed {
            guard expiry.notAfter > now else {
                throw ApusError(
                    .configurationInvalid, "the certificate in \(expiry.file) expired at \(expiry.notAfter)")
            }
        }
    }
}

extension NodeConfiguration {
    func tokenVerifier() throws(ApusError) -> TokenVerifier {
        try TokenVerifier(publicKeyPEM: try Self.text(tokenPublicKeyFile), cluster: cluster)
    }

    /// Nil if this node does not sign tokens.
    func tokenSigner() throws(ApusError) -> TokenSigner? {
        guard !tokenPrivateKeyFile.isEmpty else { return nil }
        return try TokenSigner(privateKeyPEM: try Self.text(tokenPrivateKeyFile))
    }

    /// Throws 10022 if this node would not accept the tokens that it signs.
    fileprivate func check(_ signer: TokenSigner, _ verifier: TokenVerifier, at now: Date) throws(ApusError) {
        let seconds = Int64(now.timeIntervalSince1970)
        let claims = TokenClaims(
            access: AccessID(unchecked: "check"), account: AccountID(unchecked: "check"), role: .app, device: nil,
            devices: nil, issuedAt: seconds, lifetime: .seconds(60), cluster: cluster, id: nil)
        let token = try signer.sign(claims)
        do {
            _ = try verifier.verify(token, wallSeconds: seconds)
        } catch {
            throw ApusError(
                .configurationInvalid,
                "the key \(tokenPrivateKeyFile) is not the private half of a key in \(tokenPublicKeyFile)")
        }
    }

    /// Nil if TLS resumption is off.
    func ticketKeys(_ keys: ClusterKeys) -> TLSTicketKeys? {
        guard gateway.tlsTicketLifetime > .zero else { return nil }
        return TLSTicketKeys(clusterKey: keys.current, lifetime: gateway.tlsTicketLifetime)
    }

    /// The certificates of this node with their ends. Throws 10022 if one cannot be read.
    func certificateExpiries() throws(ApusError) -> [CertificateExpiry] {
        var files: [(name: String, file: String, isServed: Bool)] = []
        if case .file(let path) = transport.tls.certificateChain { files.append(("node", path, true)) }
        files.append(("clients", gateway.certificateFile, true))
        if let http = httpListener.tls { files.append(("http", http.certificate, true)) }
        if relay.isEnabled, !relay.certificateFile.isEmpty { files.append(("relay", relay.certificateFile, true)) }
        if let etcd, !etcd.certificateFile.isEmpty { files.append(("etcd", etcd.certificateFile, false)) }
        var expiries: [CertificateExpiry] = []
        for (name, file, isServed) in files {
            expiries.append(
                CertificateExpiry(
                    name: name, file: file, notAfter: try CertificateFacts.all(file: file)[0].notAfter,
                    isServed: isServed))
        }
        if case .file(let path) = transport.tls.authority {
            // Of a bundle, the authority that lasts longest: the others are about to be removed.
            let all = try CertificateFacts.all(file: path)
            let last = all.map(\.notAfter).max() ?? .distantPast
            expiries.append(CertificateExpiry(name: "authority", file: path, notAfter: last, isServed: false))
        }
        return expiries
    }

    private static func text(_ path: String) throws(ApusError) -> String {
        do {
            return try String(contentsOfFile: path, encoding: .utf8)
        } catch {
            throw ApusError(.configurationInvalid, "\(path) cannot be read: \(error.localizedDescription)")
        }
    }
}
