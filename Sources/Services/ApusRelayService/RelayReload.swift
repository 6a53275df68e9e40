import ApusCore
import ApusTraversal
package import Logging
import ServiceLifecycle
import UnixSignals

/// At each SIGHUP, reads the HTTP listener's certificate, and the relay's secrets, users, lists of peers and
/// certificate again, until the node stops.
/// If something cannot be read, its part does not change and the log has the reason. No allocation ends.
package struct RelayReload: Service {
    private let relay: RelayService?
    private let certificate: CertificateReload?
    private let read: RelaySource
    private let signals: UnixSignalsSequence
    private let log: Logger

    /// Traps SIGHUP: from now on it does not end the process.
    /// - Parameters:
    ///   - relay: nil for a node without a relay.
    ///   - certificate: reads the HTTP listener's certificate again; nil for a standalone relay.
    package init(
        relay: RelayService?, certificate: CertificateReload? = nil, log: Logger,
        read: @escaping RelaySource
    ) async {
        self.relay = relay
        self.certificate = certificate
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
            try certificate?()
        } catch {
            log.error("The HTTP certificate cannot be reloaded; it has not changed", metadata: Logger.facts(of: error))
        }
        guard let relay else { return log.notice("The HTTP certificate was read again") }
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
