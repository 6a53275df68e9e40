import ApusCore
import ApusListener
import Glibc
import NIOCore
import NIOPosix
import Synchronization

/// The client listener's socket. One loop at a time accepts on it, chosen by ``LoopPlacement``.
/// Each loop has a descriptor of the same socket. NIO registers a connection with the loop that accepted it and cannot
/// move it later, so the choice is which loop accepts.
/// Concurrency model: may be called from any thread. Loops report their load, and each reads the choice on its own
/// thread.
final class Listeners: Sendable {
    private struct State {
        var loads: [LoopPlacement.Load] = []
        var accepting = 0
        var channels: [any Channel] = []
    }

    private let state = Mutex(State())
    private let placement: LoopPlacement
    /// A descriptor that is released to refuse connections if the system has no other.
    private let reserve = ReservedDescriptors()
    private let log: LogLimiter

    init(placement: LoopPlacement, loopCount: Int, log: LogLimiter) {
        self.placement = placement
        self.log = log
        state.withLock { $0.loads = Array(repeating: .init(), count: loopCount) }
    }

    /// Opens the listener on each of the loops and returns its address. Rethrows the errors of binding.
    func open(
        _ bind: HostPort, on loops: [any EventLoop], bootstrap: @Sendable (any EventLoop) -> ServerBootstrap
    ) async throws -> SocketAddress? {
        let first = try await guarded(0, bootstrap(loops[0])).bind(host: bind.host, port: bind.port).get()
        var channels = [first]
        state.withLock { $0.channels = channels }
        for (index, loop) in loops.enumerated().dropFirst() {
            let descriptor = try await loops[0].submit {
                try first.pipeline.syncOperations.withUnsafeTransportIfAvailable(of: CInt.self) { dup($0) } ?? -1
            }.get()
            channels.append(
                try await guarded(index, bootstrap(loop)).serverChannelOption(.autoRead, value: false)
                    .withBoundSocket(descriptor).get()
            )
            // A channel that is created from a descriptor reduces the socket's backlog to its own default.
            listen(descriptor, Self.backlog)
        }
        state.withLock { $0.channels = channels }
        apply()
        return first.localAddress
    }
    static let backlog: CInt = 4096

    private func guarded(_ index: Int, _ bootstrap: ServerBootstrap) -> ServerBootstrap {
        bootstrap.serverChannelInitializer { [self] channel in
            channel.eventLoop.makeCompletedFuture {
                try channel.pipeline.syncOperations.addHandler(
                    ListenerGuard(listener: "clients", reserve: reserve, log: log) { [weak self] in
                        self?.state.withLock { $0.accepting == index } ?? false
                    })
            }
        }
    }

    /// Updates the load of a loop.
    func report(_ load: LoopPlacement.Load, of index: Int) {
        let isMoved = state.withLock { state in
            state.loads[index] = load
            let choice = placement.choice(among: state.loads)
            defer { state.accepting = choice }
            return choice != state.accepting
        }
        if isMoved { apply() }
    }

    /// Each loop checks whether it is the one that accepts. A loop's last check follows the last choice.
    private func apply() {
        let channels = state.withLock { $0.channels }
        for (index, channel) in channels.enumerated() {
            channel.eventLoop.execute { [self] in
                let isAccepting = state.withLock { $0.accepting == index }
                try? channel.syncOptions?.setOption(.autoRead, value: isAccepting)
            }
        }
    }

    func close() {
        let channels = state.withLock { state in
            defer { state.channels = [] }
            return state.channels
        }
        for channel in channels { channel.close(promise: nil) }
    }
}
