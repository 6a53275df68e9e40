import ApusCore
import NIOCore
import NIOSSL

/// The TLS settings of both ends of node links. TLS 1.3 only. Each side presents a certificate of the cluster's own
/// authority. The handshake machine checks the node's name; host names are not checked.
struct TLSContexts: Sendable {
    private let client: NIOSSLContext
    private let server: NIOSSLContext

    /// - Parameters:
    ///   - tls: the texts.
    ///   - sources: where they were read, for errors.
    /// - Throws: 10022, naming what cannot be used.
    init(_ tls: TransportTLS, from sources: TransportTLS) throws(ApusError) {
        let authority = try Self.parse(tls.authority, sources.authority, "authority") {
            try NIOSSLCertificate.fromPEMBytes($0)
        }
        let chain = try Self.parse(tls.certificateChain, sources.certificateChain, "node certificate") {
            try NIOSSLCertificate.fromPEMBytes($0)
        }
        let key = try Self.parse(tls.privateKey, sources.privateKey, "private key") { bytes in
            try NIOSSLPrivateKey(bytes: bytes, format: .pem)
        }
        var client = TLSConfiguration.makeClientConfiguration()
        client.certificateChain = chain.map { .certificate($0) }
        client.privateKey = .privateKey(key)
        var server = TLSConfiguration.makeServerConfiguration(
            certificateChain: chain.map { .certificate($0) }, privateKey: .privateKey(key))
        Self.harden(&client, authority)
        Self.harden(&server, authority)
        do {
            self.client = try NIOSSLContext(configuration: client)
            self.server = try NIOSSLContext(configuration: server)
        } catch {
            throw ApusError(
                .configurationInvalid,
                "the certificate in \(sources.certificateChain.name) and the key in \(sources.privateKey.name) cannot "
                    + "be used together: \(error)")
        }
    }

    /// - Parameter name: sent to the acceptor as the server name.
    func makeClientHandler(_ name: LaneName) throws -> NIOSSLClientHandler {
        try NIOSSLClientHandler(context: client, serverHostname: name.serverName)
    }

    func makeServerHandler() -> NIOSSLServerHandler { NIOSSLServerHandler(context: server) }

    private static func harden(_ configuration: inout TLSConfiguration, _ authority: [NIOSSLCertificate]) {
        configuration.minimumTLSVersion = .tlsv13
        configuration.certificateVerification = .noHostnameVerification
        configuration.trustRoots = .certificates(authority)
        configuration.additionalTrustRoots = []
        // A link that ends has nothing left to send, and a dead peer must not delay its close.
        configuration.shutdownTimeout = .milliseconds(250)
    }

    private static func parse<Value>(
        _ text: TransportTLS.Source, _ source: TransportTLS.Source, _ what: String, _ parse: ([UInt8]) throws -> Value
    ) throws(ApusError) -> Value {
        do {
            return try parse(text.pem)
        } catch {
            throw ApusError(.configurationInvalid, "the \(what) in \(source.name) cannot be read: \(error)")
        }
    }
}
