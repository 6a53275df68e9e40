package import ApusConfiguration
package import ApusCore
package import ApusStorage
package import ServiceLifecycle

/// A service of a node, defined by Apus or by the binary that the node runs (D15, D16, D17, docs/decisions/24).
///
/// All nodes of a cluster have the same services, because the entities of a shard may be active at any node. The
/// services are created in the order of a list, before the node is a member.
package protocol NodeService: Sendable {
    /// The service's part of the node's configuration.
    associatedtype Configuration: ServiceConfiguration = NoConfiguration

    /// The name of the service, which is the title of its metrics in the reference.
    static var name: String { get }

    /// The collections of its recorded entities and of its other records.
    static var records: RecordCatalogue { get }

    /// The metrics that the service exports (D13).
    static var metrics: [MetricDescription] { get }

    /// Creates the service of a node. It registers its kinds of entities, its messages between nodes and its ports. It
    /// can use the ports of services before it in the list at once, and those of later services when all services
    /// exist.
    ///
    /// - Throws: an error that ends the node's start, such as 10018 if a service is missing.
    init(_ configuration: Configuration, of node: NodeContext) throws(ApusError)

    /// Adds the service's requests and topics for clients, over the native protocol, WebSocket and REST. Called once,
    /// when all services exist.
    func add(to api: inout ClientAPI)

    /// Reads the service's files again at SIGHUP, such as sentences. Returns what uses them, which is called if no part
    /// of the node refuses the reload.
    ///
    /// - Throws: 10022 with the reason if they cannot be used. Nothing has changed then.
    func prepareReload() async throws(ApusError) -> @Sendable () -> Void

    /// The service's background work, such as a queue or a listener. It is started in the order of the list when the
    /// node is a member. It is stopped in the reverse order, after the node's shards were handed over.
    var work: [any Service] { get }
}

extension NodeService {
    package static var records: RecordCatalogue { RecordCatalogue([]) }
    package static var metrics: [MetricDescription] { [] }
    package func add(to api: inout ClientAPI) {}
    package func prepareReload() async throws(ApusError) -> @Sendable () -> Void { {} }
    package var work: [any Service] { [] }
}

/// The part of a node's configuration that one service reads.
package protocol ServiceConfiguration: Sendable {
    /// The defaults.
    init()

    /// Reads the keys of the service. No other part reads them.
    ///
    /// - Throws: 10022 with the file, the line and the key.
    mutating func read(_ reader: inout ConfigurationReader) throws(ApusError)
}

/// The configuration of a service without keys.
package struct NoConfiguration: ServiceConfiguration {
    package init() {}
    package mutating func read(_ reader: inout ConfigurationReader) {}
}
