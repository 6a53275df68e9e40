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
/// **Both directions.** A node whose packets arrive, but which receives none, owns shards and can answer nobody. A peer
/// that sends promises is therefore alive as far as it echoes what this node sent (``hasContact(with:now:)``), and
/// promises of this node end as well when it echoes nothing new.
///
/// **Permission.** A node may answer until the time to which it has promises of a majority of its newest map's members.
/// Its own promise has no end. Votes against it need a majority of those that are not proven dead, and more while the
/// promises of dead ones may last (``MembershipStateMachine``). The two majorities have a node in common, which has
/// either promised or voted, never both: it votes only when its promise has ended, and promises nothing until its vote
/// counts nowhere (`voteLifetime` and ``voteMargin``). Members that are proven dead count until the map shows their
/// deaths, because they may have started again as members that this node does not know.
///
/// **After a lapse** a decision against this node may be on its way to the ownership store: votes were counted, and the
/// swap is made later. A promise therefore has the number of the sender's last vote against the receiver, for
/// ``voteMemory``. If a majority of promises is without such a number, no majority has voted, and the node goes on.
/// Otherwise it first replaces the map by the same map (``Step/confirmMap(_:)``). Every decision that was made on the
/// earlier revision fails then, and deciders need new votes. After that, the votes that it knew before no longer count.
///
/// **After a stall** of this node itself, others may have found its process stopped, which is a proof that needs no
/// votes. A stall that is long enough for that ends the permission, and the map is replaced before it comes back.
///
/// **A node without others** permits itself to answer for `silenceMax` at a time, so a stall ends this permission too.
///
/// **Watchers.** Beyond a full mesh (``WatchPlan``) both majorities are of the node's watchers W. It may answer with
/// the promises of more than half of the W of its own map. Its death needs the votes of more than half of the W of the
/// map that the decision replaces, where the node itself counts as a watcher that does not vote. Of 8 watchers that is
/// 5 and 5. Of the same W, the two have at least two nodes in common. But the node may be cut off from the store, and
/// its map may be older than the decider's by any number of joins and deaths, each of which replaces up to one watcher.
/// Two W that differ need not have such majorities in common. Therefore:
/// - A node votes only if it is acknowledged: the other node's promises showed that it counts this node among its
///   watchers. A node sends promises to its watchers alone. Acknowledgements end when a map shows that the two do not
///   watch each other any more. The voters are then in the W of the node's own map, and the argument above holds, with
///   one node to spare. It would need two watchers that left W and came back, neither of which applied a map in between
///   that the node did apply.
/// - A member that joins after this node counts this node from its first map on, so it needs no acknowledgement.
/// - Full mesh and ring count differently, so an acknowledgement is valid only for the kind of map that it was made in.
///   This concerns maps of more than `fullMeshMax` members.
/// - A node without permission to answer is perhaps in a minority itself, and does not vote. This is not for safety: it
///   keeps a minority, which contains most watchers of some nodes of the majority, from declaring those dead.
///
/// Votes that do not count for one of these reasons count as uncounted ones (``Vote/uncounted``). They let a member die
/// whose lease in the store has run out, since otherwise one that nobody was acknowledged by could never be declared
/// dead.
///
/// Two members that do not watch each other exchange no promises, so any datagram shows that the other one runs. When
/// they begin to watch each other, the other one has `firstContactTimeout` to echo something, like a new member.
///
/// **Earlier versions** promise nothing. A member of one counts as promising while it was heard within half of
/// `silenceMax`, since it votes after that silence: as safe as before. A member is of one if it sends no promise for
/// ``offerWait``.
///
/// What it does not cover: a clock that stands still while the machine is suspended, and a cluster that gains members,
/// several or beside a single one, while this node is cut off from the ownership store, since it does not know that
/// they count.
///
/// Pure value: confined to its owner, which passes the time.
package struct PromiseStateMachine: Sendable {
    /// The part of a promise that its holder does not count: clocks run at different rates, by one in this many.
    static let clockRateMargin = 200
    /// The least part of a promise that its holder does not count.
    static let marginMin = Duration.milliseconds(1)
    /// How long after the end of its vote's lifetime a node promises nothing: the time that the vote may travel.
    static let voteMargin = Duration.milliseconds(200)
    /// How long promises have the number of a vote. The swap of a decision takes less.
    static let voteMemory = Duration.seconds(10)
    /// The interval at which a heartbeat with a promise goes to a peer that has sent none: at first, and after
    /// ``offerCount`` of them.
    static let (offerIntervalMin, offerInterval) = (Duration.milliseconds(100), Duration.seconds(1))
    static let offerCount = 20
    /// A peer that is heard for this time without a promise is of an earlier version.
    static let offerWait = Duration.seconds(1)
    /// The part of `silenceMax` after which an exchange with a peer in both directions is old.
    static let contactShare = 0.75
    /// The interval at which the map is replaced again after a failure.
    static let confirmInterval = Duration.milliseconds(100)
    package enum Step: Sendable, Equatable {
        /// Replace the map by the same map. ``confirmed(_:isDone:now:)`` with the same number answers.
        case confirmMap(UInt64)
    }

    /// The value of this node's statement that it does not hear a peer.
    package enum Vote: Sendable, Equatable {
        /// It says nothing: it promised.
        case none
        /// It counts only if the peer's lease has run out.
        case uncounted
        case counted
    }

    /// The members that a node counts.
    private enum Electorate: Sendable {
        case all
        case watchers
    }

    private struct Peer: Sendable {
        var id: NodeID
        /// It and this node watch each other.
        var isWatched = true
        /// It counts this node among the nodes whose promises it needs.
        var acknowledged: Electorate?
        /// It sent a promise.
        var speaks = false
        var firstDatagram: MonotonicTime?
        var lastDatagram: MonotonicTime?
        /// The newest time at which packets are known to have passed in both directions.
        var contact: MonotonicTime?
        var nextOffer = MonotonicTime.zero
        var offerCount = 0
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
        /// With the votes, and the number of stalls, that are void once it is done.
        case underWay(UInt64, votes: [NodeID: UInt32], stallCount: Int)
    }

    private let configuration: MembershipConfiguration
    private var peers: [Peer] = []
    /// Only looked up.
    private var indexes: [NodeID: Int] = [:]
    /// The indexes of the watched peers.
    private var watched: [Int] = []
    private var electorate = Electorate.all
    private var isMember = false
    private var confirmation = Confirmation.none
    private var lastConfirmation: UInt64 = 0
    private var lastEvaluation: MonotonicTime?
    /// The stalls of this node, and those before the last replacement of the map.
    private var (stallCount, voidStallCount) = (0, 0)
    /// The time until which promises of a majority permit this node to answer.
    package private(set) var answersUntil = MonotonicTime.zero
    /// This node may answer before this time. A stall ends the permission while it lasts.
    package var permissionEnd: MonotonicTime { min(answersUntil, (lastEvaluation ?? .zero) + stallMax) }

    package init(configuration: MembershipConfiguration) { self.configuration = configuration }

    /// Sets the other members of the newest map that are alive. Called once this node is a member.
    ///
    /// - Parameter watchers: The watchers of this node; nil if those are all others.
    package mutating func setPeers(_ ids: [NodeID], watchers: [NodeID]? = nil) {
        electorate = watchers == nil ? .all : .watchers
        var next: [Peer] = []
        for id in ids {
            var peer = index(of: id).map { peers[$0] } ?? Peer(id: id, acknowledged: isMember ? electorate : nil)
            let isWatched = watchers?.contains(id) ?? true
            // Contacts of before it was watched say nothing about the present ones.
            if isWatched, !peer.isWatched { (peer.firstDatagram, peer.contact) = (nil, nil) }
            peer.isWatched = isWatched
            if !isWatched { peer.acknowledged = nil }
            next.append(peer)
        }
        isMember = true
        peers = next
        watched = next.indices.filter { next[$0].isWatched }
        indexes = Dictionary(ids.enumerated().map { ($1, $0) }, uniquingKeysWith: { first, _ in first })
    }

    /// This node is no member.
    package mutating func exclude() {
        isMember = false
        (peers, indexes, watched) = ([], [:], [])
        confirmation = .none
        answersUntil = .zero
        lastEvaluation = nil
    }

    // MARK: Promises of this node

    /// The message of a heartbeat that is due, and perhaps a second one.
    package mutating func heartbeats(to id: NodeID, now: MonotonicTime) -> [HeartbeatMessage] {
        guard let index = index(of: id) else { return [.heartbeat] }
        guard !peers[index].speaks else { return [.promise(makePromise(index, now: now))] }
        guard now >= peers[index].nextOffer else { return [.heartbeat] }
        let isFrequent = peers[index].offerCount < Self.offerCount
        peers[index].offerCount += 1
        peers[index].nextOffer = now + (isFrequent ? Self.offerIntervalMin : Self.offerInterval)
        return [.heartbeat, .promise(makePromise(index, now: now))]
    }

    private mutating func makePromise(_ index: Int, now: MonotonicTime) -> HeartbeatPromise {
        let peer = peers[index]
        var promise = HeartbeatPromise(
            sentNanoseconds: now.nanoseconds, isAmongWatchers: electorate == .watchers)
        if let votedAt = peer.votedAt, now - votedAt < Self.voteMemory { promise.vote = peer.vote }
        guard let echo = peer.echo else { return promise }
        promise.echoNanoseconds = echo.sent
        promise.heldMicroseconds = UInt32(clamping: (now - echo.heardAt).nanoseconds / 1000)
        if let votedAt = peer.votedAt, now - votedAt < configuration.voteLifetime + Self.voteMargin { return promise }
        guard hasContact(peer, now: now) else { return promise }
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

    /// The vote of this node, which does not hear the peer.
    package func vote(against id: NodeID, now: MonotonicTime) -> Vote {
        guard mayVote(against: id, now: now) else { return .none }
        guard peers.count >= configuration.fullMeshMax || electorate == .watchers, let index = index(of: id) else {
            return .counted
        }
        guard peers[index].isWatched else { return .none }
        guard peers[index].acknowledged == electorate else { return .uncounted }
        return electorate == .all || permissionEnd > now ? .counted : .uncounted
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
        guard let index = index(of: id) else { return }
        peers[index].firstDatagram = peers[index].firstDatagram ?? now
        peers[index].lastDatagram = now
    }

    /// A heartbeat without a promise arrived. Nodes of earlier versions send it to all members, and others when they
    /// do not know that the receiver reads promises.
    package mutating func receivedHeartbeat(from id: NodeID) {
        guard let index = index(of: id), electorate == .all else { return }
        peers[index].acknowledged = .all
    }

    package mutating func received(_ promise: HeartbeatPromise, from id: NodeID, now: MonotonicTime) {
        guard let index = index(of: id) else { return }
        peers[index].acknowledged = promise.isAmongWatchers ? .watchers : .all
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
        let held = min(.microseconds(Int64(promise.heldMicroseconds)), now - .zero)
        let contact = MonotonicTime.zero + (now - .zero - held)
        peers[index].contact = max(peers[index].contact ?? contact, contact)
        let span = Duration.milliseconds(Int64(promise.promisedMilliseconds))
        let counted = span - max(span / Self.clockRateMargin, Self.marginMin)
        guard counted > .zero else { return }
        peers[index].end = max(peers[index].end, sentAt + counted)
    }

    /// The peer answered something that this node sent just now.
    package mutating func answered(by id: NodeID, now: MonotonicTime) {
        if let index = index(of: id) { peers[index].contact = now }
    }

    /// True if datagrams of this peer show that it is alive: packets passed in both directions not long ago, or it is
    /// of an earlier version, which echoes nothing, or it may have heard nothing from this node yet, or the two do not
    /// watch each other.
    package func hasContact(with id: NodeID, now: MonotonicTime) -> Bool {
        index(of: id).map { hasContact(peers[$0], now: now) } ?? false
    }

    private func hasContact(_ peer: Peer, now: MonotonicTime) -> Bool {
        guard peer.speaks, peer.isWatched else { return true }
        if let contact = peer.contact { return now - contact <= configuration.silenceMax * Self.contactShare }
        return peer.firstDatagram.map { now - $0 <= configuration.firstContactTimeout } ?? true
    }

    private func end(of peer: Peer) -> MonotonicTime {
        // A ring has no members of earlier versions.
        guard !peer.speaks, electorate == .all else { return peer.end }
        guard let first = peer.firstDatagram, let last = peer.lastDatagram, last - first >= Self.offerWait else {
            return .zero
        }
        return last + configuration.silenceMax / 2
    }

    /// The longest of the smallest recent round trips to the watched peers.
    package var roundTripMax: Duration { watched.map { peers[$0].roundTrip.value }.max() ?? .zero }

    // MARK: The permission

    /// Evaluates the promises. Needed after each datagram and each tick.
    ///
    /// - Parameter gone: peers that are proven dead.
    package mutating func evaluate(gone: [NodeID], now: MonotonicTime) -> [Step] {
        guard isMember else { return [] }
        noteStall(now: now)
        let alone = now + configuration.silenceMax
        let until = majorityEnd(watched.map { gone.contains(peers[$0].id) ? .zero : end(of: peers[$0]) }) ?? alone
        if answersUntil > now {
            // Not interrupted: whoever voted is outside of the majority.
            answersUntil = until
            confirmation = .none
            return []
        }
        guard until > now else { return [] }
        let unmarked =
            majorityEnd(
                watched.map { index in
                    let peer = peers[index]
                    return gone.contains(peer.id) || peer.knownVote > peer.voidVote ? .zero : end(of: peer)
                }) ?? alone
        if unmarked > now, stallCount == voidStallCount {
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
            confirmation = .underWay(lastConfirmation, votes: votes, stallCount: stallCount)
            return [.confirmMap(lastConfirmation)]
        }
    }

    /// A process that does not run for this time has no permission when it runs again, and replaces the map first.
    var stallMax: Duration { configuration.silenceMax - configuration.heartbeatInterval * 6 / 5 }

    /// Ends the permission if this node did not run for so long that others may have found its process stopped. They
    /// look after `silenceMax`, counted from a datagram that is up to a heartbeat older than the stall.
    private mutating func noteStall(now: MonotonicTime) {
        defer { lastEvaluation = now }
        guard let lastEvaluation, now - lastEvaluation >= stallMax else { return }
        stallCount += 1
        answersUntil = min(answersUntil, now)
    }

    /// The time until which a majority has promised: of all members, this node included, or of its watchers. `ends` are
    /// those of the others. Nil if this node is the only member.
    private func majorityEnd(_ ends: [MonotonicTime]) -> MonotonicTime? {
        // Of n members, n / 2 others are needed. Of n watchers, more than n / 2.
        let neededCount = electorate == .all ? (ends.count + 1) / 2 : ends.count / 2 + 1
        guard neededCount > 0 else { return nil }
        guard neededCount <= ends.count else { return .zero }
        return ends.sorted(by: >)[neededCount - 1]
    }

    /// The map was replaced after ``Step/confirmMap(_:)``, or could not be.
    package mutating func confirmed(_ number: UInt64, isDone: Bool, now: MonotonicTime) {
        guard case .underWay(number, let votes, let stallCount) = confirmation else { return }
        guard isDone else { return confirmation = .wanted(from: now + Self.confirmInterval) }
        confirmation = .none
        voidStallCount = stallCount
        for index in peers.indices {
            peers[index].voidVote = max(peers[index].voidVote, votes[peers[index].id] ?? 0)
        }
    }

    private func index(of id: NodeID) -> Int? { indexes[id] }
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
