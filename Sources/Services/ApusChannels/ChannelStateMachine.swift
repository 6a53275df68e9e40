package import ApusCore
package import ApusMedia

/// One media channel as one node sees it: its role, its frames, and what it owes to whom (D7).
///
/// A channel lives in its device's shard. The shard's owner is the channel's **primary**: it takes the
/// publisher's frames, fans them out, copies them to the shard's **standby**, and acknowledges to the
/// publisher what the standby has. Any other node with viewers is an **edge**: it subscribes to the
/// primary, or to the standby where the primary cannot be reached, with everything after its last frame.
///
/// When the primary dies the map makes the standby the owner, and ``assign(_:now:)`` promotes it: its
/// ring has every acknowledged frame, the publisher's door asks it where to go on, and edges resume
/// from it. Nothing acknowledged can be lost, and positions make everything sent twice harmless: a
/// frame with a given position is always the same frame, because only the publisher numbers.
///
/// **Another standby, planned.** The node that is to stand by is a **candidate** first
/// (``setCandidate(_:now:)``): it is copied to beside the standby, and once it has all that was ever
/// acknowledged, the publisher hears only of what both have. From then on the map may name it at any moment,
/// noticed here or not, and a primary that dies finds everything acknowledged at whoever stands by.
///
/// **An old picture is no live picture.** A node whose copy of the channel is not fed, because nobody watched there
/// or its primary is out of reach, keeps its frames for those that go on where they were. A live join there waits
/// for the node that feeds it next, which says where the live picture begins (``liveFloor``).
///
/// Terms (the shard's epoch) fence the streams between nodes: a standby refuses copies of an older term,
/// an edge refuses a subscription of an older term, so a primary that was paused gets no
/// acknowledgement from anybody and learns that it is not one any more.
///
/// Pure: confined to the channel's home event loop by its shell; time comes in.
package struct ChannelStateMachine: Sendable {
    package typealias IngestID = UInt64
    package typealias SubscriptionID = UInt64

    package struct Configuration: Sendable {
        package var ring = FrameRingLimits()
        /// How long the standby may owe an acknowledgement before the channel goes on unprotected and
        /// says so. Key `channels.protection_timeout`.
        package var protectionTimeout: Duration = .seconds(1)
        /// Wait before the first retry of a failed subscription or copy; doubles up to
        /// ``retryDelayMax``. Key `channels.retry_delay`.
        package var retryDelay: Duration = .milliseconds(10)
        package var retryDelayMax: Duration = .milliseconds(200)
        /// How far the epoch that a client claims may be ahead of this node's clock. Key `channels.epoch_ahead_max`.
        package var epochAheadMax: Duration = .seconds(86_400)
        package init() {}
    }

    /// Who owns the channel's shard and who stands by, as the map says.
    package struct Assignment: Sendable, Equatable {
        package var term: Epoch
        package var owner: NodeID?
        package var standby: NodeID?
        package init(term: Epoch, owner: NodeID?, standby: NodeID?) {
            self.term = term
            self.owner = owner
            self.standby = standby
        }
    }

    /// What the shell does next, in this order.
    package enum Action: Sendable {
        /// Hand frames to every fan-out.
        case distribute([RelayFrame])
        /// Hand a repeated configuration to every fan-out.
        case adopt(RelayFrame)
        /// Live joins begin at a key frame no earlier than this; nil: at the newest that is held.
        case beginLive(FramePosition?)
        /// Tell the publisher that every sequence below `next` is safe.
        case acknowledge(IngestID, epoch: UInt32, next: UInt64)
        /// Tell the publisher to send again from `next`.
        case resume(IngestID, next: UInt64)
        /// The publisher's stream is no longer wanted here.
        case endIngest(IngestID, ApusError)
        /// Open a copy at the standby or the candidate; answer with ``copyOpened(at:after:now:)`` or
        /// ``copyFailed(at:now:)``.
        case openCopy(NodeID)
        /// Stop copying to a node.
        case closeCopy(NodeID)
        /// Tell the node of an open copy whose frames follow; see ``publisherIdentity``.
        case announcePublisher(NodeID)
        /// Tell the primary, by the copy that is open, that this node takes it no more.
        case refuseCopy
        /// Tell the primary what this standby has.
        case confirmCopy(epoch: UInt32, next: UInt64)
        /// Ask a node for frames; answer with ``subscribed(_:term:liveFrom:now:)`` or ``subscriptionLost(_:now:)``.
        case subscribe(SubscriptionID, NodeID, after: FramePosition?)
        case unsubscribe(SubscriptionID)
    }

    /// The answer to a publisher that wants to send.
    package enum IngestAnswer: Sendable, Equatable {
        case accepted(epoch: UInt32, next: UInt64, isProtected: Bool)
        case refused(ApusError)
    }

    /// The answer to a primary that wants to copy.
    package enum CopyAnswer: Sendable, Equatable {
        case accepted(after: FramePosition?)
        case refused(ApusError)
    }

    package enum Role: String, Sendable { case primary, standby, edge }

    private struct Publisher: Sendable {
        var epoch: UInt32
        var instance: UInt64
        var ingest: IngestID?
        /// A gap was told to the publisher, which is to go on from here.
        var askedToResumeAt: UInt64?
        /// What came before this number is gone for good: the publisher itself no longer holds it.
        var startsAt: UInt64
    }

    /// What one other node gets of this primary's frames.
    private struct Copy: Sendable {
        enum Step: Sendable {
            case opening
            case active(confirmed: FramePosition?)
            case waiting(until: MonotonicTime)
        }

        let node: NodeID
        var step = Step.opening
        var retryDelay: Duration

        /// The newest frame that the node has told of, while the copy is open.
        var confirmed: FramePosition? {
            if case .active(let confirmed) = step { confirmed } else { nil }
        }
        var isActive: Bool {
            if case .active = step { true } else { false }
        }
        func has(_ position: FramePosition?) -> Bool {
            guard let position else { return true }
            return confirmed.map { $0 >= position } ?? false
        }
    }

    private struct Upstream: Sendable {
        var id: SubscriptionID
        var node: NodeID
        /// What was asked for; nil: the live picture.
        var after: FramePosition?
        var isOpen = false
    }

    package let channel: ChannelID
    package let local: NodeID
    private let configuration: Configuration
    package private(set) var assignment = Assignment(term: 0, owner: nil, standby: nil)
    package private(set) var ring: FrameRing
    private var publisher: Publisher?
    /// Another instance while the publisher is attached: its first frame makes it the publisher.
    private var challenger: Publisher?
    /// The newest epoch after which a receiver wanted to go on.
    private var seenEpoch: UInt32 = 0
    private var hasReceivers = false
    /// Live joins begin at a key frame no earlier than this; nil: at the newest that is held.
    package private(set) var liveFloor: FramePosition?
    /// As edge: nothing came since the node has receivers, so that its frames may be old.
    private var isBehind = true
    /// The earliest position after which a receiver wants frames, while none are held.
    private var wantedAfter: FramePosition?
    /// As primary: at the standby, and at the candidate where there is one.
    private var copies: [Copy] = []
    /// As primary: who is to stand by, as soon as it has everything.
    private var candidate: NodeID?
    /// The candidate had everything that was acknowledged: nothing is acknowledged any more without it.
    private var isCandidateCounted = false
    /// What the candidate was to have to be counted, since a time.
    private var candidateMark: (position: FramePosition, since: MonotonicTime)?
    /// The candidate was counted, and then owed a confirmation for too long.
    private var isCandidateLate = false
    /// As primary: no frame after this one was ever acknowledged, by this node or by one before it.
    private var promised: FramePosition?
    /// What the standby owes longest: every sequence below `next`, since a time.
    private var owed: (next: UInt64, since: MonotonicTime)?
    private var lastLooked = MonotonicTime.zero
    private var isUnprotected = false
    /// What the publisher was last told.
    private var acknowledged: UInt64?
    /// Nobody used the channel for long: it is not copied until somebody does.
    private var isLetGo = false
    /// As standby: the term of the copy that is open.
    private var copyTerm: Epoch?
    /// As edge: at most one stream in use and one that is to take its place.
    private var upstreams: [Upstream] = []
    private var nextSubscription: SubscriptionID = 1
    private var retryAt: MonotonicTime?
    private var retryDelay: Duration
    private var triesStandbyNext = false

    package init(channel: ChannelID, local: NodeID, configuration: Configuration) {
        self.channel = channel
        self.local = local
        self.configuration = configuration
        ring = FrameRing(limits: configuration.ring)
        retryDelay = configuration.retryDelay
    }

    package var role: Role {
        if assignment.owner == local { return .primary }
        return assignment.standby == local ? .standby : .edge
    }

    /// True where every frame that was acknowledged is held by two nodes.
    package var isProtected: Bool {
        guard role == .primary, !isUnprotected, !isCandidateLate, let copy = copy(at: assignment.standby),
            copy.isActive
        else { return false }
        guard let publisher, let acknowledged, acknowledged > 0 else { return true }
        return copy.confirmed.map { $0 >= FramePosition(epoch: publisher.epoch, sequence: acknowledged - 1) } ?? false
    }

    /// A publisher is attached to this node's copy of the channel, or its frames come from upstream.
    package var isFed: Bool {
        publisher?.ingest != nil || challenger != nil || copyTerm != nil || upstreams.contains(where: \.isOpen)
    }

    /// The publisher that a copy is opened for; zeros where none is known.
    package var publisherIdentity: (epoch: UInt32, instance: UInt64) {
        let newest = ring.last?.epoch ?? 0
        guard let publisher, publisher.epoch >= newest else { return (newest, 0) }
        return (publisher.epoch, publisher.instance)
    }

    /// Nothing is attached: the shell may drop the channel after a while.
    package var isIdle: Bool {
        !hasReceivers && publisher?.ingest == nil && challenger == nil && copyTerm == nil
    }

    // MARK: - The map

    /// The map gave the channel's shard a new owner, standby or epoch.
    package mutating func assign(_ new: Assignment, now: MonotonicTime) -> [Action] {
        guard new != assignment, new.term >= assignment.term else { return [] }
        let (wasPrimary, wasStandby) = (role == .primary, role == .standby)
        let isNewTerm = new.term != assignment.term
        assignment = new
        var actions: [Action] = []
        // A standby that is replaced goes on as an edge, under the same term.
        // Whoever copies may not have seen this map, or not the ones between: it hears of it.
        if let term = copyTerm, term < new.term || (wasStandby && role != .standby) || role == .primary {
            copyTerm = nil
            actions.append(.refuseCopy)
        }
        if role == .primary {
            // What was opened under an earlier term is not taken any more.
            if wasPrimary, isNewTerm { actions += closeCopies() }
            if !wasPrimary || isNewTerm { promised = ring.last }
            if candidate == new.standby || candidate == local { setNoCandidate() }
            actions += dropUpstreams()
            // What an edge kept from earlier is no live picture; what a standby has is all that there is.
            if !wasPrimary { actions += setLiveFloor(isBehind ? ring.last.map(Self.successor) : nil) }
            actions += adjustCopy(now: now)
            actions += acknowledgements(now: now)
        } else {
            if wasPrimary {
                actions += stepDown()
            }
            actions += adjustUpstream(now: now)
        }
        return actions
    }

    /// A receiver is about to come that has everything up to a position: an edge that is not fed then
    /// asks for those after it and not for the live picture, which may begin later.
    package mutating func receiverWants(after position: FramePosition?) {
        guard isBehind, let position else { return }
        wantedAfter = wantedAfter.map { min($0, position) } ?? position
    }

    /// Viewers or edges came to this node, or the last one left. The standby does not count.
    package mutating func receiversChanged(hasReceivers: Bool, now: MonotonicTime) -> [Action] {
        self.hasReceivers = hasReceivers
        if hasReceivers { isLetGo = false }
        if !hasReceivers { wantedAfter = nil }
        return role == .primary ? [] : askEarlier() + adjustUpstream(now: now)
    }

    /// Time, soon, will bring something about: a copy or a subscription is to be tried again.
    ///
    /// A standby that owes a confirmation is not counted: it is looked at with every frame.
    package var isWaiting: Bool {
        let hasWaitingCopy = copies.contains { if case .waiting = $0.step { true } else { false } }
        let isSubscriber = role != .primary && hasReceivers && copyTerm == nil
        return role == .primary && hasWaitingCopy || isSubscriber && retryAt != nil
    }

    /// Another node copies the channel, or is to.
    package var hasCopies: Bool { !copies.isEmpty }

    /// Something that was waited for may be due.
    package mutating func tick(now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        if role == .primary {
            actions += adjustCopy(now: now)
            actions += acknowledgements(now: now)
        } else {
            actions += adjustUpstream(now: now)
        }
        return actions
    }

    /// The channel was idle for as long as it is remembered: its copy ends, so that the standby may forget it too.
    package mutating func letGo() -> [Action] {
        guard isIdle, !isLetGo else { return [] }
        isLetGo = true
        guard role == .primary else { return [] }
        // The standby may forget it too: nothing of it is promised any more.
        promised = nil
        return closeCopies()
    }

    private mutating func stepDown() -> [Action] {
        var actions = closeCopies()
        setNoCandidate()
        promised = nil
        owed = nil
        isUnprotected = false
        for ingest in [publisher?.ingest, challenger?.ingest] {
            guard let ingest else { continue }
            actions.append(.endIngest(ingest, ApusError(.moved, "the channel has another primary")))
        }
        publisher?.ingest = nil
        challenger = nil
        return actions
    }

    // MARK: - As primary: the publisher

    /// A publisher, here or at another node's door, wants to send (IV-C1).
    ///
    /// ``PublisherEpoch`` says which epoch it gets, or 10024. While a publisher is attached, another instance takes
    /// its place with its first frame: the one before then hears 10024, and hears it only from one that sends.
    ///
    /// - Parameter wallSeconds: this node's clock, in Unix seconds.
    package mutating func openIngest(
        _ id: IngestID, _ offer: PublishOffer, wallSeconds: UInt32, now: MonotonicTime
    ) -> (answer: IngestAnswer, actions: [Action]) {
        guard role == .primary else { return (.refused(ApusError(.moved)), []) }
        guard offer.isConfirmed || offer.continues(publisherIdentity) else {
            return (.refused(ApusError(.unavailable, "the owner has not confirmed the publisher's session yet")), [])
        }
        guard case .given(let epoch) = publisherEpoch(wallSeconds: wallSeconds).answer(to: offer) else {
            let known = publisherIdentity.epoch
            return (.refused(ApusError(.stalePublisher, "epoch \(known) of another publisher is known")), [])
        }
        let next = max(ring.next(in: epoch) ?? offer.oldest, offer.oldest)
        let opened = Publisher(epoch: epoch, instance: offer.instance, ingest: id, startsAt: next)
        var actions: [Action] = []
        if let previous = challenger?.ingest { actions.append(.endIngest(previous, ending(challenger, for: opened))) }
        challenger = nil
        isLetGo = false
        if let publisher, let previous = publisher.ingest {
            guard publisher.instance == offer.instance else {
                challenger = opened
                return (.accepted(epoch: epoch, next: next, isProtected: isProtected), actions)
            }
            actions.append(.endIngest(previous, ending(publisher, for: opened)))
        }
        actions += take(opened)
        actions += adjustCopy(now: now)
        return (.accepted(epoch: epoch, next: next, isProtected: isProtected), actions)
    }

    private func publisherEpoch(wallSeconds: UInt32) -> PublisherEpoch {
        let (known, holder) = publisherIdentity
        return PublisherEpoch(
            known: known, holder: holder, seen: max(seenEpoch, challenger?.epoch ?? 0), wallSeconds: wallSeconds,
            aheadMax: UInt32(clamping: configuration.epochAheadMax.components.seconds))
    }

    /// The same publisher may come through another endpoint, while the one it left has not noticed yet.
    private func ending(_ previous: Publisher?, for next: Publisher) -> ApusError {
        ApusError(previous?.instance == next.instance ? .kicked : .stalePublisher)
    }

    /// An instance is the channel's publisher from here on.
    private mutating func take(_ opened: Publisher) -> [Action] {
        let isSame = publisher.map { $0.epoch == opened.epoch && $0.instance == opened.instance } ?? false
        publisher = opened
        acknowledged = nil
        return isSame ? [] : copies.filter(\.isActive).map { .announcePublisher($0.node) }
    }

    /// The challenger sends: it is the publisher now, and the one before is superseded.
    private mutating func takeChallenger(_ id: IngestID) -> [Action] {
        guard let challenger, challenger.ingest == id else { return [] }
        self.challenger = nil
        var actions: [Action] = []
        if let previous = publisher?.ingest { actions.append(.endIngest(previous, ApusError(.stalePublisher))) }
        return actions + take(challenger)
    }

    /// A receiver, here or at another node, has everything up to a position: epochs that are given go on after it.
    package mutating func receiverHas(_ position: FramePosition?) {
        if let position { seenEpoch = max(seenEpoch, position.epoch) }
    }

    /// Frames from the publisher, in the order they came.
    package mutating func ingest(_ id: IngestID, _ frames: [RelayFrame], now: MonotonicTime) -> [Action] {
        guard role == .primary else { return [] }
        let ended = frames.isEmpty ? [] : takeChallenger(id)
        guard let publisher, publisher.ingest == id else { return ended }
        var accepted: [RelayFrame] = []
        var actions = ended
        for var frame in frames where frame.position.epoch == publisher.epoch {
            // Frames that were on the way when the stream was opened may come before the one it starts with.
            let isFirst = ring.last?.epoch != publisher.epoch
            let offered: FrameRing.Appended
            if isFirst, frame.position.sequence != publisher.startsAt {
                offered = .gap(expected: publisher.startsAt)
            } else {
                frame.stamp(term: assignment.term)
                offered = ring.append(frame, allowingGap: frame.position.sequence == publisher.startsAt)
            }
            switch offered {
            case .appended:
                self.publisher?.askedToResumeAt = nil
                accepted.append(frame)
            case .gap(let expected):
                guard self.publisher?.askedToResumeAt != expected else { continue }
                self.publisher?.askedToResumeAt = expected
                actions.append(.resume(id, next: expected))
            case .duplicate, .stale:
                continue
            }
        }
        if !accepted.isEmpty {
            caughtUp()
            actions.insert(.distribute(accepted), at: 0)
        }
        return actions + acknowledgements(now: now)
    }

    /// The publisher's stream is gone; the publisher may come back, here or elsewhere.
    package mutating func closeIngest(_ id: IngestID) {
        if challenger?.ingest == id { challenger = nil }
        guard publisher?.ingest == id else { return }
        publisher?.ingest = nil
    }

    /// What the publisher may be told now, and whether the standby owes for too long.
    private mutating func acknowledgements(now: MonotonicTime) -> [Action] {
        guard role == .primary, let publisher, let last = ring.last, last.epoch == publisher.epoch else { return [] }
        let held = last.sequence + 1
        countCandidate(now: now)
        var confirmed = assignment.standby == nil ? held : confirmedCount(at: assignment.standby, of: publisher.epoch)
        if isCandidateCounted { confirmed = min(confirmed, confirmedCount(at: candidate, of: publisher.epoch)) }
        measureDebt(epoch: publisher.epoch, held: held, confirmed: confirmed, now: now)
        if !isCandidateCounted, assignment.standby != nil {
            confirmed = confirmedCount(at: assignment.standby, of: publisher.epoch)
        }
        let safe = isUnprotected ? held : confirmed
        // What was said stays said: another standby may have less at first.
        guard let ingest = publisher.ingest, safe > acknowledged ?? 0 else { return [] }
        acknowledged = safe
        let newest = FramePosition(epoch: publisher.epoch, sequence: safe - 1)
        promised = promised.map { max($0, newest) } ?? newest
        // Without protection the candidate is left behind too.
        if isUnprotected { leaveCandidateBehind() }
        return [.acknowledge(ingest, epoch: publisher.epoch, next: safe)]
    }

    /// The number below which a node has every frame of an epoch; of those that this node has, whatever the other says.
    private func confirmedCount(at node: NodeID?, of epoch: UInt32) -> UInt64 {
        guard let confirmed = copy(at: node)?.confirmed, confirmed.epoch == epoch else { return 0 }
        return min(confirmed.sequence + 1, ring.next(in: epoch) ?? 0)
    }

    /// Looks whether the standby owes a confirmation for too long. Time in which this node itself did
    /// not look does not count: one that was stopped may have been replaced meanwhile (D4).
    private mutating func measureDebt(epoch: UInt32, held: UInt64, confirmed: UInt64, now: MonotonicTime) {
        let wasStopped = now - lastLooked >= Self.lateness
        lastLooked = now
        if confirmed >= held {
            owed = nil
            isUnprotected = false
        } else if let debt = owed, !wasStopped, confirmed < debt.next {
            guard now - debt.since >= configuration.protectionTimeout else { return }
            if confirmedCount(at: assignment.standby, of: epoch) >= debt.next {
                leaveCandidateBehind()
                owed = nil
            } else {
                isUnprotected = true
            }
        } else {
            // Newer frames are always on the way. A standby that confirms in time what it owed keeps up.
            if let debt = owed, !wasStopped, now - debt.since < configuration.protectionTimeout {
                isUnprotected = false
            }
            owed = (held, now)
        }
    }
    /// A node that did not look for this long was itself late: its peers take it for dead no sooner (D4).
    private static let lateness = Duration.milliseconds(200)

    // MARK: - As primary: the copy at the standby

    private func copy(at node: NodeID?) -> Copy? { copies.first { $0.node == node } }

    private mutating func closeCopies() -> [Action] {
        defer { copies = [] }
        return copies.map { .closeCopy($0.node) }
    }

    private mutating func adjustCopy(now: MonotonicTime) -> [Action] {
        guard role == .primary, !isLetGo, publisher != nil || ring.last != nil else { return [] }
        let wanted = [assignment.standby, candidate].compactMap { $0 }.filter { $0 != local }
        var actions: [Action] = []
        for copy in copies where !wanted.contains(copy.node) { actions.append(.closeCopy(copy.node)) }
        copies.removeAll { !wanted.contains($0.node) }
        for node in wanted {
            guard let index = copies.firstIndex(where: { $0.node == node }) else {
                copies.append(Copy(node: node, retryDelay: configuration.retryDelay))
                actions.append(.openCopy(node))
                continue
            }
            guard case .waiting(let until) = copies[index].step, now >= until else { continue }
            copies[index].step = .opening
            actions.append(.openCopy(node))
        }
        return actions
    }

    /// The standby takes the copy and wants everything after a position.
    package mutating func copyOpened(at node: NodeID, after: FramePosition?, now: MonotonicTime) -> [Action] {
        guard let index = copies.firstIndex(where: { $0.node == node }), case .opening = copies[index].step else {
            return []
        }
        copies[index].step = .active(confirmed: after)
        copies[index].retryDelay = configuration.retryDelay
        // The publisher may be another one than when the copy was asked for.
        return [.announcePublisher(node)] + acknowledgements(now: now)
    }

    /// The standby holds every frame below `next`.
    package mutating func copyConfirmed(
        at node: NodeID, epoch: UInt32, next: UInt64, now: MonotonicTime
    ) -> [Action] {
        guard next > 0, let index = copies.firstIndex(where: { $0.node == node }), copies[index].isActive else {
            return []
        }
        let position = FramePosition(epoch: epoch, sequence: next - 1)
        if let confirmed = copies[index].confirmed, position <= confirmed { return [] }
        copies[index].step = .active(confirmed: position)
        return acknowledgements(now: now)
    }

    /// The copy could not be opened, or was lost.
    package mutating func copyFailed(at node: NodeID, now: MonotonicTime) -> [Action] {
        guard let index = copies.firstIndex(where: { $0.node == node }) else { return [] }
        if case .waiting = copies[index].step { return [] }
        copies[index].step = .waiting(until: now + copies[index].retryDelay)
        copies[index].retryDelay = min(copies[index].retryDelay * 2, configuration.retryDelayMax)
        return [.closeCopy(node)]
    }

    /// True where a node has every frame of this channel that was ever acknowledged, and none is acknowledged from
    /// now on that it has not: the map may name it.
    package func isCopied(to node: NodeID) -> Bool {
        guard ring.last != nil, !isLetGo else { return true }
        guard role == .primary, node == assignment.standby || (node == candidate && isCandidateCounted),
            let copy = copy(at: node), copy.isActive
        else { return false }
        return copy.has(promised)
    }

    // MARK: - As primary: another standby, planned

    /// A node is to become the standby: it is copied to beside the one that is. Nil: no node is, any more.
    ///
    /// Only while no map may name it without this node's knowledge may a candidate be taken back.
    package mutating func setCandidate(_ node: NodeID?, now: MonotonicTime) -> [Action] {
        let node = role == .primary && node != assignment.standby && node != local ? node : nil
        guard node != candidate else { return [] }
        setNoCandidate()
        candidate = node
        countCandidate(now: now)
        return adjustCopy(now: now) + acknowledgements(now: now)
    }

    private mutating func setNoCandidate() {
        candidate = nil
        candidateMark = nil
        (isCandidateCounted, isCandidateLate) = (false, false)
    }

    /// The publisher no longer waits for the candidate; should the map name it now, the channel is unprotected.
    private mutating func leaveCandidateBehind() {
        guard isCandidateCounted else { return }
        (isCandidateCounted, isCandidateLate) = (false, true)
    }

    /// From when on the candidate counts: once it has everything that was acknowledged, or had it a moment ago. With
    /// frames always on the way it may be a little behind the standby for ever; what is acknowledged then waits for it.
    /// Of what nothing was acknowledged yet, it has everything from the beginning, unless it was late.
    private mutating func countCandidate(now: MonotonicTime) {
        guard let candidate, !isCandidateCounted, !isUnprotected else { return }
        guard let promised else {
            if !isCandidateLate { isCandidateCounted = true }
            return
        }
        guard let copy = copy(at: candidate), copy.confirmed != nil else { return candidateMark = nil }
        let mark = candidateMark ?? (promised, now)
        if copy.has(promised) || copy.has(mark.position) && now - mark.since < Self.candidateLagMax {
            (isCandidateCounted, isCandidateLate) = (true, false)
            candidateMark = nil
        } else {
            candidateMark = copy.has(mark.position) ? (promised, now) : mark
        }
    }
    /// What a candidate may be behind when it begins to count.
    private static let candidateLagMax = Duration.milliseconds(250)

    // MARK: - As standby

    /// The primary of a term wants to copy its frames here.
    ///
    /// - Parameter liveFrom: where live joins begin there.
    package mutating func openCopy(
        term: Epoch, epoch: UInt32, instance: UInt64, liveFrom: FramePosition?, now: MonotonicTime
    ) -> (answer: CopyAnswer, actions: [Action]) {
        guard term >= assignment.term, role != .primary || term > assignment.term else {
            return (.refused(ApusError(.staleEpoch, "term \(assignment.term) is known here")), [])
        }
        var actions: [Action] = []
        if role == .primary {
            // A copy of a later term is news of the map that has not come yet: this node is the standby now.
            assignment = Assignment(term: term, owner: nil, standby: local)
            actions += stepDown()
        }
        copyTerm = term
        note(epoch: epoch, instance: instance)
        if let liveFrom { actions += setLiveFloor(liveFrom) }
        return (.accepted(after: ring.last), actions + dropUpstreams())
    }

    /// The primary says whose frames follow.
    package mutating func publisherChanged(term: Epoch, epoch: UInt32, instance: UInt64) {
        guard copyTerm == term, role != .primary else { return }
        note(epoch: epoch, instance: instance)
    }

    /// Whose epoch it is; an instance that is known stays known.
    private mutating func note(epoch: UInt32, instance: UInt64) {
        let known = publisher?.epoch ?? 0
        guard epoch > known || epoch == known && instance != 0 else { return }
        publisher = Publisher(epoch: epoch, instance: instance, ingest: nil, startsAt: 0)
    }

    /// Frames from the primary, in the order they came. A copy has no holes: a gap ends it.
    package mutating func copied(_ frames: [RelayFrame], term: Epoch) -> [Action] {
        guard copyTerm == term, term >= assignment.term, role != .primary else { return [] }
        var accepted: [RelayFrame] = []
        var actions: [Action] = []
        for frame in frames {
            if frame.flags.contains(.repeated) {
                ring.adopt(repeated: frame)
                actions.append(.adopt(frame))
                continue
            }
            // The primary sends from its oldest frame where this node had nothing in common with it.
            if case .appended = ring.append(frame, allowingGap: true) { accepted.append(frame) }
        }
        guard let last = ring.last else { return actions }
        caughtUp()
        if !accepted.isEmpty { actions.append(.distribute(accepted)) }
        actions.append(.confirmCopy(epoch: last.epoch, next: last.sequence + 1))
        return actions
    }

    /// The primary's stream is gone.
    package mutating func copyClosed(term: Epoch, now: MonotonicTime) -> [Action] {
        guard copyTerm == term else { return [] }
        copyTerm = nil
        return adjustUpstream(now: now)
    }

    // MARK: - As edge

    /// A subscription was accepted.
    ///
    /// - Parameter liveFrom: where live joins begin at the node that was asked.
    package mutating func subscribed(
        _ id: SubscriptionID, term: Epoch, liveFrom: FramePosition?, now: MonotonicTime
    ) -> [Action] {
        guard let index = upstreams.firstIndex(where: { $0.id == id }) else { return [.unsubscribe(id)] }
        guard term >= assignment.term || upstreams[index].node != assignment.owner else {
            return subscriptionLost(id, now: now)
        }
        upstreams[index].isOpen = true
        retryDelay = configuration.retryDelay
        retryAt = nil
        // The new stream overlaps the old one, so the old one can go.
        let others = upstreams.filter { $0.id != id }
        upstreams = [upstreams[index]]
        return others.map { .unsubscribe($0.id) } + (liveFrom.map { setLiveFloor($0) } ?? [])
    }

    /// Frames from an upstream relay, in the order they came.
    package mutating func received(_ id: SubscriptionID, _ frames: [RelayFrame]) -> [Action] {
        guard role != .primary, upstreams.contains(where: { $0.id == id }) else { return [] }
        var accepted: [RelayFrame] = []
        var actions: [Action] = []
        for frame in frames {
            if frame.flags.contains(.repeated) {
                ring.adopt(repeated: frame)
                actions.append(.adopt(frame))
            } else {
                caughtUp()
                if case .appended = ring.append(frame, allowingGap: true) { accepted.append(frame) }
            }
        }
        if !accepted.isEmpty { actions.append(.distribute(accepted)) }
        return actions
    }

    /// A subscription was refused, or its link was lost: the other candidate is tried at once, then with delays.
    package mutating func subscriptionLost(_ id: SubscriptionID, now: MonotonicTime) -> [Action] {
        guard let index = upstreams.firstIndex(where: { $0.id == id }) else { return [] }
        let lost = upstreams.remove(at: index)
        // Without another candidate the same node would be asked again at once, and for ever.
        let hasOther = assignment.standby != nil && assignment.standby != local
        triesStandbyNext = lost.node == assignment.owner && upstreams.isEmpty && hasOther
        if !triesStandbyNext {
            retryAt = now + retryDelay
            retryDelay = min(retryDelay * 2, configuration.retryDelayMax)
        }
        return adjustUpstream(now: now)
    }

    private mutating func dropUpstreams() -> [Action] {
        defer { upstreams.removeAll() }
        return upstreams.map { .unsubscribe($0.id) }
    }

    private mutating func adjustUpstream(now: MonotonicTime) -> [Action] {
        let actions = adjustSubscription(now: now)
        guard role != .primary, copyTerm == nil, !upstreams.contains(where: \.isOpen) else { return actions }
        return actions + setLiveFloor(ring.last.map(Self.successor))
    }

    private mutating func adjustSubscription(now: MonotonicTime) -> [Action] {
        guard role != .primary, hasReceivers, copyTerm == nil else {
            if role == .edge, copyTerm == nil { isBehind = true }
            return dropUpstreams()
        }
        var actions: [Action] = []
        // Streams from nodes that are neither owner nor standby any more end here.
        for upstream in upstreams where upstream.node != assignment.owner && upstream.node != assignment.standby {
            actions.append(.unsubscribe(upstream.id))
        }
        upstreams.removeAll { $0.node != assignment.owner && $0.node != assignment.standby }
        if let retryAt, now < retryAt { return actions }
        retryAt = nil
        if upstreams.contains(where: { $0.node == assignment.owner }) { return actions }
        if upstreams.contains(where: { !$0.isOpen }) { return actions }
        guard let target = nextUpstreamNode() else { return actions }
        if upstreams.contains(where: { $0.node == target }) { return actions }
        let upstream = Upstream(id: nextSubscription, node: target, after: begin)
        nextSubscription += 1
        upstreams.append(upstream)
        actions.append(.subscribe(upstream.id, target, after: upstream.after))
        return actions
    }

    /// What an edge asks for: old frames are not continued for a live picture, only for a receiver that has them.
    private var begin: FramePosition? {
        guard isBehind else { return ring.last }
        return wantedAfter.map { max(Self.before($0), ring.last ?? Self.before($0)) }
    }

    /// A receiver came that wants more than was asked for: while nothing came, that can still be had.
    private mutating func askEarlier() -> [Action] {
        guard isBehind, let begin else { return [] }
        let tooLate = upstreams.filter { $0.after.map { begin < $0 } ?? true }
        upstreams.removeAll { upstream in tooLate.contains { $0.id == upstream.id } }
        return tooLate.map { .unsubscribe($0.id) }
    }

    /// Frames came from a node that feeds this one: what is held goes on from there.
    private mutating func caughtUp() {
        isBehind = false
        wantedAfter = nil
    }

    /// The node's rings together are near their bound: this one is to keep less, or may keep more again.
    package mutating func limitRing(byteCountMax: Int) { ring.limit(byteCountMax: byteCountMax) }

    // MARK: - Live joins

    /// Where a live join begins at a node that this one feeds: no earlier than here. Nil where no frame is known.
    package var liveFrom: FramePosition? {
        guard let newest = ring.livePosition ?? ring.last.map(Self.successor) else { return liveFloor }
        return liveFloor.map { max($0, newest) } ?? newest
    }

    private mutating func setLiveFloor(_ position: FramePosition?) -> [Action] {
        guard position != liveFloor else { return [] }
        liveFloor = position
        return [.beginLive(position)]
    }

    private static func successor(of position: FramePosition) -> FramePosition {
        FramePosition(epoch: position.epoch, sequence: position.sequence + 1)
    }

    /// Where an edge that is not fed lets its frames begin: some frames before what its first receiver wants, because
    /// receivers that lost another door together come one after the other, and each had a little more or less.
    private static func before(_ position: FramePosition) -> FramePosition {
        FramePosition(epoch: position.epoch, sequence: position.sequence - min(position.sequence, leadFrameCount))
    }
    /// About two seconds of video and audio.
    package static let leadFrameCount: UInt64 = 128

    private mutating func nextUpstreamNode() -> NodeID? {
        let standby = assignment.standby.flatMap { $0 == local ? nil : $0 }
        if triesStandbyNext, let standby {
            triesStandbyNext = false
            return standby
        }
        return assignment.owner ?? standby
    }
}
