import ApusCore
import ApusTraversal
import Logging
import ServiceLifecycle
import UnixSignals

/// Reads a relay's secrets, users, lists of peers and certificate anew at each SIGHUP, until the node leaves.
///
/// Where something cannot be read nothing changes, and the log says why. No allocation ends.
struct RelayReload: Service {
    private let relay: RelayService?
    private let read: RelaySource
    private let signals: UnixSignalsSequence
    private let log: Logger

    /// From here on SIGHUP does not end the process.
    ///
    /// - Parameter relay: nil for a node that relays nothing, and has nothing to read anew.
    init(relay: RelayService?, log: Logger, read: @escaping RelaySource) async {
        self.relay = relay
        self.read = read
        self.log = log
        signals = await UnixSignalsSequence(trapping: .sighup)
    }

    func run() async throws {
        await cancelWhenGracefulShutdown {
            for await _ in signals { reload() }
        }
    }

    private func reload() {
        guard let relay else { return log.notice("There is nothing to read anew: this node relays nothing.") }
        do throws(ApusError) {
            let (configuration, keys) = try read()
            try relay.reload(configuration, keys)
            log.notice(
                "The relay has read its secrets, users, lists of peers and certificate anew.",
                metadata: [LogKey.count: "\(keys.users.names.count) users"])
        } catch {
            log.error("The relay cannot be reloaded; nothing has changed.", metadata: Logger.facts(of: error))
        }
    }
}
