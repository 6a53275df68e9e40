package import ApusCluster
package import ApusCore
package import ApusSessions
package import ApusStorage
package import Logging
package import NIOCore

/// The parts of a node that its services use.
///
/// Isolation: immutable; each part guards its own state.
package struct NodeContext: Sendable {
    /// The cluster as this node sees it, with its clock.
    package let view: ClusterView
    /// Sends messages to entities at any node.
    package let entities: EntityRegistry
    /// Services register their kinds of entities here.
    package let runtime: EntityRuntime
    /// Services register their messages between nodes here.
    package let dispatcher: NodeDispatcher
    package let records: any RecordStore
    package let sessions: SessionService
    /// Publishes events to clients at any node.
    package let topics: TopicService
    /// The ports that services provide to each other.
    package let ports: ServicePorts
    /// The event loops of clients and channels.
    package let group: any EventLoopGroup
    /// What keeps the node from full service. A service raises and clears its own.
    package let conditions: NodeConditions
    package let log: Logger
    /// Limits log messages that unauthenticated traffic can cause.
    package let limited: LogLimiter

    package init(
        view: ClusterView, entities: EntityRegistry, runtime: EntityRuntime, dispatcher: NodeDispatcher,
        records: any RecordStore, sessions: SessionService, topics: TopicService, ports: ServicePorts,
        group: any EventLoopGroup, conditions: NodeConditions, log: Logger, limited: LogLimiter
    ) {
        (self.view, self.entities, self.runtime, self.dispatcher) = (view, entities, runtime, dispatcher)
        (self.records, self.sessions, self.topics, self.ports) = (records, sessions, topics, ports)
        (self.group, self.conditions, self.log, self.limited) = (group, conditions, log, limited)
    }
}
