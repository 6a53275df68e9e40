package import ApusCore
package import ApusWyoming
package import Logging
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A provider of speech: a Wyoming server with the engines of this machine.
///
/// Nodes have no engines in their process: a decoder that crashes or leaks takes only its provider along, and a
/// supervisor starts it again. A provider has no state but grammars, which clients send again.
package final class Provider: Sendable {
    private let service: ProviderService
    private let listener: any Channel
    private let group: MultiThreadedEventLoopGroup
    /// Where it listens; with the port that the system has chosen.
    package let address: WyomingAddress

    /// Listens.
    ///
    /// - Throws: 10019 if the address is in use or cannot be used.
    package init(
        _ address: WyomingAddress, recognition: RecognitionEngine?, speech: SpeechEngine?, limits: ProviderLimits,
        log: Logger
    ) async throws(ApusError) {
        // A program that reads no more, and a client that has left, are seen by the result of the write.
        signal(SIGPIPE, SIG_IGN)
        let service = try ProviderService(recognition: recognition, speech: speech, limits: limits, log: log)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        (self.service, self.group) = (service, group)
        let bootstrap = ServerBootstrap(group: group)
            .serverChannelOption(.backlog, value: 256)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelOption(
                .writeBufferWaterMark, value: .init(low: Self.outboundByteCountMax / 4, high: Self.outboundByteCountMax)
            )
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(ProviderHandler(service: service))
                }
            }
        do {
            switch address {
            case .unix(let path):
                // A socket of a process that was killed stays behind.
                listener = try await bootstrap.bind(unixDomainSocketPath: path, cleanupExistingSocketFile: true).get()
                chmod(path, 0o600)
                self.address = address
            case .tcp(let wanted):
                listener = try await bootstrap.bind(host: wanted.host, port: wanted.port).get()
                let port = listener.localAddress?.port ?? wanted.port
                self.address = .tcp(HostPort(host: wanted.host, port: port))
            }
        } catch {
            try? await group.shutdownGracefully()
            throw ApusError(.addressInUse, "\(address) cannot be opened: \(error)")
        }
    }

    /// What may be written to a client that does not read.
    private static let outboundByteCountMax = 8 << 20

    /// Serves until ``stop()``, or until a bound of the process is reached. Then it takes nothing more, waits for what
    /// is running, and closes its connections.
    ///
    /// - Returns: true if it should be started again.
    package func run() async -> Bool {
        let ending = await service.waitForEnd()
        try? await listener.close()
        if case .unix(let path) = address { unlink(path) }
        try? await group.shutdownGracefully()
        service.stopThreads()
        return ending == .worn
    }

    /// Ends ``run()``.
    package func stop() { service.end(.stopped) }
}
