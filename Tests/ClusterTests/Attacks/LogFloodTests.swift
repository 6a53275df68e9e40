import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What clients without a credential can make a node write (D13).
@Suite("Attacks on the log", .serialized, .timeLimit(.minutes(3)))
struct LogFloodTests {
    @Test("2,000 connections at each listener that say nothing, or nonsense, write a bounded number of lines")
    func connections() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 31_200)
        defer { cluster.down() }
        let view = NodeView(1, of: cluster)
        #expect(view.status != nil)
        let before = Cluster.text(cluster.file("n1/log")).utf8.count
        let requests = [
            "", "x\r\n\r\n", "\u{16}\u{3}\u{1}\u{0}\u{4}junk",
            "POST /v1/admin/drain HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        ]
        for offset in 0..<5 {
            for index in 0..<2_000 {
                guard let socket = NodeView.connect(cluster.basePort + offset) else { continue }
                let request = requests[index % requests.count]
                if !request.isEmpty { _ = write(socket, request, request.utf8.count) }
                // A refusal that is not waited for is not always given.
                if index % requests.count == 3, offset == 2 {
                    var part = [UInt8](repeating: 0, count: 4096)
                    while read(socket, &part, part.count) > 0 {}
                }
                close(socket)
            }
        }
        #expect(view.get("/healthz")?.status == 200)
        let log = Cluster.text(cluster.file("n1/log"))
        #expect(log.utf8.count - before < 64 << 10, "\(log.utf8.count - before) bytes")
        // What was left out is told, by a later line or by one of its own.
        let told = await waited(.seconds(15), every: .milliseconds(100)) {
            Cluster.text(cluster.file("n1/log")).contains("apus.left_out=")
        }
        #expect(told != nil)
    }
}
