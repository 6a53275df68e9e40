import ApusCore
import ApusHTTP
import NIOCore
import Synchronization
import Testing

extension HTTPListenerTests {
    private static func request(_ token: String) -> ByteBuffer {
        ByteBuffer(string: "GET /v1/devices HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(token)\r\n\r\n")
    }

    private static func answerCount(_ received: Received) -> Int {
        received.text.split(separator: "HTTP/1.1 200").count
    }

    @Test("A request that takes longer than http.request_timeout is answered, however old the last answer is")
    func longRequest() async throws {
        try await withListener(change: { $0.requestTimeout = .milliseconds(500) }) { address in
            let (channel, received) = try await Received.connect(address)
            try await channel.writeAndFlush(Self.request("good")).get()
            try await Self.until { received.contains("nextPageToken") }
            try await Task.sleep(for: .milliseconds(300))
            try await channel.writeAndFlush(Self.request("later")).get()
            try await Self.until { Self.answerCount(received) == 2 || !channel.isActive }
            #expect(Self.answerCount(received) == 2, "\(received.text)")
            // Now it is idle.
            let began = ContinuousClock.now
            try await Self.until { !channel.isActive }
            #expect(ContinuousClock.now - began < .seconds(2))
        }
    }

    @Test("Requests that are sent at once are all answered, though together they take longer than http.request_timeout")
    func pipelinedRequests() async throws {
        try await withListener(change: { $0.requestTimeout = .milliseconds(500) }) { address in
            let (channel, received) = try await Received.connect(address)
            for token in ["good", "later", "later"] { channel.write(Self.request(token), promise: nil) }
            channel.flush()
            try await Self.until { Self.answerCount(received) == 3 || !channel.isActive }
            #expect(Self.answerCount(received) == 3, "\(received.text)")
            try await Self.until { !channel.isActive }
        }
    }

    @Test("A request that does not end is closed after api.request_timeout_max and http.request_timeout")
    func endlessRequest() async throws {
        let node = Node(requestTimeoutMax: .milliseconds(700))
        try await withListener(node, change: { $0.requestTimeout = .milliseconds(300) }) { address in
            let began = ContinuousClock.now
            let (channel, _) = try await Received.connect(address)
            try await channel.writeAndFlush(Self.request("slow")).get()
            try await Self.until { !channel.isActive }
            #expect(ContinuousClock.now - began > .milliseconds(900))
            try await Self.until { node.cancelled.withLock { $0 } == 1 }
        }
    }

    @Test("A connection whose request is carried out is not closed for another")
    func runningRequestStays() async throws {
        try await withListener(change: { $0.connectionsMax = 16 }) { address in
            let (channel, received) = try await Received.connect(address)
            try await channel.writeAndFlush(Self.request("later")).get()
            try await Task.sleep(for: .milliseconds(100))
            let others = try await Self.openHalf(30, to: address)
            try await Self.until { Self.answerCount(received) == 1 || !channel.isActive }
            #expect(Self.answerCount(received) == 1, "\(received.text)")
            for other in others + [channel] { try? await other.close() }
        }
    }

    @Test(
        "Requests that wait, of one account and of many, keep out neither others, nor operators, nor slow connections")
    func waitingRequests() async throws {
        let node = Node(requestsPerSecondEach: 1000)
        try await withListener(node, change: { $0.connectionsMax = 64 }) { address in
            // As many as there are connections. Those beyond the account's share are refused at once.
            var opened: [(channel: any Channel, received: Received)] = []
            for _ in 0..<60 {
                let (channel, received) = try await Received.connect(address)
                try await channel.writeAndFlush(Self.request("slow")).get()
                opened.append((channel, received))
            }
            let loud = opened
            try await Self.until {
                node.waiting.withLock { $0 } + loud.count { $0.received.contains("HTTP/1.1 429") } == 60
            }
            #expect(node.waiting.withLock { $0 } == 42, "eight ninths of three quarters of the connections")
            // Sixty connections a second without a request, while the requests of others take a while to arrive.
            let bare = Mutex<[any Channel]>([])
            let flood = Task {
                while (try? await Task.sleep(for: .milliseconds(16))) != nil {
                    if let (channel, _) = try? await Received.connect(address) { bare.withLock { $0.append(channel) } }
                }
            }
            defer { flood.cancel() }
            let health = ByteBuffer(string: "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            for request in [Self.request("good"), Self.request("operator"), health, Self.request("good"), health] {
                let (channel, received) = try await Received.connect(address)
                try await Task.sleep(for: .milliseconds(100))
                try await channel.writeAndFlush(request).get()
                try await Self.until { Self.answerCount(received) == 1 || !channel.isActive }
                #expect(Self.answerCount(received) == 1, "\(String(buffer: request)): \(received.text)")
                try? await channel.close()
            }
            #expect(node.cancelled.withLock { $0 } == 0, "a request that is carried out was given up")
            flood.cancel()
            await flood.value
            for channel in loud.map(\.channel) + bare.withLock(\.self) { try? await channel.close() }
        }
    }

    @Test("Operators have places of their own where waiting requests of clients have taken all the others")
    func operatorsPlaces() async throws {
        let node = Node(requestsPerSecondEach: 1000)
        try await withListener(node, change: { $0.connectionsMax = 64 }) { address in
            var waiting: [any Channel] = []
            // Three quarters of the connections. An account has eight ninths of what the others leave.
            for (token, count) in [("slow", 42), ("slow-1", 5), ("slow-2", 1)] {
                for _ in 0..<count {
                    let (channel, _) = try await Received.connect(address)
                    try await channel.writeAndFlush(Self.request(token)).get()
                    waiting.append(channel)
                }
                let sum = waiting.count
                try await Self.until { node.waiting.withLock { $0 } == sum }
            }
            for (token, status) in [("good", 429), ("operator", 200)] {
                let (channel, received) = try await Received.connect(address)
                try await channel.writeAndFlush(Self.request(token)).get()
                try await Self.until { received.contains("HTTP/1.1 ") || !channel.isActive }
                #expect(received.contains("HTTP/1.1 \(status)"), "\(token): \(received.text)")
                try? await channel.close()
            }
            for channel in waiting { try? await channel.close() }
        }
    }

    @Test("A machine that opens connections without a request loses its own ones, and not that of another machine")
    func sources() async throws {
        try await withListener(change: { $0.connectionsMax = 64 }) { address in
            let (slow, received) = try await Received.connect(address, from: "127.0.0.2")
            try await Task.sleep(for: .milliseconds(100))
            var bare: [any Channel] = []
            for _ in 0..<100 { bare.append(try await Received.connect(address, from: "127.0.0.3").0) }
            try await slow.writeAndFlush(Self.request("good")).get()
            try await Self.until { Self.answerCount(received) == 1 || !slow.isActive }
            #expect(Self.answerCount(received) == 1, "\(received.text)")
            for channel in bare + [slow] { try? await channel.close() }
        }
    }
}
