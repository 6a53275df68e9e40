package import ApusCore

/// A node's copy of one shard, made by the streams of the shard's owner (D18).
///
/// ```
///                  sequence 1 of a newer term           a batch completes it
/// no stream ─────────────────────────────▶ assembling ──────────────────────▶ following
///     ▲                                        ▲                                 │
///     └── the owner ends it                    └── sequence 1 of a newer term ───┘
/// ```
///
/// **Order.** A batch is taken only if its term is the newest that was seen and its sequence is the next one. One that
/// was taken before is confirmed again and changes nothing. Batches of older terms are refused with the newest.
///
/// **What is usable.** While a newer stream is assembled, the last complete copy stays what would be promoted. It is
/// not certain any more where the newer stream of the same epoch says that the owner was not bound to this node all the
/// while; then what the owner acknowledged meanwhile may be missing.
///
/// **Promotion.** The states are handed over once. They lack nothing if the copy is certain, its epoch directly
/// precedes that of the promotion, and the owner said so since this node was named: every acknowledged change of that
/// epoch is in it. When that was is for the map to say (``ShardAssignment``). A node that was released and is named
/// again for want of another may have seen none of the maps between, and heard nothing of its release.
///
/// Pure.
package struct ReplicaCopyStateMachine: Sendable {
    private struct Complete: Sendable {
        var table: ReplicaTable
        /// The epoch whose acknowledged changes are all in the table.
        var epoch: Epoch
        /// The stream that made it; nil if this node was the owner.
        var term: ReplicaTerm?
        /// The owner was bound to this node since.
        var isCertain: Bool
        /// The newest map revision by which the owner said that it is bound.
        var boundIn: UInt64 = 0
    }

    private struct Stream: Sendable {
        var next: UInt64 = 1
        /// What came before the batch that completes; nil afterwards.
        var assembly: ReplicaTable?
    }

    /// The newest term that was seen.
    package private(set) var newest = ReplicaTerm(epoch: 0, stream: 0)
    /// The stream of the newest term; nil if it is not followed.
    private var stream: Stream?
    private var complete: Complete?

    package init() {}

    /// Entities of all that is held, and their bytes.
    package var size: (count: Int, byteCount: Int) {
        let tables = [complete?.table, stream?.assembly]
        return tables.reduce((0, 0)) { ($0.0 + ($1?.count ?? 0), $0.1 + ($1?.byteCount ?? 0)) }
    }

    /// How much larger a batch of the stream makes it at most. An entity that is there counts by what it grows.
    package func growth(with batch: ReplicaBatch) -> (count: Int, byteCount: Int) {
        let table = batch.term > newest ? ReplicaTable() : stream?.assembly ?? complete?.table ?? ReplicaTable()
        var growth = (count: 0, byteCount: 0)
        for record in batch.records where record.state != nil {
            let before = table.byteCount(of: record.key)
            growth.count += before == 0 ? 1 : 0
            growth.byteCount += ReplicaTable.byteCount(of: record) - before
        }
        return growth
    }

    package var isEmpty: Bool { complete == nil && stream == nil }
    package var isComplete: Bool { complete != nil }

    /// A batch came, sent by this revision of the map; what it is to be answered.
    package mutating func received(_ batch: ReplicaBatch, revision: UInt64) -> ReplicaAnswer.Verdict {
        if batch.term < newest { return .older(newest) }
        if batch.term > newest {
            guard batch.sequence == 1 else { return .restart }
            begin(batch)
        }
        guard let next = stream?.next else { return .restart }
        guard batch.sequence == next else { return .next(next) }
        stream?.next = next + 1
        if stream?.assembly != nil {
            for record in batch.records { stream?.assembly?.apply(record) }
            if batch.completes { finishAssembly(batch) }
        } else {
            for record in batch.records { complete?.table.apply(record) }
        }
        if stream?.assembly == nil, batch.isBinding, let earlier = complete?.boundIn {
            complete?.isCertain = true
            complete?.boundIn = max(earlier, revision)
        }
        return .next(next + 1)
    }

    private mutating func begin(_ batch: ReplicaBatch) {
        newest = batch.term
        stream = Stream(assembly: ReplicaTable())
        if !batch.keepsEarlier, complete?.term?.epoch == batch.term.epoch { complete?.isCertain = false }
    }

    private mutating func finishAssembly(_ batch: ReplicaBatch) {
        guard let table = stream?.assembly else { return }
        stream?.assembly = nil
        complete = Complete(table: table, epoch: batch.term.epoch, term: batch.term, isCertain: false)
    }

    /// This node owned the shard until now, and stands by for it under this epoch. Its states lack nothing that was
    /// acknowledged before, and under the epoch nothing is acknowledged until this node has another complete copy.
    package mutating func keep(_ table: ReplicaTable, standbyUnder epoch: Epoch) {
        guard complete == nil else { return }
        complete = Complete(table: table, epoch: epoch, term: nil, isCertain: true)
    }

    /// The owner ended a stream: what it and those before it made is dropped.
    package mutating func ended(_ term: ReplicaTerm) {
        guard term >= newest else { return }
        newest = term
        stream = nil
        complete = nil
    }

    /// The shard has a new owner: the streams of the one before go on no more.
    package mutating func ownerChanged(to epoch: Epoch) {
        guard newest.epoch < epoch else { return }
        // An unfinished stream is all there is where no copy was complete.
        if complete != nil { stream = nil }
    }

    /// What this node becomes the shard's owner with, under this epoch, and whether nothing acknowledged is missing.
    ///
    /// - Parameter namedIn: The revision of ``ShardAssignment/ownerNamedIn``.
    package func promoted(to epoch: Epoch, namedIn: UInt64) -> (table: ReplicaTable, isComplete: Bool) {
        guard let complete else { return (stream?.assembly ?? ReplicaTable(), false) }
        let isBound = complete.isCertain && complete.boundIn >= namedIn
        return (complete.table, isBound && complete.epoch + 1 == epoch)
    }
}
