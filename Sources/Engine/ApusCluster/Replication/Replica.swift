package import ApusCore
package import NIOCore

/// Names an entity within its shard.
package struct ReplicaKey: Sendable, Hashable {
    package var kind: EntityKind
    /// 1 to ``EntityAddress/keyByteCountMax`` bytes.
    package var key: String

    package init(kind: EntityKind, key: String) {
        self.kind = kind
        self.key = key
    }
}

/// The place of a change in the order of its shard's changes, under one epoch.
package struct ReplicaPosition: Sendable, Hashable {
    package var shard: ShardID
    package var epoch: Epoch
    /// From 1; 0 is before the first change.
    package var number: UInt64

    package init(shard: ShardID, epoch: Epoch, number: UInt64) {
        self.shard = shard
        self.epoch = epoch
        self.number = number
    }
}

/// Names a stream of one shard: the shard's epoch, and the number of the stream at the owner under that epoch.
///
/// An epoch belongs to one incarnation of one node, so terms of a shard are ordered over the whole cluster.
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
    /// Nil: the entity is removed.
    package var state: ByteBuffer?

    package init(_ key: ReplicaKey, _ state: ByteBuffer?) {
        self.key = key
        self.state = state
    }

    /// Bytes on the wire.
    package var byteCount: Int { Self.overhead + key.key.utf8.count + (state?.readableBytes ?? 0) }

    /// Kind, length of the key and length of the state.
    static let overhead = 6
}

/// A part of a stream. A batch is taken whole or not at all, and is the same whenever it is sent.
package struct ReplicaBatch: Sendable, Equatable {
    package var shard: ShardID
    package var term: ReplicaTerm
    /// The batch's number in its stream, from 1.
    package var sequence: UInt64
    /// The owner's position that a complete copy has with this batch.
    package var position: UInt64
    /// With this batch the copy is complete: it holds every change up to ``position``.
    package var completes = false
    /// The owner acknowledges nothing any more that this target has not, and acknowledged nothing beyond ``position``.
    package var isBinding = false
    /// With sequence 1: the streams of this shard's epoch before bound the owner to this target without a gap, so that
    /// the copy that they made lacks nothing.
    package var keepsEarlier = false
    package var records: [ReplicaRecord] = []

    package init(shard: ShardID, term: ReplicaTerm, sequence: UInt64, position: UInt64) {
        self.shard = shard
        self.term = term
        self.sequence = sequence
        self.position = position
    }

    var byteCount: Int { records.reduce(Self.overhead) { $0 + $1.byteCount } }

    /// What a batch takes on the wire besides its records.
    static let overhead = 2 + 4 + 8 + 8 + 8 + 1 + 4
}

/// A stream that its owner has ended: the target drops what it made.
package struct ReplicaEnd: Sendable, Hashable {
    package var shard: ShardID
    package var term: ReplicaTerm

    package init(shard: ShardID, term: ReplicaTerm) {
        self.shard = shard
        self.term = term
    }
}

/// Batches of many shards on their way to one node.
package struct ReplicaMessage: Sendable, Equatable {
    /// The incarnation of the node that it is meant for; another one ignores it.
    package var targetIncarnation: UInt64
    /// Grows with each message of the sender to this target.
    package var number: UInt64
    /// The revision of the cluster map that the sender goes by.
    package var revision: UInt64
    /// One for each shard at most.
    package var ends: [ReplicaEnd]
    /// One for each shard at most.
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

/// What became of one batch at its target.
package struct ReplicaAnswer: Sendable, Hashable {
    package enum Verdict: Sendable, Hashable {
        /// Every batch of the stream below this sequence was taken.
        case next(UInt64)
        /// The target does not follow this stream: it is to begin anew.
        case restart
        /// The target has seen a newer term.
        case older(ReplicaTerm)
        /// The target can do nothing with it now: it has no room, or has not seen the map that the sender goes by.
        case overloaded
    }

    package var shard: ShardID
    package var term: ReplicaTerm
    /// The batch that this answers.
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

/// What became of a message.
package struct ReplicaAnswers: Sendable, Equatable {
    /// The number of the message.
    package var number: UInt64
    package var answers: [ReplicaAnswer]

    package init(number: UInt64, answers: [ReplicaAnswer]) {
        self.number = number
        self.answers = answers
    }
}

/// The bounds of replication (D13, D18). The keys stand under `replication.`.
package struct ReplicaConfiguration: Sendable, Equatable {
    /// One entity's state, in bytes; a larger one is refused with 10002. Key `state_bytes_max`.
    package var stateByteCountMax = 64 << 10
    /// Entities of one shard; a change that makes one more is refused with 10007. Key `shard_entities_max`.
    package var shardEntityCountMax = 65_536
    /// Keys and states of one shard, in bytes; as before. Key `shard_bytes_max`.
    package var shardByteCountMax = 64 << 20
    /// Entities of this node, and those that it holds copies of, counted apart. Key `entities_max`.
    package var entityCountMax = 2_000_000
    /// Keys and states of these, in bytes, counted apart. Beyond it changes are refused with 10007, and copies are not
    /// taken. Key `bytes_max`.
    package var byteCountMax = 1 << 30
    /// Changes of one shard that are not acknowledged; one more is refused with 10007. Key `waiting_max`.
    package var waitingCountMax = 16_384
    /// The bytes of these. Key `waiting_bytes_max`.
    package var waitingByteCountMax = 8 << 20
    /// The bytes of these for all shards of this node; one more is refused with 10007. Key `node_waiting_bytes_max`.
    package var nodeWaitingByteCountMax = 256 << 20
    /// A message to another node is full from this size on, in bytes. Key `message_bytes_max`.
    package var messageByteCountMax = 256 << 10
    /// Messages to one node on one lane that it has not answered; more wait and go together. Key `messages_max`.
    package var messageCountMax = 4
    /// No further message begins while so many bytes are on their way to a node on one lane. Key `window_bytes`.
    package var windowByteCount = 1 << 20
    /// The control lanes to each node: a shard's changes travel on that of its calls. Key `transport.control_lanes`.
    package var laneCount = 1
    /// A message that was not answered in this time is sent again; each further time doubles it, up to
    /// ``confirmTimeout``. Key `resend_after`.
    package var resendAfter = Duration.milliseconds(250)
    /// The wait before the next try where a node cannot be reached, has no room or no such map yet. Key `retry_delay`.
    package var retryDelay = Duration.milliseconds(20)
    /// The longest wait for a confirmation; then the caller is told 10005. Key `confirm_timeout`.
    package var confirmTimeout = Duration.seconds(5)

    package init() {}
}
