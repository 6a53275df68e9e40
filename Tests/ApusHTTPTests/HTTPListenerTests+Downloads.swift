import ApusClientAPI
import ApusCore
import ApusHTTP
import Foundation
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// A file of made-up bytes, and what is read of it.
final class TestDownloads: MediaDownloads {
    static let byteCount = 1_000_003

    let reads = Mutex<[Range<Int>]>([])
    /// The reads from this offset on fail.
    let failsAt = Mutex(Int.max)
    /// Reads wait until this is false.
    let waits = Mutex(false)
    private let size: Int

    init(byteCount: Int = byteCount) { size = byteCount }

    static func byte(_ offset: Int) -> UInt8 { UInt8(truncatingIfNeeded: offset &* 2_654_435_761 >> 7) }

    static func bytes(_ range: Range<Int>) -> [UInt8] { range.map(byte) }

    func download(_ file: String, at address: String) async throws(ApusError) -> MediaDownload {
        guard address.hasPrefix("good") else { throw ApusError(.tokenInvalid) }
        guard file == "a.mp4" else { throw ApusError(.targetUnknown) }
        return MediaDownload(
            contentType: "video/mp4", tag: "t1", byteCount: size, secondsKept: 60, fileName: "cam.mp4",
            account: AccountID(unchecked: address)
        ) { [self] range throws(ApusError) in
            while waits.withLock({ $0 }) {
                guard (try? await Task.sleep(for: .milliseconds(10))) != nil else { throw ApusError(.cancelled) }
            }
            reads.withLock { $0.append(range) }
            guard range.upperBound <= failsAt.withLock({ $0 }) else { throw ApusError(.storageFailed) }
            guard size == Self.byteCount else { return ByteBuffer(repeating: 7, count: range.count) }
            return ByteBuffer(bytes: Self.bytes(range))
        }
    }
}

extension HTTPListenerTests {
    private func withDownloads(
        _ downloads: TestDownloads = TestDownloads(), change: (inout HTTPConfiguration) -> Void = { _ in },
        body: @Sendable (HostPort) async throws -> Void
    ) async throws {
        var sources = Node().sources
        sources.clients?.downloads = downloads
        try await withListener(sources: sources, change: change, body: body)
    }

    /// Sends one request, and reads until the connection closes.
    private static func ask(
        _ address: HostPort, _ headers: [String] = [], method: String = "GET",
        path: String = "/v1/recordings/good/a.mp4"
    ) async throws -> (head: String, body: [UInt8]) {
        let (channel, received) = try await Received.connect(address)
        let lines = ["\(method) \(path) HTTP/1.1", "Host: a", "Connection: close"] + headers
        try await channel.writeAndFlush(ByteBuffer(string: lines.joined(separator: "\r\n") + "\r\n\r\n")).get()
        try await until { !channel.isActive }
        let bytes = received.bytes
        let end = try #require(bytes.firstRange(of: Array("\r\n\r\n".utf8)), "\(received.text.prefix(500))")
        return (String(decoding: bytes[..<end.lowerBound], as: UTF8.self), Array(bytes[end.upperBound...]))
    }

    @Test(
        "A range of a file is what was asked for, to the byte (RFC 9110 §14)",
        arguments: [
            ("bytes=0-0", 206, 0..<1), ("bytes=0-", 206, 0..<1_000_003), ("bytes=999999-", 206, 999_999..<1_000_003),
            ("bytes=-1", 206, 1_000_002..<1_000_003), ("bytes=-99999999", 206, 0..<1_000_003),
            ("bytes=500000-700000", 206, 500_000..<700_001), ("BYTES=5-99999999999999999999", 206, 5..<1_000_003),
            ("bytes=1000003-", 416, 0..<0), ("bytes=-0", 416, 0..<0), ("bytes=99999999999999999999-", 416, 0..<0),
            ("bytes=5-4", 200, 0..<1_000_003), ("bytes=0-1,5-6", 200, 0..<1_000_003), ("bytes=", 200, 0..<1_000_003),
            ("bytes=-", 200, 0..<1_000_003), ("bytes=+1-2", 200, 0..<1_000_003), ("items=0-1", 200, 0..<1_000_003),
        ])
    func ranges(text: String, status: Int, range: Range<Int>) async throws {
        try await withDownloads { address in
            let (head, body) = try await Self.ask(address, ["Range: \(text)"])
            #expect(head.hasPrefix("HTTP/1.1 \(status) "), "\(head)")
            guard status != 416 else {
                #expect(head.contains("Content-Range: bytes */1000003"))
                return
            }
            #expect(body == TestDownloads.bytes(range))
            #expect(head.contains("Content-Length: \(range.count)"))
            let part = "Content-Range: bytes \(range.lowerBound)-\(range.upperBound - 1)/1000003"
            #expect(head.contains(part) == (status == 206))
        }
    }

    @Test("Tags save what the client has, and ranges of another version are not mixed (RFC 9110 §13)")
    func tags() async throws {
        try await withDownloads { address in
            let whole = try await Self.ask(address)
            for line in [
                "ETag: \"t1\"", "Accept-Ranges: bytes", "Content-Type: video/mp4", "Content-Length: 1000003",
                "Cache-Control: private, max-age=60, immutable", "filename=\"cam.mp4\"", "Referrer-Policy: no-referrer",
            ] { #expect(whole.head.contains(line), "\(whole.head)") }
            for tag in ["\"t1\"", "W/\"t1\"", "\"x\", \"t1\"", "*"] {
                let answer = try await Self.ask(address, ["If-None-Match: \(tag)"])
                #expect(answer.head.hasPrefix("HTTP/1.1 304 ") && answer.body.isEmpty, "\(tag)")
            }
            #expect(try await Self.ask(address, ["If-None-Match: \"t2\""]).head.hasPrefix("HTTP/1.1 200 "))
            let same = try await Self.ask(address, ["Range: bytes=1-2", "If-Range: \"t1\""])
            #expect(same.head.hasPrefix("HTTP/1.1 206 ") && same.body.count == 2)
            for other in ["\"t2\"", "W/\"t1\"", "Tue, 01 Dec 2026 00:00:00 GMT"] {
                let answer = try await Self.ask(address, ["Range: bytes=1-2", "If-Range: \(other)"])
                #expect(answer.head.hasPrefix("HTTP/1.1 200 ") && answer.body.count == 1_000_003)
            }
        }
    }

    @Test("HEAD is the head alone, gives its place back, and reads nothing of the file")
    func head() async throws {
        let downloads = TestDownloads()
        try await withDownloads(downloads, change: { $0.downloads.accountMax = 1 }) { address in
            for _ in 0..<5 {
                let answer = try await Self.ask(address, ["Range: bytes=5-9"], method: "HEAD")
                #expect(answer.head.hasPrefix("HTTP/1.1 206 ") && answer.body.isEmpty)
                #expect(answer.head.contains("Content-Length: 5") && answer.head.contains("Content-Range: bytes 5-9/"))
            }
            let isUnread = downloads.reads.withLock { $0.isEmpty }
            #expect(isUnread)
        }
    }

    @Test("An address that is not valid is 401, a file that is not there 404, and neither takes a place")
    func refusals() async throws {
        try await withDownloads(change: { $0.downloads.countMax = 2 }) { address in
            for _ in 0..<4 {
                let bad = try await Self.ask(address, path: "/v1/recordings/bad/a.mp4")
                #expect(bad.head.hasPrefix("HTTP/1.1 401 "))
                let none = try await Self.ask(address, path: "/v1/recordings/good/b.mp4")
                #expect(none.head.hasPrefix("HTTP/1.1 404 "))
            }
            #expect(try await Self.ask(address).body.count == 1_000_003)
        }
    }

    @Test("An account has its share of the places, and another one has what is left")
    func places() async throws {
        let downloads = TestDownloads()
        downloads.waits.withLock { $0 = true }
        try await withDownloads(
            downloads,
            change: {
                $0.downloads.countMax = 4
                $0.downloads.accountMax = 2
            }
        ) { address in
            let request = ByteBuffer(string: "GET /v1/recordings/good/a.mp4 HTTP/1.1\r\nHost: a\r\n\r\n")
            var open: [any Channel] = []
            for _ in 0..<2 {
                let (channel, received) = try await Received.connect(address)
                try await channel.writeAndFlush(request).get()
                try await Self.until { received.contains("HTTP/1.1 200") }
                open.append(channel)
            }
            let refused = try await Self.ask(address)
            #expect(refused.head.hasPrefix("HTTP/1.1 429 ") && refused.head.contains("Retry-After"))
            // A client that leaves gives its place back at once.
            try await open[0].close()
            downloads.waits.withLock { $0 = false }
            var answer = ""
            for _ in 0..<100 where !answer.hasPrefix("HTTP/1.1 206 ") {
                answer = try await Self.ask(address, ["Range: bytes=0-3"]).head
                try await Task.sleep(for: .milliseconds(20))
            }
            #expect(answer.hasPrefix("HTTP/1.1 206 "), "\(answer)")
            #expect(try await Self.ask(address, path: "/v1/recordings/good2/a.mp4").body.count == 1_000_003)
            try await open[1].close()
        }
    }

    @Test("For a client that does not read, a piece is read and no more, and its connection is closed")
    func slowReader() async throws {
        let downloads = TestDownloads(byteCount: 64 << 20)
        try await withDownloads(downloads, change: { $0.requestTimeout = .milliseconds(800) }) { address in
            let (channel, _) = try await Received.connect(address)
            try await channel.setOption(.autoRead, value: false).get()
            let request = ByteBuffer(string: "GET /v1/recordings/good/a.mp4 HTTP/1.1\r\nHost: a\r\n\r\n")
            try await channel.writeAndFlush(request).get()
            try await Self.until { downloads.reads.withLock { !$0.isEmpty } }
            try await Task.sleep(for: .milliseconds(2500))
            // The buffers of the kernel, and a piece.
            let read = downloads.reads.withLock { $0.map(\.upperBound).max() ?? 0 }
            #expect(read < 12 << 20, "\(read) bytes were read for a client that reads none")
            try await channel.setOption(.autoRead, value: true).get()
            try await Self.until { !channel.isActive }
        }
    }

    @Test("A file that cannot be read to its end ends early, so that the client notices")
    func failure() async throws {
        let downloads = TestDownloads()
        downloads.failsAt.withLock { $0 = 600_000 }
        try await withDownloads(downloads) { address in
            let answer = try await Self.ask(address)
            #expect(answer.head.contains("Content-Length: 1000003"))
            #expect(answer.body.count < 1_000_003)
            #expect(answer.body == TestDownloads.bytes(0..<answer.body.count))
            // The next one is served.
            #expect(try await Self.ask(address, ["Range: bytes=0-9"]).body.count == 10)
        }
    }

    @Test("Pages of permitted origins read ranges and their heads (CORS)")
    func origins() async throws {
        try await withDownloads(change: { $0.corsOrigins = ["https://app.example"] }) { address in
            let answer = try await Self.ask(address, ["Origin: https://app.example", "Range: bytes=0-3"])
            #expect(answer.head.contains("Access-Control-Allow-Origin: https://app.example"))
            #expect(
                answer.head.contains(
                    "Access-Control-Expose-Headers: Accept-Ranges, Content-Length, Content-Range, ETag"))
            let preflight = try await Self.ask(
                address, ["Origin: https://app.example", "Access-Control-Request-Method: GET"], method: "OPTIONS")
            #expect(preflight.head.contains("Range"))
        }
    }
}
