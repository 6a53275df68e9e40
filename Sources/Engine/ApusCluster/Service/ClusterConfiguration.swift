package import ApusCore
package import ApusTransport
package import NIOCore

/// The configuration of a node's part in the cluster, with the defaults of D4 and D5.
package struct ClusterConfiguration: Sendable {
    package var cluster: ClusterID
    /// The node's configured name.
    package var node: NodeName
    /// The cluster's keys, the same on every node, each with at least ``HeartbeatSeal/keyByteCountMin`` bytes.
    package var keys: ClusterKeys
    /// The node's share of the shards relative to the other nodes' weights.
    package var weight: UInt32 = 100
    package var membership = MembershipConfiguration()
    package var ownership = OwnershipStateMachine.Configuration()
    package var handover = HandoverStateMachine.Configuration()
    /// The interval at which the store's revision is polled. Notifications of peers and of a store's watch are faster;
    /// the poll covers lost ones.
    package var revisionPollInterval: Duration = .milliseconds(250)
    /// How long a node that does not renew its lease in the store keeps it. It is renewed three times as often. Where
    /// neither side of a cut network is a majority, a silent node is declared dead when its lease has run out.
    package var leaseDuration: Duration = .milliseconds(2500)
    /// The numbers of processes of this node that have ended, as this machine knows (``JoinStateMachine``).
    package var endedProcesses: Set<UInt64> = []
    /// How long the condition ``NodeConditions/Kind/duplicateNodeWaits`` outlasts the other process's last attempt.
    package var duplicateHold: Duration = .seconds(15)
    /// The interval at which a node that waits to join tries again (``JoinStateMachine``).
    package var joinRetryInterval: Duration = .milliseconds(500)
    /// The interval between ticks of the machines.
    package var tickInterval: Duration = .milliseconds(10)
    /// The time that a leaving node waits for its shards to be handed over. The remaining shards then go to the
    /// standbys.
    package var drainTimeout: Duration = .seconds(30)
    /// If true, the node hands over its shards and leaves when the service group stops gracefully.
    package var leavesOnShutdown = true

    package init(cluster: ClusterID, node: NodeName, keys: ClusterKeys) {
        self.cluster = cluster
        self.node = node
        self.keys = keys
    }

    package init(cluster: ClusterID, node: NodeName, key: [UInt8]) {
        self.init(cluster: cluster, node: node, keys: ClusterKeys(current: key))
    }
}

/// Callbacks to the layers above the cluster. All may be called from any thread.
package struct ClusterHooks: Sendable {
    /// The node is to become the shard's standby. From now on it receives everything of the shard's media channels,
    /// beside the current standby, which stays fed. With nil no node is. Called on the owner; must not wait.
    package var feedReplica: @Sendable (ShardID, NodeID?) -> Void
    /// True if the node has everything of the shard's media channels. Called on the owner, every 10 ms, until it
    /// returns true or the move is abandoned.
    package var replicaCaughtUp: @Sendable (ShardID, NodeID) async -> Bool
    /// Holds the shard's entities, so that calls to them wait, and returns when the calls in progress have ended.
    /// Throws 10005 if they do not end in time. Called on the owner.
    package var holdEntities: @Sendable (ShardID) async throws(ApusError) -> Void
    /// Releases the shard's entities at this node: the hand-over was abandoned.
    package var releaseEntities: @Sendable (ShardID) -> Void
    /// True while clients use what this node owns, so that its moves of shards give way to their requests. Called on
    /// the cluster's thread; must not wait.
    package var isInUse: @Sendable () -> Bool
    /// The condition of the ownership store changed. Called on the cluster's thread; must not wait.
    package var storeChanged: @Sendable (OwnershipStateMachine.StoreCondition) -> Void
    /// This node hears less than half of the members. The argument has those that it does not hear. Called on the
    /// cluster's thread; must not wait.
    package var lostMajority: @Sendable ([NodeID]) -> Void
    /// This process joins under this number (``Member/process``), which it should record. Called before each join; may
    /// wait for the disk.
    package var joining: @Sendable (UInt64) -> Void
    /// This incarnation of this node is dead in the map. Nothing that it does is valid any more. Called once.
    package var fenced: @Sendable () -> Void
    /// A condition of this node began or lasts (with a sentence), or ended (without one). Called from any thread; must
    /// not wait.
    package var condition: @Sendable (NodeConditions.Kind, String?) -> Void

    /// The hooks of a node that has no state for its shards.
    package init() {
        feedReplica = { _, _ in }
        replicaCaughtUp = { _, _ in true }
        holdEntities = { _ in }
        releaseEntities = { _ in }
        isInUse = { true }
        storeChanged = { _ in }
        lostMajority = { _ in }
        joining = { _ in }
        fenced = {}
        condition = { _, _ in }
    }
}

/// The links that the cluster uses: ``Transport``, or those of a test.
package protocol ClusterLinks: Sendable {
    func setPeers(_ peers: [Peer])
    func setPath(to peer: NodeName, via helper: NodeName?)
    /// The wire version that the node speaks with a peer; nil if it is not known yet.
    func wireVersion(of peer: NodeID) -> UInt32?
    func reach(_ peer: Peer, timeout: Duration) async -> NodeReach
    func tell(_ peer: NodeName, lane: Int, method: UInt16, payload: ByteBuffer) throws(ApusError)
}

extension Transport: ClusterLinks {}

/// The cluster's own methods on the control lane. Ids up to 15 are reserved for it. 2 is no longer used.
package enum ClusterMethod {
    /// A tell, `ClusterMapChanged`: the store has a newer map.
    package static let mapChanged: UInt16 = 1
    /// A tell, ``ReplicaMessage``: changes of shards, from their owner to a standby or candidate.
    package static let replicate: UInt16 = 3
    /// A tell, ``ReplicaAnswers``: the answers to a ``replicate``.
    package static let replicated: UInt16 = 4
    /// The methods that ``ReplicaService`` handles.
    package static let replication: ClosedRange<UInt16> = replicate...replicated
    package static let all: ClosedRange<UInt16> = 1...15
}

/// A node's view of its cluster, for status pages.
package struct ClusterStatus: Sendable {
    package var identity: NodeID
    package var map: ClusterMap
    /// The condition of the ownership store. Unless it is sound, this node decides nothing (D4).
    package var store: OwnershipStateMachine.StoreCondition
    /// The number of this node's shards that are being moved.
    package var movingCount: Int
    /// The number of shards, over all nodes, that are not at their place.
    package var misplacedCount: Int
    package var peers: [(id: NodeID, health: MembershipStateMachine.Health)]
}
