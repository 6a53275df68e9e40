package import ApusCore
package import ApusMedia

/// One media channel as one node sees it: its role, its frames, and what it owes to whom (D7).
///
/// A channel belongs to its device's shard. The shard's owner is the channel's **primary**: it takes the
/// publisher's frames, fans them out, copies them to the shard's **standby**, and acknowledges to the
/// publisher what the standby has. Any other node with viewers is an **edge**: it subscribes to the
/// primary, or to the standby where the primary cannot be reached, with everything after its last frame.
///
/// When the primary dies the map makes the standby the owner, and ``assign(_:now:)`` promotes it: its
/// ring has every acknowledged frame, the publisher's endpoint asks it where to go on, and edges resume
/// from it. Nothing acknowledged can be lost, and positions make everything sent twice harmless: a
/// frame with a given position is always the same frame, because only the publisher numbers.
///
/// **Another standby, planned.** The node that is to stand by is a **candidate** first
/// (``setCandidate(_:now:)``): it is copied to beside the standby, and once it has all that was ever
/// acknowledged, only what both have is acknowledged to the publisher. From then on the map may name it at any moment,
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
        /// The waits between retries.
        var retries: Backoff { Backoff(first: retryDelay, longest: retryDelayMax) }
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

    let configuration: Configuration
    package let channel: ChannelID
    package let local: NodeID
    package private(set) var assignment = Assignment(term: 0, owner: nil, standby: nil)
    package internal(set) var ring: FrameRing
    /// What this node does for the channel; ``role`` says which.
    var duty = Duty.follow(.subscriptions([]))
    /// The newest publisher that is known.
    var publisher: Publisher?
    /// The newest epoch after which a receiver wanted to go on.
    var seenEpoch: UInt32 = 0
    var use = Use.unwatched
    var picture = Picture.old(wantedAfter: nil)
    /// Live joins begin at a key frame no earlier than this; nil: at the newest that is held.
    package internal(set) var liveFloor: FramePosition?
    /// Kept from one subscription to the next, also where this node was the primary between them.
    var retry: Retry
    var nextSubscription: SubscriptionID = 1

    package init(channel: ChannelID, local: NodeID, configuration: Configuration) {
        self.channel = channel
        self.local = local
        self.configuration = configuration
        ring = FrameRing(limits: configuration.ring)
        retry = Retry(waits: configuration.retries)
    }

    package var role: Role {
        if assignment.owner == local { return .primary }
        return assignment.standby == local ? .standby : .edge
    }

    /// True where every frame that was acknowledged is held by two nodes.
    package var isProtected: Bool {
        guard case .lead(let primary) = duty, !primary.protection.isLost, !primary.candidate.isLate,
            let copy = primary.copy(at: assignment.standby), copy.isActive
        else { return false }
        guard let publisher, let acknowledged = publisher.acknowledged, acknowledged > 0 else { return true }
        return copy.has(FramePosition(epoch: publisher.epoch, sequence: acknowledged - 1))
    }

    /// A publisher is attached to this node's copy of the channel, or its frames come from upstream.
    package var isFed: Bool {
        switch duty {
        case .lead(let primary): primary.hasPublishers
        case .follow(.copy): true
        case .follow(.subscriptions(let upstreams)): upstreams.contains(where: \.isOpen)
        }
    }

    /// The publisher that a copy is opened for; zeros where none is known.
    package var publisherIdentity: (epoch: UInt32, instance: UInt64) {
        let newest = ring.last?.epoch ?? 0
        guard let publisher, publisher.epoch >= newest else { return (newest, 0) }
        return (publisher.epoch, publisher.instance)
    }

    /// Nothing is attached: the shell may drop the channel after a while.
    package var isIdle: Bool {
        switch duty {
        case .lead(let primary): use != .watched && !primary.hasPublishers
        case .follow(.copy): false
        case .follow(.subscriptions): use != .watched
        }
    }

    // MARK: - The map

    /// The map gave the channel's shard a new owner, standby or epoch.
    package mutating func assign(_ new: Assignment, now: MonotonicTime) -> [Action] {
        guard new != assignment, new.term >= assignment.term else { return [] }
        let wasStandby = role == .standby
        let isNewTerm = new.term != assignment.term
        assignment = new
        var actions: [Action] = []
        // A standby that is replaced goes on as an edge, under the same term.
        // Whoever copies may not have seen this map, or not the ones between: it hears of it.
        if case .follow(.copy(let term)) = duty,
            term < new.term || (wasStandby && role != .standby) || role == .primary
        {
            duty = .follow(.subscriptions([]))
            actions.append(.refuseCopy)
        }
        switch (duty, role) {
        case (.lead, .primary): actions += stayPrimary(isNewTerm: isNewTerm, now: now)
        case (.follow, .primary): actions += becomePrimary(now: now)
        case (.lead, .standby), (.lead, .edge): actions += stepDown() + adjustUpstream(now: now)
        case (.follow, .standby), (.follow, .edge): actions += adjustUpstream(now: now)
        }
        return actions
    }

    private mutating func stayPrimary(isNewTerm: Bool, now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty else { return [] }
        defer { duty = .lead(primary) }
        var actions: [Action] = []
        if isNewTerm {
            // What was opened under an earlier term is not taken any more.
            actions += primary.closeCopies()
            primary.promised = ring.last
        }
        if let node = primary.candidate.node, node == assignment.standby || node == local { primary.candidate = .none }
        actions += adjustCopies(of: &primary, now: now)
        return actions + acknowledgements(of: &primary, now: now)
    }

    private mutating func becomePrimary(now: MonotonicTime) -> [Action] {
        var actions = dropUpstreams()
        var primary = Primary(promised: ring.last)
        // What an edge kept from earlier is no live picture; what a standby has is all that there is.
        actions += setLiveFloor(picture.isOld ? ring.last.map(Self.successor) : nil)
        actions += adjustCopies(of: &primary, now: now)
        actions += acknowledgements(of: &primary, now: now)
        duty = .lead(primary)
        return actions
    }

    /// Another node is the primary.
    private mutating func stepDown() -> [Action] {
        guard case .lead(var primary) = duty else { return [] }
        duty = .follow(.subscriptions([]))
        var actions = primary.closeCopies()
        for stream in [primary.stream, primary.challenger?.stream] {
            guard let stream else { continue }
            actions.append(.endIngest(stream.id, ApusError(.moved, "the channel has another primary")))
        }
        return actions
    }

    /// A receiver is about to come that has everything up to a position: an edge that is not fed then
    /// asks for those after it and not for the live picture, which may begin later.
    package mutating func receiverWants(after position: FramePosition?) {
        guard case .old(let wanted) = picture, let position else { return }
        picture = .old(wantedAfter: wanted.map { min($0, position) } ?? position)
    }

    /// Viewers or edges came to this node, or the last one left. The standby does not count.
    package mutating func receiversChanged(hasReceivers: Bool, now: MonotonicTime) -> [Action] {
        if hasReceivers {
            use = .watched
        } else {
            if use == .watched { use = .unwatched }
            if picture.isOld { picture = .old(wantedAfter: nil) }
        }
        return role == .primary ? [] : askEarlier() + adjustUpstream(now: now)
    }

    /// A receiver, here or at another node, has everything up to a position: epochs that are given go on after it.
    package mutating func receiverHas(_ position: FramePosition?) {
        if let position { seenEpoch = max(seenEpoch, position.epoch) }
    }

    /// Time, soon, will bring something about: a copy or a subscription is to be tried again.
    ///
    /// A standby that owes a confirmation is not counted: it is looked at with every frame.
    package var isWaiting: Bool {
        switch duty {
        case .lead(let primary): primary.copies.contains(where: \.isWaiting)
        case .follow(.copy): false
        case .follow(.subscriptions): use == .watched && retry.at != nil
        }
    }

    /// Another node copies the channel, or is to.
    package var hasCopies: Bool {
        if case .lead(let primary) = duty { !primary.copies.isEmpty } else { false }
    }

    /// Something that was waited for may be due.
    package mutating func tick(now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty else { return adjustUpstream(now: now) }
        defer { duty = .lead(primary) }
        return adjustCopies(of: &primary, now: now) + acknowledgements(of: &primary, now: now)
    }

    /// The channel was idle for as long as it is remembered: its copy ends, so that the standby may forget it too.
    package mutating func release() -> [Action] {
        guard isIdle, use != .released else { return [] }
        use = .released
        guard case .lead(var primary) = duty else { return [] }
        defer { duty = .lead(primary) }
        // The standby may forget it too: nothing of it is promised any more.
        primary.promised = nil
        return primary.closeCopies()
    }

    /// The node's rings together are near their bound: this one is to keep less, or may keep more again.
    package mutating func limitRing(byteCountMax: Int) { ring.limit(byteCountMax: byteCountMax) }

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
        let unsubscriptions = dropUpstreams()
        duty = .follow(.copy(term: term))
        note(epoch: epoch, instance: instance)
        if let liveFrom { actions += setLiveFloor(liveFrom) }
        return (.accepted(after: ring.last), actions + unsubscriptions)
    }

    /// The primary says whose frames follow.
    package mutating func publisherChanged(term: Epoch, epoch: UInt32, instance: UInt64) {
        guard case .follow(.copy(term)) = duty else { return }
        note(epoch: epoch, instance: instance)
    }

    /// Whose epoch it is; an instance that is known stays known.
    private mutating func note(epoch: UInt32, instance: UInt64) {
        let known = publisher?.epoch ?? 0
        guard epoch > known || epoch == known && instance != 0 else { return }
        publisher = Publisher(epoch: epoch, instance: instance, acknowledged: publisher?.acknowledged)
    }

    /// Frames from the primary, in the order they came. A copy has no holes: a gap ends it.
    package mutating func copied(_ frames: [RelayFrame], term: Epoch) -> [Action] {
        guard case .follow(.copy(term)) = duty, term >= assignment.term else { return [] }
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
        picture = .current
        if !accepted.isEmpty { actions.append(.distribute(accepted)) }
        actions.append(.confirmCopy(epoch: last.epoch, next: last.sequence + 1))
        return actions
    }

    /// The primary's stream is gone.
    package mutating func copyClosed(term: Epoch, now: MonotonicTime) -> [Action] {
        guard case .follow(.copy(term)) = duty else { return [] }
        duty = .follow(.subscriptions([]))
        return adjustUpstream(now: now)
    }

    // MARK: - Live joins

    /// Where a live join begins at a node that this one feeds: no earlier than here. Nil where no frame is known.
    package var liveFrom: FramePosition? {
        guard let newest = ring.livePosition ?? ring.last.map(Self.successor) else { return liveFloor }
        return liveFloor.map { max($0, newest) } ?? newest
    }

    mutating func setLiveFloor(_ position: FramePosition?) -> [Action] {
        guard position != liveFloor else { return [] }
        liveFloor = position
        return [.beginLive(position)]
    }

    static func successor(of position: FramePosition) -> FramePosition {
        FramePosition(epoch: position.epoch, sequence: position.sequence + 1)
    }
}
