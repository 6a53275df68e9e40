import ApusCore
import ApusHTTP
import ApusTraversal
import Logging
import ServiceLifecycle
import UnixSignals

/// Reads the HTTP listener's certificate, and a relay's secrets, users, lists of peers and certificate anew at each
/// SIGHUP, until the node leaves.
///
/// Where something cannot be read nothing changes, and the log says why. No allocation ends.
struct RelayReload: Service {
    private let relay: RelayService?
    private let http: HTTPListener?
    private let read: RelaySource
    private let signals: UnixSignalsSequence
    private let log: Logger

    /// From here on SIGHUP does not end the process.
    ///
    /// - Parameters:
    ///   - relay: nil for a node that relays nothing.
    ///   - http: nil for a relay that runs alone.
    init(relay: RelayService?, http: HTTPListener? = nil, log: Logger, read: @escaping RelaySource) async {
        self.relay = relay
        self.http = http
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
        do throws(ApusError) {
            try http?.reloadCertificate()
        } catch {
            log.error("The HTTP certificate cannot be reloaded; it has not changed", metadata: Logger.facts(of: error))
        }
        guard let relay else { return log.notice("The HTTP certificate was read again") }
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
