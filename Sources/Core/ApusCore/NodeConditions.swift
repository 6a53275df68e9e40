import CoreMetrics
package import Logging
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A condition that keeps a node from full service. `/healthz`, `/v1/status` and `apus cluster status` show it, with
/// the same text as the log.
public struct NodeCondition: Codable, Sendable, Equatable {
    /// A stable name. It is also the label of the metric `apus_node_condition`.
    public var type: String
    /// A message for people: what is wrong and what to do. It contains no secrets.
    public var message: String
    /// When it began, in Unix seconds.
    public var since: Int64
    /// True if `/healthz` answers 503 while the condition lasts.
    public var unhealthy: Bool

    public init(type: String, message: String, since: Int64, unhealthy: Bool) {
        self.type = type
        self.message = message
        self.since = since
        self.unhealthy = unhealthy
    }
}

/// The conditions of this node, by type. Its parts set and clear them, and its reports read them.
///
/// A condition is logged once when it begins and once when it ends, however often it is raised. It also has a gauge:
/// `apus_node_condition{type="…"}` is 1 while it lasts.
///
/// Concurrency: any thread; a `Mutex` guards the list.
package final class NodeConditions: Sendable {
    /// A type of condition. The types bound the list.
    package struct Kind: Sendable, Hashable {
        package let type: String
        /// True if `/healthz` answers 503 while the condition lasts.
        package let isUnhealthy: Bool

        package init(_ type: String, isUnhealthy: Bool) {
            self.type = type
            self.isUnhealthy = isUnhealthy
        }
    }

    private let log: Logger
    private let current = Mutex<[NodeCondition]>([])

    package init(log: Logger) { self.log = log }

    /// The current conditions, oldest first.
    package var all: [NodeCondition] { current.withLock { $0 } }

    /// The condition began, or lasts. A new message replaces the earlier one.
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

    /// The condition began or lasts (with a message), or ended (without one).
    package func set(_ kind: Kind, _ message: String?) {
        if let message { raise(kind, message) } else { clear(kind) }
    }

    /// The condition ended. Has no effect if it did not last.
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
