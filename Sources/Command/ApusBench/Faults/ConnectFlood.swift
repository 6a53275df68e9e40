import ApusCore
import NIOCore
import NIOPosix
import Synchronization

/// TCP connections that say nothing, kept at a number: one that is closed is opened again.
///
/// Concurrency model: connections live on the one event loop of the flood; methods may be called from any task.
final class ConnectFlood: Sendable {
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let target: SocketAddress
    private let isOver = Mutex(false)

    /// - Throws: what the address's name gives.
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
                // A second later, so that a listener that closes at once is not asked without end.
                loop.assumeIsolated().scheduleTask(in: .seconds(1)) { self.open() }
            }
    }
}
