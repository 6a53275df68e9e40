package import ApusCore
package import ApusWyoming
import ApusWyomingServer
package import Logging
import NIOCore
import NIOPosix

/// A provider of speech: a Wyoming server with the engines of this machine.
///
/// Nodes have no engines in their process: a decoder that crashes or leaks takes only its provider along, and a
/// supervisor starts it again. A provider has no state but grammars, which clients send again.
package final class Provider: Sendable {
    private let service: ProviderService
    private let listener: WyomingListener
    private let group: MultiThreadedEventLoopGroup
    /// Where it listens; with the port that the system has chosen.
    package var address: WyomingAddress { listener.address }

    /// Listens.
    ///
    /// - Throws: 10019 if the address is in use or cannot be used.
    package init(
        _ address: WyomingAddress, recognition: RecognitionEngine?, speech: SpeechEngine?, limits: ProviderLimits,
        log: Logger
    ) async throws(ApusError) {
        let service = try ProviderService(recognition: recognition, speech: speech, limits: limits, log: log)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        (self.service, self.group) = (service, group)
        do throws(ApusError) {
            listener = try await WyomingListener(address, connectionsMax: limits.connectionsMax, on: group, log: log) {
                ProviderConnection($0, service: service)
            }
        } catch {
            try? await group.shutdownGracefully()
            throw error
        }
    }

    /// Serves until ``stop()``, or until a bound of the process is reached. Then it takes nothing more, waits for what
    /// is running, and closes its connections.
    ///
    /// - Returns: true if it should be started again.
    package func run() async -> Bool {
        let ending = await service.waitForEnd()
        listener.refuse()
        await service.drain()
        await listener.close()
        try? await group.shutdownGracefully()
        service.stopThreads()
        return ending == .worn
    }

    /// Ends ``run()``.
    package func stop() { service.end(.stopped) }
}
