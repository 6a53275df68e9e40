package import ApusClientAPI
package import ApusCluster
package import ApusStorage
package import Logging
package import ServiceLifecycle

/// A service that a node carries: what it keeps, its kinds of entities, and its own work (D15, D16).
///
/// All nodes of a cluster carry the same services, since a shard's entities may live at any of them.
package protocol NodeService: Sendable {
    /// The collections of its recorded entities and of whatever else it keeps.
    var records: RecordCatalogue { get }

    /// Registers its kinds of entities. Called once, before the node is a member.
    func register(with runtime: EntityRuntime)

    /// Registers what clients may ask it and hear from it, over the native protocol, WebSocket and REST (D17). Called
    /// once, before the first client comes.
    func addRequests(to api: inout ClientAPI, of node: NodeContext)

    /// Its own work, such as a listener: started when the node is a member, stopped when its shards were handed over.
    func work(of node: NodeContext) -> [any Service]
}

extension NodeService {
    package var records: RecordCatalogue { RecordCatalogue([]) }
    package func addRequests(to api: inout ClientAPI, of node: NodeContext) {}
    package func work(of node: NodeContext) -> [any Service] { [] }
}

/// What a service's own work sees of the node that carries it.
package struct NodeContext: Sendable {
    /// Sends messages to entities, wherever they live.
    package let entities: EntityRegistry
    package let records: any RecordStore
    package let configuration: NodeConfiguration
    /// Publishes to clients at any node.
    package let topics: TopicService
    package let log: Logger
}
