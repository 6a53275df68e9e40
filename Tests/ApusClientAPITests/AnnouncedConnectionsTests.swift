import ApusClientAPI
import ApusCluster
import ApusCore
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("Connections that are announced to their entities")
struct AnnouncedConnectionsTests {
    private final class Connection: ClientConnection {
        let eventLoop: any EventLoop = MultiThreadedEventLoopGroup.singleton.next()
        let protocolName = "test"
        private let closed = Atomic(false)

        var isClosed: Bool { closed.load(ordering: .relaxed) }
        func close() { closed.store(true, ordering: .relaxed) }
        func received(_ event: ClientEventFrame) {}
        func begin(_ topic: String, at position: TopicPosition?) {}
    }

    private static func connections(
        announce: @escaping @Sendable () throws(ApusError) -> Void
    ) -> AnnouncedConnections<String> {
        let view = ClusterView(
            local: NodeID(name: NodeName(unchecked: "a"), incarnation: 1),
            map: ClusterMap(cluster: ClusterID(unchecked: "test")))
        return AnnouncedConnections(
            view: view, shard: { ShardID(key: $0) },
            announce: { _, _, _ throws(ApusError) in try announce() }, withdraw: { _, _ in })
    }

    @Test(
        "A connection that ends while it is announced is not kept, whatever the announcement ends with",
        arguments: [nil, ErrorCode.cancelled, .linkLost, .overloaded])
    func ended(code: ErrorCode?) async throws {
        let connection = Connection()
        let connections = Self.connections { () throws(ApusError) in
            connection.close()
            if let code { throw ApusError(code) }
        }
        try? await connections.listen(connection, "bell", timeout: .seconds(1))
        #expect(connections.count == 0 && connections.number(of: connection) == nil)
    }

    @Test("A connection whose entity cannot be reached is announced again, one for which it has no room is not")
    func again() async throws {
        let (connection, other) = (Connection(), Connection())
        let code = Mutex(ErrorCode.linkLost)
        let count = Mutex(0)
        let connections = Self.connections { () throws(ApusError) in
            count.withLock { $0 += 1 }
            throw ApusError(code.withLock { $0 })
        }
        let running = Task { await connections.run() }
        defer { running.cancel() }
        try? await connections.listen(connection, "bell", timeout: .seconds(1))
        #expect(connections.number(of: connection) != nil)
        for _ in 0..<200 where count.withLock({ $0 }) < 2 { try await Task.sleep(for: .milliseconds(20)) }
        #expect(count.withLock { $0 } >= 2)
        // It has ended, and nobody has noticed.
        connection.close()
        for _ in 0..<200 where connections.count > 0 { try await Task.sleep(for: .milliseconds(20)) }
        #expect(connections.count == 0)

        code.withLock { $0 = .overloaded }
        await #expect(throws: ApusError(.overloaded)) {
            try await connections.listen(other, "bell", timeout: .seconds(1))
        }
        #expect(connections.number(of: other) == nil)
    }
}
