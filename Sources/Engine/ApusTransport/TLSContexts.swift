import ApusCore
import ApusTLS

/// The TLS settings of both ends of node links. TLS 1.3 only. Each side presents a certificate of the cluster's own
/// authority. The handshake machine checks the node's name; host names are not checked.
struct TLSContexts: Sendable {
    private let client: TLSClientContext
    private let server: TLSServerContext

    /// A link that ends has nothing left to send, and a dead peer must not delay its close.
    private static let closeTimeout = Duration.milliseconds(250)

    /// - Parameters:
    ///   - tls: the texts.
    ///   - sources: where they were read, for errors.
    /// - Throws: 10022, naming what cannot be used.
    init(_ tls: TransportTLS, from sources: TransportTLS) throws(ApusError) {
        let identity = TLSIdentity(chain: tls.certificateChain.pem, key: tls.privateKey.pem)
        let trust = TLSTrust.authorities(tls.authority.pem)
        do {
            client = try TLSClientContext(trust: trust, identity: identity, keepsBuffers: true)
            server = try TLSServerContext(identity, trust: trust, keepsBuffers: true)
        } catch {
            throw ApusError(.configurationInvalid, Self.words(error, sources))
        }
    }

    /// - Parameter name: sent to the acceptor as the server name.
    func makeClientHandler(_ name: LaneName) -> TLSHandler {
        TLSHandler(unnamed: client, serverName: name.serverName, closeTimeout: Self.closeTimeout)
    }

    func makeServerHandler() -> TLSHandler { TLSHandler(server, closeTimeout: Self.closeTimeout) }

    private static func words(_ error: TLSContextError, _ sources: TransportTLS) -> String {
        switch error {
        case .authority: "the authority in \(sources.authority.name) cannot be read: \(error)"
        case .certificate: "the node certificate in \(sources.certificateChain.name) cannot be read: \(error)"
        case .key: "the private key in \(sources.privateKey.name) cannot be read: \(error)"
        case .pair:
            "the certificate in \(sources.certificateChain.name) and the key in \(sources.privateKey.name) cannot be "
                + "used together: \(error)"
        case .library: "TLS of node links cannot be used: \(error)"
        }
    }
}
