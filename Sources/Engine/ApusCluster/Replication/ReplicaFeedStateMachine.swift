package import ApusCore
import DequeModule

/// The stream of one shard from its owner to one target: a standby, or the candidate of a planned move (D18).
///
/// ```
///              nextBatch, …                 every entity was walked, no change waits
/// walking ───────────────────▶ walking ───────────────────────────────────────────▶ following
///    ▲                                                                                  │
///    └────────────────────── the target refuses: the next stream ◀──────────────────────┘
/// ```
///
/// **Catch-up.** A stream begins with a walk over the owner's table, one batch at a time. A change to an entity that
/// the walk has not reached is not sent separately. Queued changes are sent before the next part of the walk, so the
/// walk never sends an older state than was sent before. The last batch of the walk ``ReplicaBatch/completes`` the
/// copy. From then on the copy equals the owner's table at some position.
///
/// **Loss.** Unconfirmed batches are kept as they were sent, and are sent again from the first lost one. A confirmation
/// names the batch that the target expects next. The target applies batches only in order. If it cannot follow (it
/// dropped the stream, or never had it), the feed begins the next stream. A batch that overtook the first one is sent
/// again after it. Answers to batches of earlier streams are ignored.
///
/// **Binding.** From ``require()`` on, the owner acknowledges nothing that this target does not have (see
/// ``ReplicaShardStateMachine``). The first batch that reaches the acknowledged position tells the target so: its copy
/// is then complete whenever it is promoted. When the target confirms that batch, it ``isBound``.
///
/// Pure value. The table is passed in.
package struct ReplicaFeedStateMachine: Sendable {
    private enum Phase: Sendable, Equatable {
        /// Slots below this one were sent.
        case walking(slot: Int)
        case following
    }

    private struct Change: Sendable {
        var record: ReplicaRecord
        var position: UInt64
    }

    package enum OnAnswer: Sendable, Equatable {
        case ignored
        /// The target has more than before, or may have.
        case confirmed
        /// What was sent must be sent again; to an overloaded target, later.
        case resend(isOverloaded: Bool)
        /// A new stream begins. `isRepeated`: the target applied nothing of the previous stream either.
        case restarted(isRepeated: Bool)
        /// Another node owns the shard under a later epoch.
        case superseded(Epoch)
    }

    package let shard: ShardID
    package let epoch: Epoch
    package let target: NodeID
    /// The number of the stream.
    package private(set) var stream: UInt64
    /// The owner's position up to which the target has every change; nil until its copy is complete.
    package private(set) var confirmed: UInt64?
    /// The owner acknowledges nothing that the target does not have.
    package private(set) var isRequired = false
    /// The target has confirmed that its copy binds the owner.
    package private(set) var isBound = false
    /// The target was bound when an earlier stream ended.
    private var keepsEarlier = false
    private var isBindingSent = false
    /// The target may have been notified that its copy binds the owner.
    private var hasClaimed = false
    private var namedIn: UInt64 = 0
    /// Batches before this one do not show the target's present role.
    private var bindingFrom: UInt64 = 1
    private var phase = Phase.walking(slot: 0)
    private var queue = Deque<Change>()
    /// Bytes of changes that have not been sent.
    package private(set) var queuedByteCount = 0
    /// Batches in flight, unconfirmed, in order.
    private var underWay = Deque<ReplicaBatch>()
    /// The number of these that need not be sent again, as far as the feed knows.
    private var sentCount = 0
    private var nextSequence: UInt64 = 1
    /// The target applied a batch of this stream.
    private var isFollowed = false

    package init(shard: ShardID, epoch: Epoch, target: NodeID, stream: UInt64) {
        self.shard = shard
        self.epoch = epoch
        self.target = target
        self.stream = stream
    }

    package var term: ReplicaTerm { ReplicaTerm(epoch: epoch, stream: stream) }

    /// The number of changes that have not been sent.
    package var queuedCount: Int { queue.count }

    /// True if there is something to send.
    package var hasNews: Bool {
        sentCount < underWay.count || !queue.isEmpty || phase != .following || (isRequired && !isBindingSent)
    }

    /// From now on the owner acknowledges nothing that the target does not have.
    package mutating func require() { isRequired = true }

    /// The target is not the standby, or not any more. Until its copy is complete the owner does not wait for it,
    /// unless the target may rely on that.
    package mutating func release() {
        if confirmed == nil, !hasClaimed { isRequired = false }
    }

    /// The map names the target standby. If it does so in a later revision than known, the target may have had no role
    /// in maps that this node did not see, or it was a candidate and was named without a planned move. It does not know
    /// that it was never released. It is notified again that its copy binds the owner, and is bound when it confirms
    /// that.
    ///
    /// - Parameter revision: As ``ShardAssignment/standbyNamedIn``.
    package mutating func named(in revision: UInt64) {
        defer { namedIn = revision }
        guard revision > namedIn else { return }
        keepsEarlier = keepsEarlier || isBound
        isBound = false
        isBindingSent = false
        bindingFrom = nextSequence
    }

    /// An entity changed at a slot of the owner's table.
    package mutating func changed(_ record: ReplicaRecord, slot: Int, position: UInt64) {
        if case .walking(let next) = phase, slot >= next { return }
        queue.append(Change(record: record, position: position))
        queuedByteCount += record.byteCount
    }

    /// The next batch to send; nil if there is nothing to send.
    ///
    /// - Parameters:
    ///   - position: the owner's newest position, to which the table belongs.
    ///   - acknowledged: the position up to which the owner has acknowledged changes.
    ///   - byteCountMax: the most bytes in a new batch. It has at least one record.
    package mutating func nextBatch(
        of table: ReplicaTable, at position: UInt64, acknowledged: UInt64, byteCountMax: Int
    ) -> ReplicaBatch? {
        guard hasNews else { return nil }
        if sentCount < underWay.count {
            sentCount += 1
            return underWay[sentCount - 1]
        }
        var batch = ReplicaBatch(shard: shard, term: term, sequence: nextSequence, position: 0)
        batch.keepsEarlier = nextSequence == 1 && keepsEarlier
        var byteCount = ReplicaBatch.overhead
        takeChanges(into: &batch, &byteCount, byteCountMax: byteCountMax)
        if queue.isEmpty {
            takeWalk(of: table, into: &batch, &byteCount, byteCountMax: byteCountMax)
            batch.position = position
        }
        if isRequired, phase == .following, batch.position >= acknowledged {
            batch.isBinding = true
            isBindingSent = true
            hasClaimed = true
        }
        nextSequence += 1
        underWay.append(batch)
        sentCount = underWay.count
        return batch
    }

    private mutating func takeChanges(into batch: inout ReplicaBatch, _ byteCount: inout Int, byteCountMax: Int) {
        while let change = queue.first {
            guard batch.records.isEmpty || byteCount + change.record.byteCount <= byteCountMax else { return }
            queue.removeFirst()
            queuedByteCount -= change.record.byteCount
            byteCount += change.record.byteCount
            batch.records.append(change.record)
            batch.position = change.position
        }
    }

    private mutating func takeWalk(
        of table: ReplicaTable, into batch: inout ReplicaBatch, _ byteCount: inout Int, byteCountMax: Int
    ) {
        guard case .walking(var slot) = phase else { return }
        while slot < table.slotCount {
            if let record = table[slot: slot] {
                guard batch.records.isEmpty || byteCount + record.byteCount <= byteCountMax else {
                    phase = .walking(slot: slot)
                    return
                }
                byteCount += record.byteCount
                batch.records.append(record)
            }
            slot += 1
        }
        phase = .following
        batch.completes = true
    }

    /// This batch of the stream will not be answered. It and all later ones are sent again.
    package mutating func lost(stream: UInt64, sequence: UInt64) {
        guard stream == self.stream, let first = underWay.first?.sequence, sequence >= first else { return }
        sentCount = min(sentCount, Int(clamping: sequence - first))
    }

    /// The target answered a batch.
    ///
    /// - Parameter nextStream: the number of the stream that a restart begins.
    package mutating func answered(_ answer: ReplicaAnswer, nextStream: UInt64) -> OnAnswer {
        switch answer.verdict {
        case .older(let newest) where newest.epoch > epoch: return .superseded(newest.epoch)
        case _ where answer.term != term: return .ignored
        case .overloaded:
            lost(stream: stream, sequence: answer.sequence)
            return .resend(isOverloaded: true)
        case .restart where answer.sequence > 1 && underWay.first?.sequence == 1:
            // This batch overtook the first one, which may still arrive.
            lost(stream: stream, sequence: 1)
            return .resend(isOverloaded: false)
        case .restart, .older:
            let isRepeated = !isFollowed
            restart(as: nextStream)
            return .restarted(isRepeated: isRepeated)
        case .next(let next): return confirm(next, answered: answer.sequence)
        }
    }

    private mutating func confirm(_ next: UInt64, answered sequence: UInt64) -> OnAnswer {
        guard next <= nextSequence else { return .ignored }
        while let first = underWay.first, first.sequence < next {
            underWay.removeFirst()
            isFollowed = true
            sentCount = max(0, sentCount - 1)
            if first.completes || confirmed != nil { confirmed = first.position }
            if first.isBinding, first.sequence >= bindingFrom { isBound = true }
        }
        guard sequence >= next, let first = underWay.first?.sequence, sequence >= first else { return .confirmed }
        // The batch was not applied, because an earlier one was missing. That one may have been confirmed in the
        // meantime.
        lost(stream: stream, sequence: max(next, first))
        return .resend(isOverloaded: false)
    }

    /// Begins another stream, at the start of the owner's table.
    package mutating func restart(as stream: UInt64) {
        self.stream = stream
        keepsEarlier = keepsEarlier || isBound
        confirmed = nil
        isBound = false
        isBindingSent = false
        bindingFrom = 1
        phase = .walking(slot: 0)
        queue.removeAll()
        queuedByteCount = 0
        underWay.removeAll()
        sentCount = 0
        nextSequence = 1
        isFollowed = false
    }
}
