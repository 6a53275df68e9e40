package import ApusClientAPI
package import ApusCluster
package import ApusEvents
package import ApusNodeConfiguration
package import ApusStorage
package import Logging
package import ServiceLifecycle

/// A service that a node carries, with its records, its kinds of entities, and its own work (D15, D16).
/// All nodes of a cluster carry the same services, because a shard's entities may be active at any of them.
package protocol NodeService: Sendable {
    /// The collections of its recorded entities and its other records.
    var records: RecordCatalogue { get }

    /// Registers its kinds of entities. Called once, before the node is a member.
    func register(with runtime: EntityRuntime)

    /// Registers its requests and events for clients, over the native protocol, WebSocket and REST (D17). Called once,
    /// before the first client connects.
    func addRequests(to api: inout ClientAPI, of node: NodeContext)

    /// Handlers of raw data that apps and devices send, by the name in their URLs (IV-D12).
    func serverHandlers(of node: NodeContext) -> [String: ServerHandler]

    /// Its own work, such as a listener. Started when the node is a member, and stopped after its shards were handed
    /// over.
    func work(of node: NodeContext) -> [any Service]
}

extension NodeService {
    package var records: RecordCatalogue { RecordCatalogue([]) }
    package func addRequests(to api: inout ClientAPI, of node: NodeContext) {}
    package func serverHandlers(of node: NodeContext) -> [String: ServerHandler] { [:] }
    package func work(of node: NodeContext) -> [any Service] { [] }
}

/// What a service's own work can use of the node that carries it.
package struct NodeContext: Sendable {
    /// Sends messages to entities, at whichever node they are active.
    package let entities: EntityRegistry
    package let records: any RecordStore
    package let configuration: NodeConfiguration
    /// Publishes to clients at any node.
    package let topics: TopicService
    package let log: Logger
}
