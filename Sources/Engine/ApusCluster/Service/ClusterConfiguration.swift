package import ApusCore
package import ApusTransport
package import ApusWire
package import NIOCore

/// What a node's part in the cluster needs to know, with the defaults of D4 and D5.
package struct ClusterConfiguration: Sendable {
    package var cluster: ClusterID
    /// The node's configured name.
    package var node: NodeName
    /// The cluster's key, the same on every node; at least ``HeartbeatSeal/keyByteCountMin`` bytes.
    package var key: [UInt8]
    /// The node's share of the shards beside the others' weights.
    package var weight: UInt32 = 100
    package var membership = MembershipConfiguration()
    package var ownership = OwnershipStateMachine.Configuration()
    package var handover = HandoverStateMachine.Configuration()
    /// How often the store is asked for its revision; peers' tells are faster, this is what is left when one is lost.
    package var revisionPollInterval: Duration = .milliseconds(250)
    /// How often the machines are told the time.
    package var tickInterval: Duration = .milliseconds(10)
    /// How long a leaving node waits until its shards are handed over; what it still has then falls to the standbys.
    package var drainTimeout: Duration = .seconds(30)
    /// Hand over and leave when the service group stops gracefully.
    package var leavesOnShutdown = true

    package init(cluster: ClusterID, node: NodeName, key: [UInt8]) {
        self.cluster = cluster
        self.node = node
        self.key = key
    }
}

/// What the layers above do for the cluster. All may be called from any thread.
package struct ClusterHooks: Sendable {
    /// The node is to become the shard's standby: it gets everything of the shard's media channels from now on, beside
    /// the standby that is, which stays fed. Nil: no node is, any more. Called on the owner; must not wait.
    package var feedReplica: @Sendable (ShardID, NodeID?) -> Void
    /// True when the node has everything of the shard's media channels. Asked on the owner, every 10 ms, until it
    /// says yes or the move is given up.
    package var replicaCaughtUp: @Sendable (ShardID, NodeID) async -> Bool
    /// Holds the shard's entities, so that calls to them wait, and returns their states. Asked on the owner.
    package var takeStates: @Sendable (ShardID) async throws(ApusError) -> [ClusterEntityState]
    /// Keeps states for the moment when this node becomes the shard's owner under the epoch; should the map go another
    /// way they are void. With parts, the first replaces what was kept before.
    package var giveStates: @Sendable (ShardID, Epoch, StatePart) async throws(ApusError) -> Void
    /// Lets the shard's entities go on here: the hand-over was given up.
    package var releaseEntities: @Sendable (ShardID) -> Void
    /// The ownership store became wrong, differently wrong, or right. On the cluster's thread; must not wait.
    package var storeChanged: @Sendable (OwnershipStateMachine.StoreCondition) -> Void
    /// This life of this node is dead in the map: nothing that it does counts any more. Called once.
    package var fenced: @Sendable () -> Void
    /// A condition of this node began or lasts, with a sentence, or ended, without one. Called from any thread; must
    /// not wait.
    package var condition: @Sendable (NodeConditions.Kind, String?) -> Void

    /// One part of a shard's entity states.
    package struct StatePart: Sendable {
        package var entities: [ClusterEntityState]
        package var isFirst: Bool
        package var isLast: Bool
    }

    /// Hooks of a node that holds nothing but its shards.
    package init() {
        feedReplica = { _, _ in }
        replicaCaughtUp = { _, _ in true }
        takeStates = { _ in [] }
        giveStates = { _, _, _ in }
        releaseEntities = { _ in }
        storeChanged = { _ in }
        fenced = {}
        condition = { _, _ in }
    }
}

/// The links that the cluster speaks over; ``Transport``, or a test's.
package protocol ClusterLinks: Sendable {
    func setPeers(_ peers: [Peer])
    func ask(
        _ peer: NodeName, method: UInt16, payload: ByteBuffer, timeout: Duration
    ) async throws(ApusError) -> ByteBuffer
    func tell(_ peer: NodeName, lane: Int, method: UInt16, payload: ByteBuffer) throws(ApusError)
}

extension Transport: ClusterLinks {}

/// The cluster's own methods on the control lane; ids up to 15 are its.
package enum ClusterMethod {
    /// A tell, `ClusterMapChanged`: the store has a newer map.
    package static let mapChanged: UInt16 = 1
    /// A request, `ClusterHandoverPrepare`, answered by `ClusterHandoverReady`.
    package static let handoverPrepare: UInt16 = 2
    /// A tell, ``ReplicaMessage``: changes of shards, from their owner to a standby or candidate.
    package static let replicate: UInt16 = 3
    /// A tell, ``ReplicaAnswers``: what became of a ``replicate``.
    package static let replicated: UInt16 = 4
    /// What ``ReplicaService`` takes.
    package static let replication: ClosedRange<UInt16> = replicate...replicated
    package static let all: ClosedRange<UInt16> = 1...15
}

/// What a node knows of its cluster, for status pages.
package struct ClusterStatus: Sendable {
    package var identity: NodeID
    package var map: ClusterMap
    /// What the ownership store showed last; while it is not sound, this node decides nothing (D4).
    package var store: OwnershipStateMachine.StoreCondition
    /// Shards of this node that are on their way.
    package var movingCount: Int
    /// Shards of all nodes that are not where they should be.
    package var misplacedCount: Int
    package var peers: [(id: NodeID, health: MembershipStateMachine.Health)]
}
