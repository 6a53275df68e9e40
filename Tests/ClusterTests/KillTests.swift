import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// What the kernel does with the sockets of a node that is killed, and in which order.
@Suite("Killed nodes (D4)", .serialized, .timeLimit(.minutes(2)))
struct KillTests {
    @Test("Whoever sees a connection of a killed node end is refused when it dials again, at once")
    func refusal() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_860)
        defer { cluster.down() }
        for round in 1...4 {
            let sockets = (0..<100).compactMap { _ in NodeView.connect(cluster.basePort) }
            defer { for socket in sockets { close(socket) } }
            try #require(sockets.count == 100)
            // Time for the node to accept them.
            try await Task.sleep(for: .milliseconds(300))
            kill(try cluster.pid(1), SIGKILL)
            #expect(ended(sockets[50]), "the connection did not end")
            let again = NodeView.connect(cluster.basePort)
            #expect(again == nil, "the dead node's listener was still there in round \(round)")
            if let again { close(again) }
            let restarted = try cluster.run("cluster", "restart", "1")
            #expect(restarted.status == 0, "\(restarted.all)")
        }
    }

    /// Waits for the end of a connection, ten seconds at most, since a process takes its time to die on a busy machine.
    private func ended(_ socket: CInt) -> Bool {
        var byte: UInt8 = 0
        for _ in 0..<5 {
            let count = recv(socket, &byte, 1, 0)
            if count == 0 || (count < 0 && errno == ECONNRESET) { return true }
        }
        return false
    }
}
