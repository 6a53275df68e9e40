import CoreMetrics
package import Logging
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Something that keeps a node from its full service at the moment: `/healthz`, `/v1/status` and
/// `apus cluster status` show it, with the same words as the log.
public struct NodeCondition: Codable, Sendable, Equatable {
    /// What is wrong, as a stable name; the label of the metric `apus_node_condition` too.
    public var type: String
    /// A sentence for a person: what is wrong and what to do. Holds no secrets.
    public var message: String
    /// When it began, in Unix seconds.
    public var since: Int64
    /// `/healthz` answers 503 while the condition lasts.
    public var unhealthy: Bool

    public init(type: String, message: String, since: Int64, unhealthy: Bool) {
        self.type = type
        self.message = message
        self.since = since
        self.unhealthy = unhealthy
    }
}

/// The conditions of this node, by type: raised and cleared by its parts, read by its reports.
///
/// A condition is logged once when it begins and once when it ends, however often it is raised, and is a gauge of
/// its own: `apus_node_condition{type="…"}`, 1 while it lasts.
///
/// Concurrency: any thread; the list sits behind a `Mutex`.
package final class NodeConditions: Sendable {
    /// The types that exist, so that the list is bounded.
    package struct Kind: Sendable, Hashable {
        package let type: String
        /// `/healthz` answers 503 while the condition lasts.
        package let isUnhealthy: Bool

        package init(_ type: String, isUnhealthy: Bool) {
            self.type = type
            self.isUnhealthy = isUnhealthy
        }
    }

    private let log: Logger
    private let current = Mutex<[NodeCondition]>([])

    package init(log: Logger) { self.log = log }

    /// The conditions that last, oldest first.
    package var all: [NodeCondition] { current.withLock { $0 } }

    /// The condition began, or lasts; a new message replaces the earlier one.
    package func raise(_ kind: Kind, _ message: String) {
        let isNew = current.withLock { current in
            if let index = current.firstIndex(where: { $0.type == kind.type }) {
                current[index].message = message
                current[index].unhealthy = kind.isUnhealthy
                return false
            }
            current.append(
                NodeCondition(
                    type: kind.type, message: message, since: Int64(time(nil)), unhealthy: kind.isUnhealthy))
            return true
        }
        guard isNew else { return }
        gauge(kind).record(1)
        log.warning(
            "A condition of this node began", metadata: [LogKey.condition: "\(kind.type)", LogKey.reason: "\(message)"])
    }

    /// The condition began or lasts, with a message, or ended, without one.
    package func set(_ kind: Kind, _ message: String?) {
        if let message { raise(kind, message) } else { clear(kind) }
    }

    /// The condition ended; harmless where it did not last.
    package func clear(_ kind: Kind) {
        let wasRaised = current.withLock { current in
            let before = current.count
            current.removeAll { $0.type == kind.type }
            return current.count < before
        }
        guard wasRaised else { return }
        gauge(kind).record(0)
        log.notice("A condition of this node ended", metadata: [LogKey.condition: "\(kind.type)"])
    }

    private func gauge(_ kind: Kind) -> Gauge {
        Gauge(label: "apus_node_condition", dimensions: [("type", kind.type)])
    }
}
