import ApusCore
import ApusNodeConfiguration
import ApusTransport
import CoreMetrics
import Logging
import ServiceLifecycle
import Synchronization
import UnixSignals

extension NodeConditions.Kind {
    /// The last reload was refused: the node runs with the keys and certificates from before.
    static let reloadFailed = Self("reload_failed", isUnhealthy: false)
    /// Other nodes refuse this node's certificate as revoked.
    static let certificateRevoked = Self("certificate_revoked", isUnhealthy: true)
}

/// At each SIGHUP, reads the node's certificates, keys, token keys, list of revoked certificates, and the relay's
/// secrets, users and lists of peers again, and the files of services such as `dialogs.templates`, until the node
/// stops.
///
/// New connections use the new ones; connections and sessions continue. If anything cannot be used, nothing changes:
/// the log and the condition `reload_failed` have the reason.
struct NodeReload: Service {
    private let parts: NodeParts
    private let read: NodeConfigurationSource
    private let signals: UnixSignalsSequence
    private let log: Logger

    /// Traps SIGHUP: from now on it does not end the process.
    init(_ parts: NodeParts, log: Logger, read: @escaping NodeConfigurationSource) async {
        (self.parts, self.log, self.read) = (parts, log, read)
        signals = await UnixSignalsSequence(trapping: .sighup)
    }

    func run() async throws {
        await cancelWhenGracefulShutdown {
            for await _ in signals { await reload() }
        }
    }

    private func reload() async {
        do throws(ApusError) {
            try await parts.reload(try read())
        } catch {
            count("refused")
            parts.conditions.raise(
                .reloadFailed,
                "the last reload was refused, and nothing has changed: \(error.message) (\(error.code.number)); "
                    + "correct it and reload again")
            return log.error("The reload was refused; nothing has changed", metadata: Logger.facts(of: error))
        }
        count("applied")
        parts.conditions.clear(.reloadFailed)
        log.notice("The node read its keys and certificates again")
    }

    private func count(_ outcome: String) {
        Counter(label: "apus_node_reloads_total", dimensions: [("outcome", outcome)]).increment()
    }
}

/// Raises a condition while other nodes refuse this node's certificate as revoked.
///
/// Isolation: any thread.
final class RevokedNotice: Sendable {
    private let conditions: NodeConditions
    private let refusing = Mutex<Set<NodeName>>([])

    init(_ conditions: NodeConditions) { self.conditions = conditions }

    func received(_ event: TransportEvent) {
        let names: Set<NodeName>
        switch event {
        case .refusedAsRevoked(let peer):
            names = refusing.withLock { refusing in
                refusing.insert(peer.name)
                return refusing
            }
        case .linkUp(let peer, _):
            let left = refusing.withLock { $0.remove(peer.name) == nil ? nil : $0 }
            guard let left else { return }
            names = left
        default: return
        }
        let list = names.sorted().map(\.rawValue).joined(separator: ", ")
        conditions.set(
            .certificateRevoked,
            names.isEmpty
                ? nil
                : "nodes refuse this node's certificate as revoked (\(ErrorCode.certificateRevoked.number)): \(list); "
                    + "install a new certificate and reload, or stop this node")
    }
}
