package import ApusCore
import DequeModule

/// The stream of one shard from its owner to one target: its standby, or the candidate of a planned move (D18).
///
/// ```
///              nextBatch, …                 every entity was walked, no change waits
/// walking ───────────────────▶ walking ───────────────────────────────────────────▶ following
///    ▲                                                                                  │
///    └────────────────────── the target refuses: the next stream ◀──────────────────────┘
/// ```
///
/// **Catch-up.** A stream begins with a walk over the owner's table, in parts of a batch each. A change of an entity
/// that the walk has not reached is not sent apart. Changes that wait go before the next part of the walk, so what the
/// walk sends is never older than what was sent before. The batch that ends the walk ``ReplicaBatch/completes`` the
/// copy, which from then on is the owner's table as it was at one position.
///
/// **Loss.** Batches that are not confirmed are kept as they were sent, and are sent again from the first that was
/// lost. A confirmation says which batch the target expects next. The target takes batches in order only; after what
/// it cannot follow (it dropped the stream, or never had it) the feed begins the next stream. A batch that overtook the
/// first is sent again behind it. Answers to batches of earlier streams are ignored.
///
/// **Binding.** From ``require()`` on the owner acknowledges nothing that this target has not (see
/// ``ReplicaShardStateMachine``). The first batch that reaches what was acknowledged before says so to the target:
/// its copy then lacks nothing, whenever it is promoted. With the confirmation of that batch the target ``isBound``.
///
/// Pure; the table is passed in.
package struct ReplicaFeedStateMachine: Sendable {
    private enum Phase: Sendable, Equatable {
        /// Slots below this were sent.
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
        /// What was sent is to be sent again; with an overloaded target, later.
        case resend(isOverloaded: Bool)
        /// A new stream begins. Repeated: the target took nothing of the stream before either.
        case restarted(isRepeated: Bool)
        /// Somebody owns the shard under a later epoch.
        case superseded(Epoch)
    }

    package let shard: ShardID
    package let epoch: Epoch
    package let target: NodeID
    /// The number of the stream.
    package private(set) var stream: UInt64
    /// The owner's position up to which the target has every change; nil until its copy is complete.
    package private(set) var confirmed: UInt64?
    /// The owner acknowledges nothing that the target has not.
    package private(set) var isRequired = false
    /// The target has confirmed that its copy binds the owner.
    package private(set) var isBound = false
    /// The target was bound when the stream before broke off, or earlier.
    private var keepsEarlier = false
    private var isBindingSent = false
    /// Batches before this one say nothing of what the target is now.
    private var bindingFrom: UInt64 = 1
    private var phase = Phase.walking(slot: 0)
    private var queue = Deque<Change>()
    /// Bytes of changes that were not sent yet.
    package private(set) var queuedByteCount = 0
    /// Batches that were sent and are not confirmed, in order.
    private var underWay = Deque<ReplicaBatch>()
    /// Of these, how many need not be sent again as far as the feed knows.
    private var sentCount = 0
    private var nextSequence: UInt64 = 1
    /// The target took a batch of this stream.
    private var isFollowed = false

    package init(shard: ShardID, epoch: Epoch, target: NodeID, stream: UInt64) {
        self.shard = shard
        self.epoch = epoch
        self.target = target
        self.stream = stream
    }

    package var term: ReplicaTerm { ReplicaTerm(epoch: epoch, stream: stream) }

    /// Changes that were not sent yet.
    package var queuedCount: Int { queue.count }

    /// There is something to send.
    package var hasNews: Bool {
        sentCount < underWay.count || !queue.isEmpty || phase != .following || (isRequired && !isBindingSent)
    }

    /// From now on the owner acknowledges nothing that the target has not.
    package mutating func require() { isRequired = true }

    /// The target's part changed: it is told again that its copy binds the owner, and is bound when it has confirmed
    /// that.
    package mutating func rebind() {
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

    /// The next batch to send; nil if there is nothing to say.
    ///
    /// - Parameters:
    ///   - position: the owner's newest position, whose table this is.
    ///   - acknowledged: the owner has acknowledged changes up to it.
    ///   - byteCountMax: a new batch ends before it has more, but holds one record at least.
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

    /// Nobody will answer this batch of the stream: it and those after it are sent again.
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
            // It overtook the first batch, which may still come.
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
        // The batch was not taken, since one before it was missing then; that one may have been confirmed meanwhile.
        lost(stream: stream, sequence: max(next, first))
        return .resend(isOverloaded: false)
    }

    /// Begins anew with another stream, at the beginning of the owner's table.
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
