import ApusCore
import ApusTraversal
package import Logging
import ServiceLifecycle
import UnixSignals

/// At each SIGHUP, reads the secrets, users, lists of peers and certificate of a standalone relay again, until
/// it stops.
/// If something cannot be read, its part does not change and the log has the reason. No allocation ends.
package struct RelayReload: Service {
    private let relay: RelayService
    private let read: RelaySource
    private let signals: UnixSignalsSequence
    private let log: Logger

    /// Traps SIGHUP: from now on it does not end the process.
    package init(relay: RelayService, log: Logger, read: @escaping RelaySource) async {
        self.relay = relay
        self.read = read
        self.log = log
        signals = await UnixSignalsSequence(trapping: .sighup)
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            for await _ in signals { reload() }
        }
    }

    private func reload() {
        do throws(ApusError) {
            let (configuration, keys) = try read()
            try relay.reload(configuration, keys)
            log.notice(
                "The relay read its secrets, users, lists of peers and certificate again",
                metadata: [LogKey.count: "\(keys.users.names.count) users"])
        } catch {
            log.error("The relay cannot be reloaded; nothing has changed", metadata: Logger.facts(of: error))
        }
    }
}
