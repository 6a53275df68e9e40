package import ApusCore

/// A node's copy of one shard, built from the streams of the shard's owner (D18).
///
/// ```
///                  sequence 1 of a newer term           a batch completes it
/// no stream ─────────────────────────────▶ assembling ──────────────────────▶ following
///     ▲                                        ▲                                 │
///     └── the owner ends it                    └── sequence 1 of a newer term ───┘
/// ```
///
/// **Order.** A batch is applied only if its term is the newest seen and its sequence is the next one. A batch that was
/// applied before is confirmed again and changes nothing. Batches of older terms are refused with the newest term.
///
/// **What is usable.** While a newer stream is assembled, the last complete copy remains the one to promote. It is no
/// longer certain if the newer stream of the same epoch reports a gap in the owner's binding to this node. Changes that
/// the owner acknowledged in that gap may be missing.
///
/// **Promotion.** The states are handed over once. They are complete if three conditions hold: the copy is certain, its
/// epoch directly precedes that of the promotion, and the owner reported its binding after this node was named. The map
/// records that revision (``ShardAssignment``): a node that was released and named again without a planned move may
/// have seen none of the maps in between, and may not know of its release.
///
/// Pure value.
package struct ReplicaCopyStateMachine: Sendable {
    private struct Complete: Sendable {
        var table: ReplicaTable
        /// The epoch. The table includes all its acknowledged changes.
        var epoch: Epoch
        /// The stream that built it; nil if this node was the owner.
        var term: ReplicaTerm?
        /// The owner has been bound to this node since.
        var isCertain: Bool
        /// The newest map revision under which the owner reported its binding.
        var boundIn: UInt64 = 0
    }

    private struct Stream: Sendable {
        var next: UInt64 = 1
        /// The records before the completing batch; nil afterwards.
        var assembly: ReplicaTable?
    }

    /// The newest term seen.
    package private(set) var newest = ReplicaTerm(epoch: 0, stream: 0)
    /// The stream of the newest term; nil if none is followed.
    private var stream: Stream?
    private var complete: Complete?

    package init() {}

    /// The number and bytes of all held entities.
    package var size: (count: Int, byteCount: Int) {
        let tables = [complete?.table, stream?.assembly]
        return tables.reduce((0, 0)) { ($0.0 + ($1?.count ?? 0), $0.1 + ($1?.byteCount ?? 0)) }
    }

    /// The most that a batch of the stream adds. An entity that exists counts with its growth.
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

    /// A batch arrived, sent under this revision of the map. Returns the answer.
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

    /// This node owned the shard until now, and is its standby under this epoch. Its states include everything
    /// acknowledged before. Under the epoch nothing is acknowledged until this node has another complete copy.
    package mutating func keep(_ table: ReplicaTable, standbyUnder epoch: Epoch) {
        guard complete == nil else { return }
        complete = Complete(table: table, epoch: epoch, term: nil, isCertain: true)
    }

    /// The owner ended a stream. Discards what it and earlier streams built.
    package mutating func ended(_ term: ReplicaTerm) {
        guard term >= newest else { return }
        newest = term
        stream = nil
        complete = nil
    }

    /// The shard has a new owner. The streams of the former owner do not continue.
    package mutating func ownerChanged(to epoch: Epoch) {
        guard newest.epoch < epoch else { return }
        // If no copy was complete, the unfinished stream is all there is.
        if complete != nil { stream = nil }
    }

    /// The states with which this node becomes the shard's owner under this epoch, and whether they include every
    /// acknowledged change.
    ///
    /// - Parameter namedIn: The revision of ``ShardAssignment/ownerNamedIn``.
    package func promoted(to epoch: Epoch, namedIn: UInt64) -> (table: ReplicaTable, isComplete: Bool) {
        guard let complete else { return (stream?.assembly ?? ReplicaTable(), false) }
        let isBound = complete.isCertain && complete.boundIn >= namedIn
        return (complete.table, isBound && complete.epoch + 1 == epoch)
    }
}
