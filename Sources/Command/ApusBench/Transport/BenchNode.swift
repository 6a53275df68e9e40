import ApusCluster
import ApusCore
import ApusStorage
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOPosix

/// A node of a benchmark: transport, replication and entities, with a map in which the node `b` owns all shards.
struct BenchNode {
    static let cluster = ClusterID(unchecked: "bench")

    let transport: Transport
    let view: ClusterView
    let registry: EntityRegistry
    let runtime: EntityRuntime

    /// - Parameters:
    ///   - directory: contains `ca.pem`, `NAME.pem` and `NAME.key`.
    ///   - standby: the standby of all shards; nil for none.
    ///   - records: the store of recorded entities.
    ///   - port: the port at which it listens for the other node; 0 selects a free port.
    init(
        _ name: String, directory: String, standby: String? = nil, records: any RecordStore = MemoryRecordStore(),
        port: Int = 0, configuration: EntityRegistry.Configuration = .init()
    ) {
        let id = NodeID(name: NodeName(unchecked: name), incarnation: 1)
        let tls = TransportTLS(
            authority: .file("\(directory)/ca.pem"), certificateChain: .file("\(directory)/\(name).pem"),
            privateKey: .file("\(directory)/\(name).key"))
        let dispatcher = NodeDispatcher()
        let logger = Logger(label: "apus.bench", factory: { StreamLogHandler.standardError(label: $0) })
        let view = ClusterView(local: id, map: Self.map(standby: standby))
        let group = MultiThreadedEventLoopGroup.singleton
        let links = TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: port), tls: tls)
        var replication = ReplicaConfiguration()
        replication.laneCount = links.controlLaneCount
        let replicas = ReplicaService(configuration: replication, view: view, loop: group.next(), logger: logger)
        transport = Transport(
            configuration: links, identity: id, cluster: Self.cluster, group: group,
            control: ReplicaRouter(replicas, next: dispatcher),
            media: IdleMediaLanes(), onEvent: { replicas.received($0) }, logger: logger)
        replicas.connect(transport)
        registry = EntityRegistry(configuration: configuration, view: view, transport: transport, logger: logger)
        runtime = EntityRuntime(registry: registry, replicas: replicas, records: records, logger: logger)
        self.view = view
        ProbeEntity.register(in: registry)
        runtime.register(.probe(.unkeptProbe, .none))
        if standby != nil { runtime.register(.probe(.replicatedProbe, .replicated)) }
        runtime.register(.probe(.recordedProbe, .recorded), in: ProbeRecords.collection)
        dispatcher.connect(registry)
    }

    /// Issues certificates for two nodes, and for the system that is measured in comparison.
    static func mint(into directory: String) throws {
        let authority = try ClusterPKI.makeAuthority(cluster: cluster)
        try ClusterPKI.write(authority, certificate: "\(directory)/ca.pem", key: "\(directory)/ca.key")
        for name in ["a", "b"] {
            let node = try ClusterPKI.issueNode(NodeName(unchecked: name), authority: authority)
            try ClusterPKI.write(node, certificate: "\(directory)/\(name).pem", key: "\(directory)/\(name).key")
        }
    }

    static func map(standby: String?) -> ClusterMap {
        var map = ClusterMap(cluster: cluster)
        map.revision = 1
        let address = HostPort(host: "127.0.0.1", port: 1)
        let addresses = NodeAddresses(transport: address, clients: address, http: address)
        map.members = ["a", "b"].map {
            Member(id: NodeID(name: NodeName(unchecked: $0), incarnation: 1), state: .up, addresses: addresses)
        }
        let owner = MemberSlot(rawValue: 1)
        let second = standby == "a" ? MemberSlot(rawValue: 0) : .none
        map.shards = Array(
            repeating: ShardAssignment(owner: owner, standby: second, epoch: 1), count: ShardID.count)
        return map
    }
}
