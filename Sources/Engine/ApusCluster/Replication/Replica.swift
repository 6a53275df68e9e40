package import ApusCore
package import NIOCore

/// Identifies an entity within its shard.
package struct ReplicaKey: Sendable, Hashable {
    package var kind: EntityKind
    /// 1 to ``EntityAddress/keyByteCountMax`` bytes.
    package var key: String

    package init(kind: EntityKind, key: String) {
        self.kind = kind
        self.key = key
    }
}

/// The position of a change in the order of its shard's changes, under one epoch.
package struct ReplicaPosition: Sendable, Hashable {
    package var shard: ShardID
    package var epoch: Epoch
    /// From 1. 0 is before the first change.
    package var number: UInt64

    package init(shard: ShardID, epoch: Epoch, number: UInt64) {
        self.shard = shard
        self.epoch = epoch
        self.number = number
    }
}

/// Identifies a stream of one shard: the shard's epoch, and the number of the stream at the owner under that epoch.
///
/// An epoch belongs to one incarnation of one node, so the terms of a shard are ordered across the cluster.
package struct ReplicaTerm: Sendable, Hashable, Comparable {
    package var epoch: Epoch
    /// From 1.
    package var stream: UInt64

    package init(epoch: Epoch, stream: UInt64) {
        self.epoch = epoch
        self.stream = stream
    }

    package static func < (left: Self, right: Self) -> Bool {
        (left.epoch, left.stream) < (right.epoch, right.stream)
    }
}

/// The whole new state of an entity, or its removal.
package struct ReplicaRecord: Sendable, Equatable {
    package var key: ReplicaKey
    /// Nil removes the entity.
    package var state: ByteBuffer?

    package init(_ key: ReplicaKey, _ state: ByteBuffer?) {
        self.key = key
        self.state = state
    }

    /// The encoded size, in bytes.
    package var byteCount: Int { Self.overhead + key.key.utf8.count + (state?.readableBytes ?? 0) }

    /// The kind, the length of the key and the length of the state, in bytes.
    static let overhead = 6
}

/// A part of a stream. A target applies a batch as a whole or not at all. A batch that is sent again is identical.
package struct ReplicaBatch: Sendable, Equatable {
    package var shard: ShardID
    package var term: ReplicaTerm
    /// The batch's number in its stream, from 1.
    package var sequence: UInt64
    /// The owner's position that a complete copy reaches with this batch.
    package var position: UInt64
    /// The copy is complete with this batch: it includes every change up to ``position``.
    package var completes = false
    /// From now on the owner acknowledges nothing that this target does not have, and has acknowledged nothing beyond
    /// ``position``.
    package var isBinding = false
    /// The target keeps the copy that earlier streams of this shard's epoch built. The copy is complete, because those
    /// streams bound the owner to this target without a gap. True only in a batch with sequence 1.
    package var keepsEarlier = false
    package var records: [ReplicaRecord] = []

    package init(shard: ShardID, term: ReplicaTerm, sequence: UInt64, position: UInt64) {
        self.shard = shard
        self.term = term
        self.sequence = sequence
        self.position = position
    }

    var byteCount: Int { records.reduce(Self.overhead) { $0 + $1.byteCount } }

    /// The encoded size of a batch without its records, in bytes.
    static let overhead = 2 + 4 + 8 + 8 + 8 + 1 + 4
}

/// The owner ended a stream. The target discards what it built from it.
package struct ReplicaEnd: Sendable, Hashable {
    package var shard: ShardID
    package var term: ReplicaTerm

    package init(shard: ShardID, term: ReplicaTerm) {
        self.shard = shard
        self.term = term
    }
}

/// Batches of several shards for one node.
package struct ReplicaMessage: Sendable, Equatable {
    /// The incarnation of the receiver. Another incarnation ignores the message.
    package var targetIncarnation: UInt64
    /// Grows with each message from the sender to this target.
    package var number: UInt64
    /// The revision of the sender's cluster map.
    package var revision: UInt64
    /// At most one for each shard.
    package var ends: [ReplicaEnd]
    /// At most one for each shard.
    package var batches: [ReplicaBatch]

    package init(
        targetIncarnation: UInt64, number: UInt64, revision: UInt64, ends: [ReplicaEnd], batches: [ReplicaBatch]
    ) {
        self.targetIncarnation = targetIncarnation
        self.number = number
        self.revision = revision
        self.ends = ends
        self.batches = batches
    }
}

/// A target's answer to one batch.
package struct ReplicaAnswer: Sendable, Hashable {
    package enum Verdict: Sendable, Hashable {
        /// Every batch of the stream below this sequence was applied.
        case next(UInt64)
        /// The target does not follow this stream. It must start again.
        case restart
        /// The target has seen a newer term.
        case older(ReplicaTerm)
        /// The target cannot apply it now: it has no room, or has not seen the sender's map.
        case overloaded
    }

    package var shard: ShardID
    package var term: ReplicaTerm
    /// The sequence of the batch.
    package var sequence: UInt64
    package var verdict: Verdict

    package init(shard: ShardID, term: ReplicaTerm, sequence: UInt64, verdict: Verdict) {
        self.shard = shard
        self.term = term
        self.sequence = sequence
        self.verdict = verdict
    }

    init(_ batch: ReplicaBatch, _ verdict: Verdict) {
        self.init(shard: batch.shard, term: batch.term, sequence: batch.sequence, verdict: verdict)
    }
}

/// A target's answer to a message.
package struct ReplicaAnswers: Sendable, Equatable {
    /// The number of the message.
    package var number: UInt64
    package var answers: [ReplicaAnswer]

    package init(number: UInt64, answers: [ReplicaAnswer]) {
        self.number = number
        self.answers = answers
    }
}

/// The limits of replication (D13, D18). The keys are under `replication.`.
package struct ReplicaConfiguration: Sendable, Equatable {
    /// The size of one entity's state, in bytes. A larger one is refused with 10002. Key `state_bytes_max`.
    package var stateByteCountMax = 64 << 10
    /// Entities per shard. A change that adds a further one is refused with 10007. Key `shard_entities_max`.
    package var shardEntityCountMax = 65_536
    /// Keys and states of one shard, in bytes. A change beyond it is refused with 10007. An eighth of it is left to the
    /// entities that are there, so that a shard with too many entities can still end them. Key `shard_bytes_max`.
    package var shardByteCountMax = 64 << 20
    /// The size of a shard up to which it takes further entities, in bytes.
    package var newEntityByteCountMax: Int { shardByteCountMax - shardByteCountMax / 8 }
    /// Entities that this node owns. A node holds copies of up to twice as many, because each state may have two. Key
    /// `entities_max`.
    package var entityCountMax = 2_000_000
    /// Keys and states of the owned entities, in bytes; those of copies are limited to twice as much. Beyond it changes
    /// are refused with 10007, and copies are not accepted. Key `bytes_max`.
    package var byteCountMax = 1 << 30
    package var copiedEntityCountMax: Int { 2 * entityCountMax }
    package var copiedByteCountMax: Int { 2 * byteCountMax }
    /// Unacknowledged changes of one shard. A further one is refused with 10007. Key `waiting_max`.
    package var waitingCountMax = 16_384
    /// Bytes of unacknowledged changes of one shard. Key `waiting_bytes_max`.
    package var waitingByteCountMax = 8 << 20
    /// Bytes of unacknowledged changes of all shards of this node. A change beyond it is refused with 10007. Key
    /// `node_waiting_bytes_max`.
    package var nodeWaitingByteCountMax = 256 << 20
    /// The size at which a message to another node is full, in bytes. Key `message_bytes_max`.
    package var messageByteCountMax = 256 << 10
    /// Unanswered messages to one node on one lane. Further changes wait and are sent together. Key `messages_max`.
    package var messageCountMax = 4
    /// Bytes in flight to a node on one lane at which no further message is started. Key `window_bytes`.
    package var windowByteCount = 1 << 20
    /// Control lanes to each node. A shard's changes use the lane of its calls. Key `transport.control_lanes`.
    package var laneCount = 1
    /// The time after which an unanswered message is sent again. It doubles each time, up to ``confirmTimeout``. Key
    /// `resend_after`.
    package var resendAfter = Duration.milliseconds(250)
    /// The wait before the next attempt if a node cannot be reached, has no room, or has not seen the map yet. Key
    /// `retry_delay`.
    package var retryDelay = Duration.milliseconds(20)
    /// The longest wait for a confirmation. The caller then receives 10005. Key `confirm_timeout`.
    package var confirmTimeout = Duration.seconds(5)

    package init() {}
}
