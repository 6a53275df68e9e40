package import ApusCore
package import ApusWire

/// Decides how long one node may answer for its shards, and against whom it may vote (D4).
///
/// A node that is cut off with a minority does not notice at once that the others have declared it dead and gave its
/// shards away. It may therefore answer for entities with kept state only while a majority has promised not to declare
/// it dead. This is a leader lease, as in Paxos (Chandra, Griesemer, Redstone 2007), without a clock in common.
///
/// **Promises.** Each heartbeat echoes the newest heartbeat of its receiver, and promises: the sender does not vote
/// against the receiver until `silenceMax` and the round trip have passed since it heard the echoed one. The receiver
/// counts the promise from the time at which it sent the echoed one, which is earlier, less a margin for the rates of
/// the clocks (``clockRateMargin``). A round trip counts with the smallest of its recent values, up to
/// `promiseExtensionMax`, so that promises of distant nodes overlap.
///
/// **Permission.** A node may answer until the time to which it has promises of a majority of its newest map's members
/// that are not proven dead. Its own promise has no end. Votes against it need such a majority too. The two have a node
/// in common, which has either promised or voted, never both: it votes only when its promise has ended, and promises
/// nothing until its vote counts nowhere (`voteLifetime` and ``voteMargin``).
///
/// **After a lapse** a decision against this node may be on its way to the ownership store: votes were counted, and the
/// swap is made later. A promise therefore has the number of the sender's last vote against the receiver, for
/// ``voteMemory``. If a majority of promises is without such a number, no majority has voted, and the node goes on.
/// Otherwise it first replaces the map by the same map (``Step/confirmMap(_:)``). Every decision that was made on the
/// earlier revision fails then, and deciders need new votes. After that, the votes that it knew before no longer count.
///
/// **Earlier versions** promise nothing. A member of one counts as promising while it was heard within half of
/// `silenceMax`, since it votes after that silence: as safe as before.
///
/// What it does not cover: a clock that stands still while the machine is suspended, and a cluster that gains several
/// members while this node is cut off from the ownership store, since it does not know that they count.
///
/// Pure value: confined to its owner, which passes the time.
package struct PromiseStateMachine: Sendable {
    /// The part of a promise that its holder does not count: clocks run at different rates, by one in this many.
    static let clockRateMargin = 200
    /// The least part of a promise that its holder does not count.
    static let marginMin = Duration.milliseconds(1)
    /// How long after the end of its vote's lifetime a node promises nothing: the time that the vote may be under way.
    static let voteMargin = Duration.milliseconds(200)
    /// How long promises have the number of a vote. The swap of a decision takes less.
    static let voteMemory = Duration.seconds(10)
    /// The interval at which a heartbeat with a promise goes to a peer that has sent none.
    static let offerInterval = Duration.seconds(1)
    /// The interval at which the map is replaced again after a failure.
    static let confirmInterval = Duration.milliseconds(100)
    /// The end of a permission that has none.
    package static let always = MonotonicTime(nanoseconds: .max)

    package enum Step: Sendable, Equatable {
        /// Replace the map by the same map. ``confirmed(_:isDone:now:)`` with the same number answers.
        case confirmMap(UInt64)
    }

    private struct Peer: Sendable {
        var id: NodeID
        /// It sent a promise.
        var speaks = false
        var lastDatagram: MonotonicTime?
        var nextOffer = MonotonicTime.zero
        // What this node owes to it.
        /// Its newest datagram with a time: that time on its clock, and the arrival on this node's.
        var echo: (sent: UInt64, heardAt: MonotonicTime)?
        var promisedUntil = MonotonicTime.zero
        var votedAt: MonotonicTime?
        var vote: UInt32 = 0
        // What it owes to this node.
        var end = MonotonicTime.zero
        /// The number of its last vote, as of its newest promise, and the newest one that counts nowhere any more.
        var knownVote: UInt32 = 0
        var voidVote: UInt32 = 0
        var lastSent: UInt64 = 0
        var roundTrip = RecentMinimum()
    }

    private enum Confirmation: Sendable {
        case none
        case wanted(from: MonotonicTime)
        /// With the votes that are void once it is done.
        case underWay(UInt64, votes: [NodeID: UInt32])
    }

    private let configuration: MembershipConfiguration
    private var peers: [Peer] = []
    private var isMember = false
    private var confirmation = Confirmation.none
    private var lastConfirmation: UInt64 = 0
    /// This node may answer before this time.
    package private(set) var answersUntil = MonotonicTime.zero

    package init(configuration: MembershipConfiguration) { self.configuration = configuration }

    /// Sets the other members of the newest map that are alive. Called once this node is a member.
    package mutating func setPeers(_ ids: [NodeID]) {
        isMember = true
        peers = ids.map { id in peers.first { $0.id == id } ?? Peer(id: id) }
    }

    /// This node is no member.
    package mutating func exclude() {
        isMember = false
        peers = []
        confirmation = .none
        answersUntil = .zero
    }

    // MARK: Promises of this node

    /// The message of a heartbeat that is due, and perhaps a second one.
    package mutating func heartbeats(to id: NodeID, now: MonotonicTime) -> [HeartbeatMessage] {
        guard let index = index(of: id) else { return [.heartbeat] }
        guard !peers[index].speaks else { return [.promise(makePromise(index, now: now))] }
        guard now >= peers[index].nextOffer else { return [.heartbeat] }
        peers[index].nextOffer = now + Self.offerInterval
        return [.heartbeat, .promise(makePromise(index, now: now))]
    }

    private mutating func makePromise(_ index: Int, now: MonotonicTime) -> HeartbeatPromise {
        let peer = peers[index]
        var promise = HeartbeatPromise(sentNanoseconds: now.nanoseconds)
        if let votedAt = peer.votedAt, now - votedAt < Self.voteMemory { promise.vote = peer.vote }
        guard let echo = peer.echo else { return promise }
        promise.echoNanoseconds = echo.sent
        promise.heldMicroseconds = UInt32(clamping: (now - echo.heardAt).nanoseconds / 1000)
        if let votedAt = peer.votedAt, now - votedAt < configuration.voteLifetime + Self.voteMargin { return promise }
        let span = configuration.silenceMax + min(peer.roundTrip.value, configuration.promiseExtensionMax)
        promise.promisedMilliseconds = UInt16(clamping: span.nanoseconds / 1_000_000)
        peers[index].promisedUntil = max(
            peer.promisedUntil, echo.heardAt + .milliseconds(Int64(promise.promisedMilliseconds)))
        return promise
    }

    /// True if this node may say that it does not hear the peer, as far as its promises are concerned.
    package func mayVote(against id: NodeID, now: MonotonicTime) -> Bool {
        index(of: id).map { now >= peers[$0].promisedUntil } ?? true
    }

    /// This node said, or counts itself, that it does not hear the peer.
    package mutating func voted(against id: NodeID, now: MonotonicTime) {
        guard let index = index(of: id) else { return }
        peers[index].votedAt = now
        peers[index].vote = max(1, peers[index].vote &+ 1)
    }

    // MARK: Promises to this node

    /// Any datagram of the peer arrived.
    package mutating func heard(_ id: NodeID, now: MonotonicTime) {
        if let index = index(of: id) { peers[index].lastDatagram = now }
    }

    package mutating func received(_ promise: HeartbeatPromise, from id: NodeID, now: MonotonicTime) {
        guard let index = index(of: id) else { return }
        peers[index].speaks = true
        if promise.sentNanoseconds > peers[index].lastSent {
            peers[index].lastSent = promise.sentNanoseconds
            peers[index].knownVote = promise.vote
            peers[index].echo = (promise.sentNanoseconds, now)
        }
        // A time in the future is no echo.
        guard promise.echoNanoseconds > 0, promise.echoNanoseconds <= now.nanoseconds else { return }
        let sentAt = MonotonicTime(nanoseconds: promise.echoNanoseconds)
        let trip = now - sentAt - .microseconds(Int64(promise.heldMicroseconds))
        peers[index].roundTrip.note(max(trip, .zero), now: now)
        let span = Duration.milliseconds(Int64(promise.promisedMilliseconds))
        let counted = span - max(span / Self.clockRateMargin, Self.marginMin)
        guard counted > .zero else { return }
        peers[index].end = max(peers[index].end, sentAt + counted)
    }

    private func end(of peer: Peer) -> MonotonicTime {
        guard !peer.speaks else { return peer.end }
        return peer.lastDatagram.map { $0 + configuration.silenceMax / 2 } ?? .zero
    }

    // MARK: The permission

    /// Evaluates the promises. Needed after each datagram and each tick.
    ///
    /// - Parameter gone: peers that are proven dead.
    package mutating func evaluate(gone: [NodeID], now: MonotonicTime) -> [Step] {
        guard isMember else { return [] }
        let present = peers.filter { !gone.contains($0.id) }
        let until = Self.majorityEnd(present.map(end))
        if answersUntil > now {
            // Not interrupted: whoever voted is outside of the majority.
            answersUntil = until
            confirmation = .none
            return []
        }
        guard until > now else { return [] }
        let unmarked = Self.majorityEnd(present.map { $0.knownVote <= $0.voidVote ? end(of: $0) : .zero })
        if unmarked > now {
            answersUntil = until
            confirmation = .none
            return []
        }
        switch confirmation {
        case .underWay: return []
        case .wanted(let from) where now < from: return []
        case .none, .wanted:
            lastConfirmation += 1
            let votes = Dictionary(uniqueKeysWithValues: peers.map { ($0.id, $0.knownVote) })
            confirmation = .underWay(lastConfirmation, votes: votes)
            return [.confirmMap(lastConfirmation)]
        }
    }

    /// The time until which a majority has promised, this node included. `ends` are those of all others.
    private static func majorityEnd(_ ends: [MonotonicTime]) -> MonotonicTime {
        // Of n members, n / 2 others are needed.
        let neededCount = (ends.count + 1) / 2
        guard neededCount > 0 else { return always }
        return ends.sorted(by: >)[neededCount - 1]
    }

    /// The map was replaced after ``Step/confirmMap(_:)``, or could not be.
    package mutating func confirmed(_ number: UInt64, isDone: Bool, now: MonotonicTime) {
        guard case .underWay(number, let votes) = confirmation else { return }
        guard isDone else { return confirmation = .wanted(from: now + Self.confirmInterval) }
        confirmation = .none
        for index in peers.indices {
            peers[index].voidVote = max(peers[index].voidVote, votes[peers[index].id] ?? 0)
        }
    }

    private func index(of id: NodeID) -> Int? { peers.firstIndex { $0.id == id } }
}

/// The smallest value of the last one or two windows.
struct RecentMinimum: Sendable {
    private static let window = Duration.seconds(2)
    private var current: Duration?
    private var previous: Duration?
    private var windowEnd = MonotonicTime.zero

    /// The value at the last ``note(_:now:)``; zero before the first.
    var value: Duration {
        switch (current, previous) {
        case (let current?, let previous?): min(current, previous)
        case (let one, let other): one ?? other ?? .zero
        }
    }

    mutating func note(_ value: Duration, now: MonotonicTime) {
        if now >= windowEnd {
            previous = now < windowEnd + Self.window ? current : nil
            current = nil
            windowEnd = now + Self.window
        }
        current = min(current ?? value, value)
    }
}
