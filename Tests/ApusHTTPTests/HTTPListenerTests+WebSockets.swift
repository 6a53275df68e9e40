import ApusContract
import ApusCore
import ApusHTTP
import ApusSessions
import NIOCore
import Synchronization
import Testing

extension HTTPListenerTests {
    /// Admits everybody. The token is the account.
    private struct Sessions: WebSocketSessions {
        func open(_ hello: ClientHello, link: any ClientLink) async -> Result<OpenedWebSocket, ApusError> {
            guard let access = AccessID(rawValue: hello.token), let account = AccountID(rawValue: hello.token) else {
                return .failure(ApusError(.tokenInvalid))
            }
            let session = Session(
                id: "-", role: .app, access: access, account: account, device: nil, sinceMilliseconds: 0,
                token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
            return .success(OpenedWebSocket(session: session, welcome: ClientWelcome()))
        }

        func chosen(_ session: Session, link: any ClientLink) {}
        func close(_ session: Session, link: any ClientLink) {}
        func wallSeconds() -> Int64 { 0 }
    }

    func withWebSockets(
        _ node: Node = Node(), max: Int = 100, body: @Sendable (HostPort) async throws -> Void
    ) async throws {
        var sources = node.sources
        sources.clients?.webSockets = Sessions()
        try await withListener(node, sources: sources, change: { $0.webSocketsMax = max }, body: body)
    }

    private static func upgrade(version: Int = 13) -> String {
        "GET /v1/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + "Sec-WebSocket-Version: \(version)\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    }

    /// A WebSocket that has not sent its hello.
    static func open(_ address: HostPort) async throws -> (channel: any Channel, received: Received) {
        let (channel, received) = try await Received.connect(address)
        try await channel.writeAndFlush(ByteBuffer(string: upgrade())).get()
        try await until { received.contains("\r\n\r\n") || !channel.isActive }
        guard received.contains("HTTP/1.1 101") else { throw ApusError(.tooManyConnections, received.text) }
        return (channel, received)
    }

    /// A text of at most 125 bytes. Its mask is zero (RFC 6455 §5.3).
    private static func frame(_ text: String) -> ByteBuffer {
        var frame = ByteBuffer()
        frame.writeInteger(UInt8(0x81))
        frame.writeInteger(0x80 | UInt8(text.utf8.count))
        frame.writeInteger(UInt32(0))
        frame.writeString(text)
        return frame
    }

    static func hello(_ token: String) -> ByteBuffer {
        frame(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#)
    }

    /// A WebSocket whose hello was answered, with the welcome or with a goodbye.
    private static func greet(
        _ address: HostPort, _ token: String
    ) async throws -> (channel: any Channel, isWelcome: Bool) {
        let (channel, received) = try await open(address)
        try await channel.writeAndFlush(hello(token)).get()
        try await until { received.contains("welcome") || received.contains("goodbye") }
        return (channel, received.contains("welcome"))
    }

    @Test("A WebSocket whose client does not read is not read from, until the client reads again")
    func webSocketThatIsNotRead() async throws {
        let node = Node(requestsPerSecondEach: 1_000_000)
        try await withWebSockets(node) { address in
            let (channel, isWelcome) = try await Self.greet(address, "large")
            try #require(isWelcome)
            try await channel.setOption(.autoRead, value: false).get()
            var sent = 0
            while sent < 240, node.large.withLock({ $0 }) == sent {
                for _ in 0..<20 {
                    sent += 1
                    channel.write(Self.frame(#"{"id":\#(sent),"request":"devices.list","body":{}}"#), promise: nil)
                }
                channel.flush()
                let deadline = ContinuousClock.now + .seconds(1)
                while node.large.withLock({ $0 }) < sent, ContinuousClock.now < deadline {
                    try await Task.sleep(for: .milliseconds(5))
                }
            }
            let answered = node.large.withLock { $0 }
            #expect(answered < sent, "the node carried out all \(sent) requests, and holds their answers")
            let total = sent
            try await channel.setOption(.autoRead, value: true).get()
            try await Self.until { node.large.withLock { $0 } == total }
            try? await channel.close()
        }
    }

    @Test("A WebSocket without a hello is closed for a new one if too many wait, and one with its welcome is not")
    func webSocketsBeforeTheirHello() async throws {
        try await withWebSockets(max: 8) { address in
            let welcomed = try await Self.greet(address, "ann")
            #expect(welcomed.isWelcome)
            let first = try await Self.open(address)
            let second = try await Self.open(address)
            try await Self.until { !first.channel.isActive }
            #expect(first.received.contains("goodbye"))
            try await second.channel.writeAndFlush(Self.hello("ann")).get()
            try await Self.until { second.received.contains("welcome") }
            let third = try await Self.greet(address, "ann")
            #expect(third.isWelcome && second.channel.isActive && welcomed.channel.isActive)
            for channel in [welcomed.channel, second.channel, third.channel] { try? await channel.close() }
        }
    }

    @Test("An account has its share of the WebSockets, and leaves room for another's")
    func webSocketsOfOneAccount() async throws {
        try await withWebSockets(max: 8) { address in
            // Seven places are for clients with a welcome, and eight ninths of them for one account.
            var channels: [any Channel] = []
            for _ in 0..<6 {
                let socket = try await Self.greet(address, "ann")
                #expect(socket.isWelcome)
                channels.append(socket.channel)
            }
            #expect(try await !Self.greet(address, "ann").isWelcome)
            let other = try await Self.greet(address, "bob")
            #expect(other.isWelcome)
            for channel in channels { try await channel.close() }
            // The node learns of the closed connections a little later.
            var isWelcomeAgain = false
            let deadline = ContinuousClock.now + .seconds(3)
            while !isWelcomeAgain, ContinuousClock.now < deadline {
                // Nobody is admitted as long as all places are taken.
                guard let channel = try? await Self.open(address).channel else { continue }
                try? await channel.close()
                let socket = try await Self.greet(address, "ann")
                isWelcomeAgain = socket.isWelcome
                try? await socket.channel.close()
            }
            #expect(isWelcomeAgain)
            try? await other.channel.close()
        }
    }

    @Test(
        "A request that offers an upgrade which nobody makes is answered, and its connection ends (RFC 9110 §7.8)",
        arguments: ["h2c", "h2c, websocket", "websocket"])
    func otherUpgrades(name: String) async throws {
        try await withWebSockets { address in
            let offer = "Upgrade: \(name)\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
            for first in ["", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"] {
                let (channel, received) = try await Received.connect(address)
                let request = "\(first)GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\(offer)Content-Length: 3\r\n\r\nabc"
                try await channel.writeAndFlush(ByteBuffer(string: request)).get()
                try await Self.until { received.contains("\"openapi\"") || !channel.isActive }
                #expect(received.contains("\"openapi\"") && !received.contains("101"), "\(received.text.prefix(200))")
                // What follows is read by nobody, and not kept.
                for _ in 0..<64 { channel.writeAndFlush(ByteBuffer(repeating: 0x58, count: 1 << 16), promise: nil) }
                try await Self.until { !channel.isActive }
            }
        }
    }

    @Test("A WebSocket beyond the limit, and one of another version, are refused with 503")
    func refusedUpgrades() async throws {
        try await withWebSockets(max: 1) { address in
            func answer(_ request: String) async throws -> String {
                let (channel, received) = try await Received.connect(address)
                try await channel.writeAndFlush(ByteBuffer(string: request)).get()
                try await Self.until { received.contains("\r\n\r\n") || !channel.isActive }
                try? await channel.close()
                return received.text
            }
            #expect(try await answer(Self.upgrade(version: 12)).hasPrefix("HTTP/1.1 503"))
            #expect(try await answer("GET /v1/ws HTTP/1.1\r\nHost: a\r\n\r\n").hasPrefix("HTTP/1.1 503"))
            let only = try await Self.greet(address, "ann")
            #expect(only.isWelcome)
            #expect(try await answer(Self.upgrade()).hasPrefix("HTTP/1.1 503"))
            try? await only.channel.close()
        }
    }
}
