import ApusCluster
import ApusCore
import ApusEtcd
import ApusNodeConfiguration
import ApusStorage
import ApusTransport
import Logging

/// The ownership store of a node, and the node's memory of it.
extension NodeParts {
    /// Opens the store, which must be the one that this node saw in its earlier runs.
    /// - Throws: 10020 if it is another one, an older copy, empty or damaged; 10021 if it cannot be used.
    static func ownership(
        _ configuration: NodeConfiguration, log: Logger
    ) async throws(ApusError) -> (store: any OwnershipStore, held: RevisionFile?) {
        let held = try OwnershipMemory.load(directory: configuration.dataDirectory, cluster: configuration.cluster)
        if let etcd = configuration.etcd {
            let store = try await EtcdOwnershipStore(etcd, cluster: configuration.cluster, seen: held?.mark, log: log)
            return (store, held)
        }
        var limits = LocalOwnershipLimits()
        limits.revisionsKept = configuration.ownershipRevisionsKept
        let store = try await LocalOwnershipStore(
            path: configuration.ownershipDirectory, cluster: configuration.cluster,
            importing: configuration.earlierOwnershipFile, seen: held?.mark, limits: limits)
        return (store, held)
    }

    /// The node's memory of the store, in its own directory.
    static func memory(_ configuration: NodeConfiguration, log: Logger) -> OwnershipMemory {
        OwnershipMemory(
            directory: configuration.dataDirectory, cluster: configuration.cluster,
            interval: configuration.ownershipMemoryInterval, log: log)
    }

    /// Writes every map that the node adopts to its memory.
    /// - Throws: 10020 if the map at the start does not follow from the node's last map in its earlier run.
    static func remember(
        _ view: ClusterView, held: RevisionFile?, in memory: OwnershipMemory, store: StoreID
    ) throws(ApusError) {
        let map = view.map
        if let held {
            let earlier = try ClusterMap(decoding: held.value, revision: held.revision, cluster: held.cluster)
            guard map.isSuccessor(of: earlier) else {
                throw ApusError(
                    .stateForeign,
                    "the ownership store has another history than this node has seen; `apus admin ownership "
                        + "restore` puts the newest map of the nodes back, or remove \(memory.path) if they are right")
            }
        }
        view.observe { _, map in
            memory.note(OwnershipMark(store: store, revision: map.revision)) { () throws(ApusError) in
                try map.encoded()
            }
        }
    }
}

extension NodeConfiguration {
    /// The configuration of the node's cluster service. The data directory is locked.
    func clusterService(keys: ClusterKeys) -> ClusterConfiguration {
        var service = ClusterConfiguration(cluster: cluster, node: node, keys: keys)
        service.endedProcesses = ProcessRecord(directory: dataDirectory).ended
        service.weight = UInt32(clamping: weight)
        service.membership = membership
        service.handover = handover
        service.revisionPollInterval = etcd?.pollInterval ?? ownershipPoll
        if let etcd {
            // A call that reaches its own limit says more than the machine's.
            service.ownership.answerTimeout = max(service.ownership.answerTimeout, etcd.timeout * 3 / 2)
        }
        return service
    }

    /// The configuration of the node's links to other nodes.
    ///
    /// - Throws: 10022 if the list of revoked certificates cannot be read.
    func links(keys: ClusterKeys) throws(ApusError) -> TransportConfiguration {
        var links = transport
        links.forwardingKey = ForwardingKey(keys: keys)
        links.revoked = try RevokedCertificates(file: revokedCertificatesFile)
        return links
    }
}

extension NodeConditions.Kind {
    /// The ownership store fails, is damaged, or does not answer.
    static let storeUnreadable = Self("ownership_store_unreadable", isUnhealthy: true)
    /// The path holds another ownership store.
    static let storeForeign = Self("ownership_store_foreign", isUnhealthy: true)
    /// The ownership store holds an earlier map than this node has seen.
    static let storeRolledBack = Self("ownership_store_rolled_back", isUnhealthy: true)
}

extension NodeConditions {
    private static let consequence = "no map change is possible, and current work continues"

    /// Raises the condition that the ownership store showed last, and clears the others.
    func show(_ condition: OwnershipStateMachine.StoreCondition) {
        let shown: (kind: Kind, message: String)?
        switch condition {
        case .sound: shown = nil
        case .unreadable(let error): shown = (.storeUnreadable, "\(error.message); \(Self.consequence)")
        case .foreign(let error): shown = (.storeForeign, "\(error.message); \(Self.consequence)")
        case .rolledBack(let found, let seen):
            shown = (
                .storeRolledBack,
                "the ownership store shows revision \(found), which does not follow from revision \(seen) that this "
                    + "node has seen; \(Self.consequence); `apus admin ownership restore` puts the newest map back"
            )
        }
        if let shown { raise(shown.kind, shown.message) }
        for kind in [Kind.storeUnreadable, .storeForeign, .storeRolledBack] where kind != shown?.kind { clear(kind) }
    }
}
