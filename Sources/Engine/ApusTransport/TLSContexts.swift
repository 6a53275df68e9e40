import ApusCore
import NIOCore
import NIOSSL

/// The TLS settings of both ends of node links. TLS 1.3 only. Each side presents a certificate of the cluster's own
/// authority. The handshake machine checks the node's name; host names are not checked.
struct TLSContexts: Sendable {
    private let client: NIOSSLContext
    private let server: NIOSSLContext

    /// - Throws: 10022, naming the file that cannot be read.
    init(_ tls: TransportTLS) throws(ApusError) {
        let authority = try Self.certificates(tls.authority, "authority")
        let chain = try Self.certificates(tls.certificateChain, "node certificate")
        let key = try Self.read(tls.privateKey, "private key") { bytes in
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
            throw ApusError(.configurationInvalid, "the node's certificate and key cannot be used: \(error)")
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

    private static func certificates(
        _ source: TransportTLS.Source, _ what: String
    ) throws(ApusError) -> [NIOSSLCertificate] {
        let certificates = try read(source, what) { try NIOSSLCertificate.fromPEMBytes($0) }
        guard !certificates.isEmpty else {
            throw ApusError(.configurationInvalid, "there is no certificate in the \(what)")
        }
        return certificates
    }

    private static func read<Value>(
        _ source: TransportTLS.Source, _ what: String, _ parse: ([UInt8]) throws -> Value
    ) throws(ApusError) -> Value {
        do {
            switch source {
            case .bytes(let bytes): return try parse(bytes)
            case .file(let path): return try parse(PEMFile.bytes(of: path))
            }
        } catch {
            let place = if case .file(let path) = source { " in \(path)" } else { "" }
            throw ApusError(.configurationInvalid, "the \(what)\(place) cannot be read: \(error)")
        }
    }
}
