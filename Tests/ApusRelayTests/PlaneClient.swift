import ApusRelay
import ApusTestKit
import ApusTraversal
import Testing

extension PlaneHarness {
    /// One that has the endpoints of TLS and DTLS too.
    static func secured(_ configure: (inout PlaneConfiguration) -> Void = { _ in }) throws -> PlaneHarness {
        let certificate = try TestCertificate()
        let security = try EndpointSecurity(certificateFile: certificate.certificate, keyFile: certificate.key)
        return try PlaneHarness {
            let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
            $0.security = security
            $0.secureStreamAddresses = [any]
            $0.secureDatagramAddresses = [any]
            configure(&$0)
        }
    }
}

/// A client at any of a plane's endpoints that control knows.
final class PlaneClient {
    let flow: RelayFlow
    private let plain: LoopbackSocket?
    private let secure: SecureClient?

    init(_ harness: PlaneHarness, _ transport: RelayFlow.Transport) throws {
        switch transport {
        case .udp: (plain, secure) = (LoopbackSocket(datagramsTo: harness.endpoint), nil)
        case .tcp: (plain, secure) = (LoopbackSocket(connectedTo: harness.streamEndpoint), nil)
        case .tls: (plain, secure) = (nil, SecureClient(harness.secureEndpoint, isDatagram: false))
        case .dtls: (plain, secure) = (nil, SecureClient(harness.sessionEndpoint, isDatagram: true))
        }
        let address = try #require(plain?.address ?? secure?.socket.address)
        let hello = PlaneHarness.request(0x003)
        if let plain { plain.write(hello) } else { secure?.write(hello) }
        flow = try harness.flow(from: address)
    }

    func write(_ bytes: [UInt8]) {
        if let plain { plain.write(bytes) } else { secure?.write(bytes) }
    }

    /// The bytes of one message, which came alone.
    func receive(_ count: Int) -> [UInt8] {
        plain?.receive(bytes: count) ?? secure?.receive(bytes: count) ?? []
    }

    /// What comes in so many milliseconds, of whatever kind; nil where nothing does.
    func receives(within milliseconds: Int32) -> [UInt8]? {
        (plain ?? secure?.socket)?.receive(milliseconds: milliseconds)
    }
}
