import ApusCore
import DequeModule
import OrderedCollections

/// One of the lanes to another node.
struct ReplicaLane: Sendable, Hashable {
    var node: NodeID
    var number: Int
}

/// The state of the traffic to one other node on one lane: the shards with something to send, and the unanswered
/// messages.
struct ReplicaPeer: Sendable {
    struct Part: Sendable, Hashable {
        var shard: ShardID
        var term: ReplicaTerm
        var sequence: UInt64
    }

    struct UnderWay: Sendable {
        var sentAt: MonotonicTime
        var byteCount: Int
        var ends: [ReplicaEnd]
        var parts: [Part]
    }

    /// Shards with something to send, in turn, each once.
    private var ready = Deque<ShardID>()
    private var isReady: Set<ShardID> = []
    /// Ended streams of which the peer has not been notified.
    private var ends: OrderedDictionary<ShardID, ReplicaTerm> = [:]
    /// By number, the oldest first.
    private(set) var underWay: OrderedDictionary<UInt64, UnderWay> = [:]
    private(set) var byteCountUnderWay = 0
    /// The number of the newest message. The next one is ``step`` higher, so no two lanes to a node share a number.
    private var lastNumber: UInt64
    private let step: UInt64
    /// Nothing is sent before this time.
    private(set) var pausedUntil: MonotonicTime?
    /// Shards that wait because the peer cannot apply their batches yet, in the order of the times.
    private var delayed: OrderedDictionary<ShardID, MonotonicTime> = [:]
    /// The number of consecutive messages that were not answered in time.
    private(set) var silence = 0

    init(lane: Int, of laneCount: Int) { (lastNumber, step) = (UInt64(lane), UInt64(laneCount)) }

    private var hasNews: Bool { !ready.isEmpty || !ends.isEmpty }

    /// True if something must be done when time has passed.
    var isWaitingForTime: Bool { !underWay.isEmpty || !delayed.isEmpty || (hasNews && pausedUntil != nil) }

    /// True if another message may be sent. A peer that does not answer receives one at a time, so a node that does not
    /// read fills as little of its link as possible.
    func canSend(_ configuration: ReplicaConfiguration, now: MonotonicTime) -> Bool {
        guard hasNews, underWay.count < (silence == 0 ? configuration.messageCountMax : 1),
            byteCountUnderWay < configuration.windowByteCount
        else { return false }
        return pausedUntil.map { now >= $0 } ?? true
    }

    /// True if the oldest message was not answered in time. The time-out doubles with each message that was not, up to
    /// ``ReplicaConfiguration/confirmTimeout``.
    func isOverdue(_ configuration: ReplicaConfiguration, now: MonotonicTime) -> Bool {
        guard let oldest = underWay.values.first else { return false }
        let timeout = Backoff.wait(
            after: silence + 1, first: configuration.resendAfter, longest: configuration.confirmTimeout)
        return oldest.sentAt + max(timeout, configuration.resendAfter) <= now
    }

    mutating func timedOut() { silence += 1 }
    mutating func heard() { silence = 0 }

    mutating func markReady(_ shard: ShardID) {
        guard isReady.insert(shard).inserted else { return }
        ready.append(shard)
    }

    mutating func nextReady() -> ShardID? {
        while let shard = ready.popFirst() {
            isReady.remove(shard)
            if delayed[shard] == nil { return shard }
        }
        return nil
    }

    /// Delays the shard until a time, which must not be earlier than that of any other shard.
    mutating func delay(_ shard: ShardID, until time: MonotonicTime) {
        delayed[shard] = nil
        delayed[shard] = time
    }

    /// Makes shards ready whose delay has passed.
    mutating func release(now: MonotonicTime) {
        let due = delayed.values.prefix { $0 <= now }.count
        guard due > 0 else { return }
        let shards = Array(delayed.keys.prefix(due))
        delayed.removeSubrange(0..<due)
        for shard in shards { markReady(shard) }
    }

    /// A stream ended. The end of a shard's newest stream includes all earlier ones.
    mutating func end(_ end: ReplicaEnd) { ends[end.shard] = max(ends[end.shard] ?? end.term, end.term) }

    mutating func takeEnds() -> [ReplicaEnd] {
        defer { ends = [:] }
        return ends.map { ReplicaEnd(shard: $0.key, term: $0.value) }
    }

    /// A message was sent. Returns its number.
    mutating func sent(_ message: UnderWay) -> UInt64 {
        lastNumber += step
        underWay[lastNumber] = message
        byteCountUnderWay += message.byteCount
        return lastNumber
    }

    /// A message was answered, or will not be.
    mutating func finish(_ number: UInt64) -> UnderWay? {
        guard let message = underWay.removeValue(forKey: number) else { return nil }
        byteCountUnderWay -= message.byteCount
        return message
    }

    mutating func pause(until time: MonotonicTime) { pausedUntil = max(pausedUntil ?? time, time) }

    /// The link is new.
    mutating func goOn() {
        pausedUntil = nil
        silence = 0
        release(now: MonotonicTime(nanoseconds: .max))
    }
}
