import ApusCore
import ApusRelay
import ApusTraversal
import Glibc
import Logging
import Testing

/// A client of TURN that knows no more than a test needs, and says what it is told to.
final class TurnTestClient {
    let socket: LoopbackSocket
    private let endpoint: TransportAddress?
    private let username: String
    private let password: String
    var nonce: String?
    private var number: UInt64 = 0

    /// - Parameter endpoint: of the datagram endpoint; nil for a socket that is connected.
    init(_ socket: LoopbackSocket, endpoint: TransportAddress?, _ issued: (username: String, password: String)) {
        self.socket = socket
        self.endpoint = endpoint
        (username, password) = issued
    }

    func send(_ bytes: [UInt8]) {
        if let endpoint { socket.send(bytes, to: endpoint) } else { socket.write(bytes) }
    }

    /// The next request of this method; signed where there is a nonce.
    func request(_ method: StunMethod, _ fill: (inout StunWriter) -> Void = { _ in }) -> [UInt8] {
        number += 1
        var writer = StunWriter(StunMessageType(.request, method), TransactionID(high: 7, low: number))
        fill(&writer)
        if let nonce {
            writer.add(.username, text: username)
            writer.add(.realm, text: "test")
            writer.add(.nonce, text: nonce)
            writer.addIntegrity(.sha1, key: StunKey(username: username, realm: "test", password: password))
        }
        return writer.bytes
    }

    /// Asks, and asks again with the nonce where that is wanted.
    func ask(_ method: StunMethod, _ fill: (inout StunWriter) -> Void = { _ in }) throws -> StunMessage {
        for _ in 0..<3 {
            send(request(method, fill))
            let answer = try StunMessage(try #require(socket.receive()))
            guard nonce == nil, answer.kind == .error, let fresh = try answer.text(.nonce) else { return answer }
            nonce = fresh
        }
        throw ApusError(.tokenInvalid)
    }

    /// The number of the error that a request ends with; 0 for success.
    func code(_ method: StunMethod, _ fill: (inout StunWriter) -> Void = { _ in }) throws -> UInt16? {
        let answer = try ask(method, fill)
        return answer.kind == .success ? 0 : try answer.errorValue()?.code.rawValue
    }

    func allocate(_ family: TransportAddress.Family = .v4) throws -> TransportAddress {
        let answer = try ask(.allocate) {
            $0.add(requestedTransport: 17)
            if family == .v6 { $0.add(.requestedAddressFamily, family: .v6) }
        }
        #expect(answer.kind == .success)
        return try #require(try answer.xorAddress(.xorRelayedAddress))
    }

    /// Whether the server is there and has answered nothing since the last answer that was read.
    func isNextAnswered(sourceLocation: SourceLocation = #_sourceLocation) -> Bool {
        let question = StunWriter(
            StunMessageType(.request, .binding), TransactionID(high: 9, low: UInt64.random(in: .min ... .max)))
        send(question.bytes)
        guard let answer = socket.receive() else { return false }
        return Array(answer.prefix(20).suffix(12)) == Array(question.bytes.suffix(12))
    }
}

/// A TURN server of the test's own, at the loopback.
struct RelayUnderTest {
    static let credentials = RelayCredentials(realm: "test", current: Array("a secret".utf8))
    let control: RelayControl

    var endpoint: TransportAddress { control.planes[0].datagramAddresses[0] }
    var streamEndpoint: TransportAddress { control.planes[0].streamAddresses[0] }

    /// - Parameters:
    ///   - hosts: where relays are.
    ///   - planes: how many planes there are.
    ///   - userRate: what a user may carry.
    ///   - security: what a TLS endpoint shows; nil for none.
    ///   - streamIdleMax: how long a connection that has ended one way may say nothing.
    ///   - socketsMax: sockets of all allocations together.
    ///   - ports: where allocations are.
    ///   - change: what is not as it is by default; peers may be at the loopback unless it says otherwise.
    init(
        hosts: [TransportAddress] = [TransportAddress(v4: LoopbackSocket.host, port: 0)], planes: Int = 1,
        userRate: RelayRate = RelayRate(), security: EndpointSecurity? = nil, streamIdleMax: Duration = .seconds(30),
        log: Logger = Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }), socketsMax: Int = .max,
        ports: ClosedRange<UInt16> = 49_152...65_535, _ change: (inout TurnServerConfiguration) -> Void = { _ in }
    ) throws {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        var turn = TurnServerConfiguration(credentials: Self.credentials, nonceKey: Array(repeating: 3, count: 32))
        turn.peers = PeerPolicy(opened: [.loopback])
        change(&turn)
        var addresses = RelayAddresses(hosts: hosts, ports: ports)
        addresses.socketsMax = socketsMax
        let server = RelayServer(configuration: turn, addresses: addresses, userRate: userRate, log: log)
        var plane = PlaneConfiguration(datagramAddresses: [any], streamAddresses: [any])
        plane.security = security
        plane.streamIdleMax = streamIdleMax
        plane.secureStreamAddresses = [any]
        control = try RelayControl(planeCount: planes, configuration: plane) { _, _ in server }
    }

    func client(
        user: String = "u", expiry: Int64 = 4_000_000_000, isStream: Bool = false,
        from host: UInt32 = LoopbackSocket.host
    ) -> TurnTestClient {
        let issued = Self.credentials.issue(user: user, expiry: expiry)
        let socket =
            isStream ? LoopbackSocket(connectedTo: streamEndpoint) : LoopbackSocket(datagramsTo: endpoint, from: host)
        return TurnTestClient(socket, endpoint: nil, issued)
    }
}
