import ApusCore
import ApusHTTP
import Foundation
import NIOCore
import Testing

/// What the listener answers to clients that do not keep to HTTP or WebSocket.
extension HTTPListenerTests {
    /// Sends the text, and returns all that comes until the listener has closed the connection; fails after 3 s.
    private static func exchange(_ address: HostPort, _ text: String) async throws -> String {
        let (channel, received) = try await Received.connect(address)
        try await channel.writeAndFlush(ByteBuffer(string: text)).get()
        try await until { !channel.isActive }
        return received.text
    }

    private static let healthy = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"

    @Test(
        "More than 16 KiB of header fields is answered with 400 at once, whole or not, and the connection is closed",
        arguments: [
            "X-A: \(String(repeating: "a", count: 17 << 10))",
            String(repeating: "X-A: \(String(repeating: "a", count: 1000))\r\n", count: 17),
            String(repeating: "X-A: \(String(repeating: "a", count: 1000))\r\n", count: 20) + "\r\n",
            String(repeating: "a", count: 17 << 10),
        ])
    func headerFields(fields: String) async throws {
        try await withListener { address in
            let first = try await Self.exchange(address, "GET /healthz HTTP/1.1\r\nHost: a\r\n" + fields)
            #expect(first.hasPrefix("HTTP/1.1 400 "), "\(first)")
            #expect(first.contains("\"code\":10002") && first.contains("16384"), "\(first)")
            // A request before it is answered.
            let second = try await Self.exchange(
                address, Self.healthy + "GET /healthz HTTP/1.1\r\nHost: a\r\n" + fields)
            #expect(second.hasPrefix("HTTP/1.1 200 ") && second.contains("HTTP/1.1 400 "), "\(second)")
        }
    }

    @Test(
        "What is no HTTP is answered with 400 at once",
        arguments: ["\u{16}\u{3}\u{1}\u{2}", "GET / FTP/1.1\r\n\r\n"])
    func noHTTP(text: String) async throws {
        try await withListener { address in
            let answer = try await Self.exchange(address, text)
            #expect(answer.hasPrefix("HTTP/1.1 400 ") && answer.contains("\"code\":10001"), "\(answer)")
        }
    }

    @Test(
        "HEAD is answered as GET without the body, and the connection stays (RFC 9110 §9.3.2)",
        arguments: ["/healthz", "/metrics", "/v1/status", "/v1/openapi.json", "/v1/devices/cam", "/nowhere"])
    func head(path: String) async throws {
        try await withListener { address in
            func request(_ method: String) -> String {
                "\(method) \(path) HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\n\r\n"
            }
            let (channel, received) = try await Received.connect(address)
            try await channel.writeAndFlush(ByteBuffer(string: request("HEAD"))).get()
            try await Self.until { received.contains("\r\n\r\n") }
            let head = received.text
            try await channel.writeAndFlush(ByteBuffer(string: request("GET"))).get()
            try await Self.until { received.text.dropFirst(head.count).contains("\r\n\r\n") }
            let answer = String(received.text.dropFirst(head.count))
            #expect(head.hasSuffix("\r\n\r\n"), "it has a body: \(head)")
            func fields(_ text: String) -> [String] {
                let lines = text.components(separatedBy: "\r\n\r\n")[0].components(separatedBy: "\r\n")
                // The metrics count the requests.
                return lines.filter { path != "/metrics" || !$0.lowercased().hasPrefix("content-length") }.sorted()
            }
            #expect(fields(head) == fields(answer))
            #expect(head.hasPrefix(path == "/nowhere" ? "HTTP/1.1 404" : "HTTP/1.1 200"), "\(head)")
            try? await channel.close()
        }
    }

    @Test(
        "A frame that a client must not send closes a WebSocket with 1002 (RFC 6455 §5.1, §5.2)",
        arguments: [
            // Text without a mask; reserved bits; reserved opcodes.
            [0x81, 0x02, 0x7b, 0x7d], [0xc1, 0x80, 0, 0, 0, 0], [0xa1, 0x80, 0, 0, 0, 0], [0x91, 0x80, 0, 0, 0, 0],
            [0x83, 0x80, 0, 0, 0, 0], [0x87, 0x80, 0, 0, 0, 0], [0x8b, 0x80, 0, 0, 0, 0], [0x8f, 0x80, 0, 0, 0, 0],
            // A ping, a pong and a close without a mask; a continuation of nothing; a fragment of a ping.
            [0x89, 0x00], [0x8a, 0x00], [0x88, 0x02, 0x03, 0xe8], [0x80, 0x80, 0, 0, 0, 0], [0x09, 0x80, 0, 0, 0, 0],
        ] as [[UInt8]])
    func webSocketFrames(frame: [UInt8]) async throws {
        try await withWebSockets { address in
            for isWelcome in [false, true] {
                let (channel, received) = try await Self.open(address)
                if isWelcome {
                    try await channel.writeAndFlush(Self.hello("ann")).get()
                    try await Self.until { received.contains("welcome") }
                }
                try await channel.writeAndFlush(ByteBuffer(bytes: frame)).get()
                try await Self.until { !channel.isActive }
                #expect(received.bytes.suffix(4) == [0x88, 0x02, 0x03, 0xea], "\(received.text)")
            }
        }
    }
}
