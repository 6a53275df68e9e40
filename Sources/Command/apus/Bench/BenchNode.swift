import ApusCluster
import ApusCore
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOPosix

/// A node of a measurement: transport and entities, with a map in which the node `b` owns everything.
struct BenchNode {
    static let cluster = ClusterID(unchecked: "bench")

    let transport: Transport
    let registry: EntityRegistry

    /// - Parameter directory: holds `ca.pem`, `NAME.pem` and `NAME.key`.
    init(_ name: String, directory: String) {
        let id = NodeID(name: NodeName(unchecked: name), incarnation: 1)
        let tls = TransportTLS(
            authority: .file("\(directory)/ca.pem"), certificateChain: .file("\(directory)/\(name).pem"),
            privateKey: .file("\(directory)/\(name).key"))
        let dispatcher = NodeDispatcher()
        let logger = Logger(label: "apus.bench", factory: { StreamLogHandler.standardError(label: $0) })
        transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls), identity: id,
            cluster: Self.cluster, group: MultiThreadedEventLoopGroup.singleton, control: dispatcher,
            media: IdleMediaLanes(), onEvent: { _ in }, logger: logger)
        let view = ClusterView(local: id, map: Self.map())
        registry = EntityRegistry(view: view, transport: transport, logger: logger)
        ProbeEntity.register(in: registry)
        dispatcher.connect(registry)
    }

    /// Certificates for two nodes and for the system that is measured beside them.
    static func mint(into directory: String) throws {
        let authority = try ClusterPKI.makeAuthority(cluster: cluster)
        try ClusterPKI.write(authority, certificate: "\(directory)/ca.pem", key: "\(directory)/ca.key")
        for name in ["a", "b"] {
            let node = try ClusterPKI.issueNode(NodeName(unchecked: name), authority: authority)
            try ClusterPKI.write(node, certificate: "\(directory)/\(name).pem", key: "\(directory)/\(name).key")
        }
    }

    private static func map() -> ClusterMap {
        var map = ClusterMap(cluster: cluster)
        map.revision = 1
        let address = HostPort(host: "127.0.0.1", port: 1)
        let addresses = NodeAddresses(transport: address, clients: address, http: address)
        map.members = ["a", "b"].map {
            Member(id: NodeID(name: NodeName(unchecked: $0), incarnation: 1), state: .up, addresses: addresses)
        }
        let owner = MemberSlot(rawValue: 1)
        map.shards = Array(repeating: ShardAssignment(owner: owner, epoch: 1), count: ShardID.count)
        return map
    }

    private struct IdleMediaLanes: MediaLaneDelegate {
        func opened(_ connection: MediaConnection) {}
        func received(_ frame: LinkFrame, on connection: MediaConnection) {}
        func readCompleted(_ connection: MediaConnection) {}
        func writabilityChanged(_ connection: MediaConnection) {}
        func closed(_ connection: MediaConnection) {}
    }
}
