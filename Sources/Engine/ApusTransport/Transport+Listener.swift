import ApusCore
import ApusListener
import CApusNet
import CoreMetrics
import Logging
import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The listener for other nodes. Some errors of accept(2) close a channel for good, and peers declare a node dead that
/// refuses connections. A listener that closed is therefore opened again: at once, then after `listenBackoffMin`,
/// doubled up to `listenBackoffMax`, until it succeeds.
extension Transport {
    private static let listenBackoffMin = Duration.milliseconds(10)
    private static let listenBackoffMax = Duration.milliseconds(200)

    func listen() async throws(ApusError) -> any Channel {
        let address = configuration.bind
        do {
            return try await bind(HostPort(host: address.host, port: address.port)).get()
        } catch let error as IOError where error.errnoCode == EADDRINUSE {
            throw ApusError(.addressInUse, "the node transport's address \(address) is in use")
        } catch {
            throw ApusError(.configurationInvalid, "the node transport cannot be opened at \(address): \(error)")
        }
    }

    private func bind(_ address: HostPort) -> EventLoopFuture<any Channel> {
        let socket: CInt
        do {
            socket = try Self.socket(at: address)
        } catch {
            return group.next().makeFailedFuture(error)
        }
        return ServerBootstrap(group: group)
            .serverChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    closeOnExec(channel)
                    try channel.pipeline.syncOperations.addHandler(
                        ListenerGuard(listener: "nodes", reserve: ReservedDescriptors(), log: self.limited))
                }
            }
            .childChannelOption(.tcpOption(.tcp_nodelay), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture { try self.accept(channel) }
            }
            .withBoundSocket(socket)
    }

    /// When this process is killed, the kernel closes this socket before the links. A peer that sees its link end dials
    /// again, is refused at once, and concludes that the process is dead (D4).
    private static func socket(at address: HostPort) throws -> CInt {
        let resolved = try SocketAddress.makeAddressResolvingHost(address.host, port: address.port)
        let result = resolved.withSockAddr { pointer, length in apus_listener_open(pointer, socklen_t(length)) }
        guard result >= 0 else { throw IOError(errnoCode: -result, reason: "bind") }
        return result
    }

    /// Opens the listener again whenever it closes by itself.
    func keepOpen(_ listener: any Channel) {
        let bound = HostPort(
            host: configuration.bind.host, port: listener.localAddress?.port ?? configuration.bind.port)
        listener.closeFuture.whenComplete { _ in
            let isLost = self.state.withLock { $0.phase == .running && $0.listener === listener }
            guard isLost else { return }
            self.logger.error("The node transport's listener closed", metadata: [LogKey.address: "\(bound)"])
            self.metrics.listenersLost.increment()
            self.onEvent(.listening(false))
            self.reopen(bound, on: listener.eventLoop, backoff: Self.listenBackoffMin)
        }
    }

    private func reopen(_ address: HostPort, on loop: any EventLoop, backoff: Duration) {
        bind(address).whenComplete { result in
            switch result {
            case .success(let listener):
                let isWanted = self.state.withLock { state in
                    guard state.phase == .running else { return false }
                    state.listener = listener
                    return true
                }
                guard isWanted else { return listener.close(promise: nil) }
                self.onEvent(.listening(true))
                self.keepOpen(listener)
            case .failure:
                guard self.state.withLock({ $0.phase == .running }) else { return }
                loop.scheduleTask(in: TimeAmount(backoff)) {
                    self.reopen(address, on: loop, backoff: min(backoff * 2, Self.listenBackoffMax))
                }
            }
        }
    }
}
