import ApusCore
import NIOCore
import NIOPosix
import Synchronization

/// A constant number of TCP connections that send nothing. A closed connection is replaced.
/// Concurrency model: connections are confined to the event loop of the flood; methods may be called from any task.
final class ConnectFlood: Sendable {
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let target: SocketAddress
    private let isOver = Mutex(false)

    /// - Throws: the errors of the address lookup.
    init(_ target: HostPort, count: Int) throws {
        self.target = try SocketAddress.makeAddressResolvingHost(target.host, port: target.port)
        for _ in 0..<count { open() }
    }

    func stop() async {
        isOver.withLock { $0 = true }
        try? await group.shutdownGracefully()
    }

    private func open() {
        guard !isOver.withLock({ $0 }) else { return }
        let loop = group.next()
        ClientBootstrap(group: loop).connectTimeout(.seconds(1)).connect(to: target)
            .flatMap { $0.closeFuture }
            .whenComplete { [self] _ in
                // After a second, so that a listener that closes at once is not flooded in a tight loop.
                loop.assumeIsolated().scheduleTask(in: .seconds(1)) { self.open() }
            }
    }
}
