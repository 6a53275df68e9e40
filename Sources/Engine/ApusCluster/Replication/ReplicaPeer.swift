import ApusCore
import DequeModule
import OrderedCollections

/// One of the lanes to another node.
struct ReplicaLane: Sendable, Hashable {
    var node: NodeID
    var number: Int
}

/// What an owner sends to one other node on one lane: which shards have something for it, and which messages it has not
/// answered.
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
    /// Streams whose end the peer does not know of.
    private var ends: OrderedDictionary<ShardID, ReplicaTerm> = [:]
    /// By number, so the oldest first.
    private(set) var underWay: OrderedDictionary<UInt64, UnderWay> = [:]
    private(set) var byteCountUnderWay = 0
    /// Of the newest message; the next one's is ``step`` more, so that no two lanes to a node have one in common.
    private var lastNumber: UInt64
    private let step: UInt64
    /// Nothing is sent before.
    private(set) var pausedUntil: MonotonicTime?
    /// Shards that the peer can do nothing with before a time, in the order of these.
    private var delayed: OrderedDictionary<ShardID, MonotonicTime> = [:]
    /// How many times in a row it did not answer in time.
    private(set) var silence = 0

    init(lane: Int, of laneCount: Int) { (lastNumber, step) = (UInt64(lane), UInt64(laneCount)) }

    private var hasNews: Bool { !ready.isEmpty || !ends.isEmpty }

    /// Something is to be done when time has passed.
    var isWaitingForTime: Bool { !underWay.isEmpty || !delayed.isEmpty || (hasNews && pausedUntil != nil) }

    /// Another message may go. To a peer that does not answer it is one at a time, so that a node which does not read
    /// fills no more of the link to it than it must.
    func canSend(_ configuration: ReplicaConfiguration, now: MonotonicTime) -> Bool {
        guard hasNews, underWay.count < (silence == 0 ? configuration.messageCountMax : 1),
            byteCountUnderWay < configuration.windowByteCount
        else { return false }
        return pausedUntil.map { now >= $0 } ?? true
    }

    /// The oldest message was not answered in time. The time doubles with each that was not, up to
    /// ``ReplicaConfiguration/confirmTimeout``.
    func isOverdue(_ configuration: ReplicaConfiguration, now: MonotonicTime) -> Bool {
        guard let oldest = underWay.values.first else { return false }
        var timeout = configuration.resendAfter
        for _ in 0..<min(silence, 16) { timeout = min(timeout * 2, configuration.confirmTimeout) }
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

    /// Nothing of the shard is sent before a time, which is not earlier than that of any other.
    mutating func delay(_ shard: ShardID, until time: MonotonicTime) {
        delayed[shard] = nil
        delayed[shard] = time
    }

    /// Shards whose delay is over may go on.
    mutating func release(now: MonotonicTime) {
        let due = delayed.values.prefix { $0 <= now }.count
        guard due > 0 else { return }
        let shards = Array(delayed.keys.prefix(due))
        delayed.removeSubrange(0..<due)
        for shard in shards { markReady(shard) }
    }

    /// A stream is over. The end of a shard's newest is that of those before.
    mutating func end(_ end: ReplicaEnd) { ends[end.shard] = max(ends[end.shard] ?? end.term, end.term) }

    mutating func takeEnds() -> [ReplicaEnd] {
        defer { ends = [:] }
        return ends.map { ReplicaEnd(shard: $0.key, term: $0.value) }
    }

    /// A message is on its way; its number.
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
