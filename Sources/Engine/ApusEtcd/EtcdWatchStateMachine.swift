import ApusCore

/// Decides how the watch of the store's keys continues: where it begins, when a change is reported, and when it is
/// opened again.
///
/// **Where a watch begins.** The first one begins after a read: what the read shows is reported, and the watch shows
/// later changes. One that follows begins after the last change of its predecessor, so etcd sends what happened in
/// between. If etcd has compacted these revisions, or has gone back, the keys are read again. They are also read after
/// several watches without a change: what is to be sent may exceed the limit of a message.
///
/// **Reads.** The keys are read at an interval over the watch's connection. The answer shows that the connection is
/// alive, and a change that the watch has not shown yet. Its revision is not used as a position: the watch may still
/// have earlier changes to show. It is not compared with changes that the watch showed after the question either.
///
/// **Waits.** A watch that ended is opened again after `retryDelayMin`. The wait doubles with each further failure up
/// to `retryDelayMax`, and half of it is random, so that nodes do not return together. A watch that etcd has confirmed
/// resets it.
///
/// Pure value: confined to its owner.
package struct EtcdWatchStateMachine: Sendable {
    /// Why a watch is opened again, and the label of the metric.
    package enum Restart: String, Sendable {
        /// The connection failed, or etcd ended the stream.
        case lost
        /// etcd cancelled the watch.
        case canceled
        /// The revisions after the last change are compacted.
        case compacted
        /// etcd shows an earlier revision than before.
        case wentBack = "went_back"
        /// Nothing was received for three intervals.
        case silent
    }

    package enum Input: Sendable {
        /// A watch is to be opened.
        case starting
        /// The keys were read: etcd's revision, and the value's.
        case read(at: Int64, value: Int64)
        /// A response of the open watch.
        case response(Response)
        /// A third of the longest silence has passed.
        case interval
        /// The answer to `ask`: etcd's revision, and that of the newest change of the keys; 0 without keys.
        case answered(at: Int64, newest: Int64)
        /// The watch or the read failed.
        case ended
    }

    /// What counts of a response.
    package struct Response: Sendable {
        package var revision: Int64 = 0
        package var isCreated = false
        package var isCanceled = false
        /// Not 0 if the watch was cancelled because of a compaction.
        package var compactRevision: Int64 = 0
        /// The revision of the newest change in it; 0 without changes.
        package var newestChange: Int64 = 0

        package init() {}
    }

    package enum Action: Sendable, Equatable {
        case none
        /// Read both keys.
        case read
        /// Open a watch from this revision.
        case watch(from: Int64)
        /// Report a change of this revision.
        case report(Int64)
        /// Read the revisions of both keys, over the connection of the watch.
        case ask
        /// Close the watch. The next input is `ended`.
        case close
        /// Wait, then continue with `starting`.
        case wait(Duration, Restart)
    }

    /// The intervals without a response after which a watch counts as silent.
    private static let silentIntervalCountMax = 3
    /// The watches in a row without a change after which the keys are read.
    private static let fruitlessCountMax = 3

    private var backoff: Backoff
    /// The first revision that was not seen; nil before the first read and after a gap.
    private var next: Int64?
    /// The value's revision at the last read; nil if a change followed.
    private var value: Int64?
    private var silentIntervalCount = 0
    /// ``next`` when the oldest question without an answer was asked.
    private var asked: Int64?
    /// Watches in a row that ended without a change.
    private var fruitlessCount = 0
    /// Why the open watch was closed by this machine.
    private var reason: Restart?
    private var random: SeededRandom

    package init(retryDelayMin: Duration, retryDelayMax: Duration, seed: UInt64) {
        backoff = Backoff(first: retryDelayMin, longest: retryDelayMax)
        random = SeededRandom(seed: seed)
    }

    package mutating func handle(_ input: Input) -> Action {
        switch input {
        case .starting:
            reason = nil
            asked = nil
            silentIntervalCount = 0
            return next.map { Action.watch(from: $0) } ?? .read
        case .read(let revision, let value):
            next = revision + 1
            fruitlessCount = 0
            defer { self.value = value }
            return self.value == value ? .none : .report(value)
        case .response(let response): return received(response)
        case .interval:
            silentIntervalCount += 1
            guard silentIntervalCount <= Self.silentIntervalCountMax else { return close(.silent) }
            asked = asked ?? next
            return .ask
        case .answered(let revision, let newest): return answered(at: revision, newest)
        case .ended:
            fruitlessCount += 1
            if fruitlessCount >= Self.fruitlessCountMax { next = nil }
            return .wait(backoff.next() * (0.5 + random.nextUnit() / 2), reason ?? .lost)
        }
    }

    private mutating func received(_ response: Response) -> Action {
        silentIntervalCount = 0
        if response.compactRevision > 0 {
            next = nil
            return close(.compacted)
        }
        if response.isCanceled { return close(.canceled) }
        if response.revision > 0, let next, response.revision < next - 1 {
            self.next = nil
            return close(.wentBack)
        }
        if response.isCreated { backoff.reset() }
        guard response.newestChange > 0 else { return .none }
        next = max(next ?? 0, response.newestChange + 1)
        fruitlessCount = 0
        value = nil
        return .report(response.newestChange)
    }

    private mutating func answered(at revision: Int64, _ newest: Int64) -> Action {
        silentIntervalCount = 0
        defer { asked = nil }
        if let asked, revision < asked - 1 {
            next = nil
            return close(.wentBack)
        }
        guard let next, newest >= next else { return .none }
        self.next = newest + 1
        fruitlessCount = 0
        value = nil
        return .report(newest)
    }

    private mutating func close(_ restart: Restart) -> Action {
        reason = restart
        return .close
    }
}
