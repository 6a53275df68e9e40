package import ApusCore
package import ApusMedia

/// A media channel at one node: the node's role, the frames that it holds, and its streams with other nodes (D7).
///
/// A channel belongs to its device's shard. The shard's owner is the channel's **primary**. It receives the publisher's
/// frames, sends them to its receivers, and copies them to the shard's **standby**. It acknowledges a frame to the
/// publisher when the standby has it. Any other node with viewers is an **edge**. It subscribes to the frames after its
/// last one, at the primary, or at the standby if the primary cannot be reached.
///
/// When the primary dies, the map makes the standby the owner, and ``assign(_:now:)`` promotes it. Its ring has every
/// acknowledged frame, so none of them is lost. The publisher's endpoint opens its stream at the new primary and
/// continues with the first missing frame. Edges resume after their last frame. Duplicates are harmless: only the
/// publisher assigns positions, so a position always names the same frame.
///
/// **Planned change of the standby.** The next standby is first a **candidate** (``setCandidate(_:now:)``). The primary
/// copies the channel to the standby and to the candidate. Once the candidate has every frame that was ever
/// acknowledged, the primary acknowledges only frames that both have. From then on, the map may name the candidate as
/// the standby at any time, even before the primary sees that map. If the primary dies, its standby has every
/// acknowledged frame in either case.
///
/// **Old frames are not live.** An edge is not fed while it has no viewers, or while it cannot reach the primary. It
/// keeps its frames for receivers that resume after a position. A live join waits until the edge is fed again. The node
/// that feeds it then reports where the live picture begins (``liveFloor``).
///
/// Terms (the shard's epochs) fence the streams between nodes. A standby refuses a copy of an older term, and an edge
/// refuses a subscription of an older term. A primary that was paused and replaced therefore receives no
/// acknowledgement. It steps down when it receives the new map, or a copy of a later term.
///
/// Pure: its shell confines it to the channel's home event loop. Time is an argument.
package struct ChannelStateMachine: Sendable {
    package typealias IngestID = UInt64
    package typealias SubscriptionID = UInt64

    package struct Configuration: Sendable {
        package var ring = FrameRingLimits()
        /// How long a confirmation of the standby may be outstanding before the channel continues unprotected and
        /// reports it. Key `channels.protection_timeout`.
        package var protectionTimeout: Duration = .seconds(1)
        /// The delay before the first retry of a failed subscription or copy. It doubles up to ``retryDelayMax``. Key
        /// `channels.retry_delay`.
        package var retryDelay: Duration = .milliseconds(10)
        package var retryDelayMax: Duration = .milliseconds(200)
        /// The delays between retries.
        var retries: Backoff { Backoff(first: retryDelay, longest: retryDelayMax) }
        /// How far the epoch that a client claims may be ahead of this node's clock. Key `channels.epoch_ahead_max`.
        package var epochAheadMax: Duration = .seconds(86_400)
        package init() {}
    }

    /// The owner and the standby of the channel's shard, according to the map.
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

    /// An instruction to the shell. The shell carries out actions in their order.
    package enum Action: Sendable {
        /// Pass frames to every fan-out.
        case distribute([RelayFrame])
        /// Pass a repeated configuration to every fan-out.
        case adopt(RelayFrame)
        /// Begin live joins at a key frame at or after this position; nil: at the newest key frame in the ring.
        case beginLive(FramePosition?)
        /// Acknowledge every sequence below `next` to the publisher.
        case acknowledge(IngestID, epoch: UInt32, next: UInt64)
        /// Ask the publisher to send again from `next`.
        case resume(IngestID, next: UInt64)
        /// End the publisher's stream with this error.
        case endIngest(IngestID, ApusError)
        /// Open a copy at the standby or the candidate. The shell reports the result with ``copyOpened(at:after:now:)``
        /// or ``copyFailed(at:now:)``.
        case openCopy(NodeID)
        /// Stop copying to a node.
        case closeCopy(NodeID)
        /// Announce to the node of an open copy whose frames follow; see ``publisherIdentity``.
        case announcePublisher(NodeID)
        /// Notify the primary, over the open copy, that this node no longer accepts it.
        case refuseCopy
        /// Confirm to the primary which frames this standby has.
        case confirmCopy(epoch: UInt32, next: UInt64)
        /// Subscribe to a node's frames. The shell reports the result with ``subscribed(_:term:liveFrom:now:)`` or
        /// ``subscriptionLost(_:now:)``.
        case subscribe(SubscriptionID, NodeID, after: FramePosition?)
        case unsubscribe(SubscriptionID)
    }

    /// The answer to a publisher's request to send.
    package enum IngestAnswer: Sendable, Equatable {
        case accepted(epoch: UInt32, next: UInt64, isProtected: Bool)
        case refused(ApusError)
    }

    /// The answer to a primary's request to copy.
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
    /// What this node does for the channel. ``role`` is the role that the map assigns.
    var duty = Duty.follow(.subscriptions([]))
    /// The newest known publisher.
    var publisher: Publisher?
    /// The newest epoch of the positions that receivers reported.
    var seenEpoch: UInt32 = 0
    var use = Use.unwatched
    var picture = Picture.old(wantedAfter: nil)
    /// Live joins begin at a key frame at or after this position; nil: at the newest key frame in the ring.
    package internal(set) var liveFloor: FramePosition?
    /// The retries of subscriptions. This state is kept while the node is the primary.
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

    /// True if two nodes hold every acknowledged frame.
    package var isProtected: Bool {
        guard case .lead(let primary) = duty, !primary.protection.isLost, !primary.candidate.isLate,
            let copy = primary.copy(at: assignment.standby), copy.isActive
        else { return false }
        guard let publisher, let acknowledged = publisher.acknowledged, acknowledged > 0 else { return true }
        return copy.has(FramePosition(epoch: publisher.epoch, sequence: acknowledged - 1))
    }

    /// True if the channel receives frames: from an attached publisher, a copy, or an open subscription.
    package var isFed: Bool {
        switch duty {
        case .lead(let primary): primary.hasPublishers
        case .follow(.copy): true
        case .follow(.subscriptions(let upstreams)): upstreams.contains(where: \.isOpen)
        }
    }

    /// The publisher for which a copy is opened; zeros if none is known.
    package var publisherIdentity: (epoch: UInt32, instance: UInt64) {
        let newest = ring.last?.epoch ?? 0
        guard let publisher, publisher.epoch >= newest else { return (newest, 0) }
        return (publisher.epoch, publisher.instance)
    }

    /// True if the channel has no viewers or edges, no publisher and no incoming copy. The shell may then remove it
    /// after a while.
    package var isIdle: Bool {
        switch duty {
        case .lead(let primary): use != .watched && !primary.hasPublishers
        case .follow(.copy): false
        case .follow(.subscriptions): use != .watched
        }
    }

    // MARK: - The map

    /// The map assigns a new owner, standby or epoch to the channel's shard.
    package mutating func assign(_ new: Assignment, now: MonotonicTime) -> [Action] {
        guard new != assignment, new.term >= assignment.term else { return [] }
        let wasStandby = role == .standby
        let isNewTerm = new.term != assignment.term
        assignment = new
        var actions: [Action] = []
        // A replaced standby becomes an edge, possibly under the same term. The sender of the copy may not have this
        // map, or may have skipped an earlier one, so it is notified.
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
            // The other nodes no longer accept copies that were opened under an earlier term.
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
        // Frames that an edge kept from earlier are not live. Those of a standby are the newest that exist.
        actions += setLiveFloor(picture.isOld ? ring.last.map(Self.successor) : nil)
        actions += adjustCopies(of: &primary, now: now)
        actions += acknowledgements(of: &primary, now: now)
        duty = .lead(primary)
        return actions
    }

    /// Closes the copies and ends the publishers' streams, because another node is now the primary.
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

    /// A receiver that has every frame up to a position is about to join. An edge that is not fed then subscribes to
    /// the frames after that position, not to the live picture, which may begin later.
    package mutating func receiverWants(after position: FramePosition?) {
        guard case .old(let wanted) = picture, let position else { return }
        picture = .old(wantedAfter: wanted.map { min($0, position) } ?? position)
    }

    /// The first viewer or edge joined this node, or the last one left. The standby does not count.
    package mutating func receiversChanged(hasReceivers: Bool, now: MonotonicTime) -> [Action] {
        if hasReceivers {
            use = .watched
        } else {
            if use == .watched { use = .unwatched }
            if picture.isOld { picture = .old(wantedAfter: nil) }
        }
        return role == .primary ? [] : askEarlier() + adjustUpstream(now: now)
    }

    /// A receiver, here or at another node, has every frame up to a position. New epochs are assigned above its epoch.
    package mutating func receiverHas(_ position: FramePosition?) {
        if let position { seenEpoch = max(seenEpoch, position.epoch) }
    }

    /// True if a retry of a copy or a subscription is scheduled.
    ///
    /// An outstanding confirmation of the standby does not count: it is checked with every frame.
    package var isWaiting: Bool {
        switch duty {
        case .lead(let primary): primary.copies.contains(where: \.isWaiting)
        case .follow(.copy): false
        case .follow(.subscriptions): use == .watched && retry.at != nil
        }
    }

    /// True if this primary has a copy at another node, or tries to open one.
    package var hasCopies: Bool {
        if case .lead(let primary) = duty { !primary.copies.isEmpty } else { false }
    }

    /// Starts the retries that are due, and checks the acknowledgements.
    package mutating func tick(now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty else { return adjustUpstream(now: now) }
        defer { duty = .lead(primary) }
        return adjustCopies(of: &primary, now: now) + acknowledgements(of: &primary, now: now)
    }

    /// Ends the copies of an idle channel that the shell is about to remove, so that the standby may remove it too.
    package mutating func release() -> [Action] {
        guard isIdle, use != .released else { return [] }
        use = .released
        guard case .lead(var primary) = duty else { return [] }
        defer { duty = .lead(primary) }
        // The standby may remove the channel, so the acknowledged frames are no longer guaranteed.
        primary.promised = nil
        return primary.closeCopies()
    }

    /// Sets the limit on the ring's bytes. It is lower while the node's rings are together near their limit.
    package mutating func limitRing(byteCountMax: Int) { ring.limit(byteCountMax: byteCountMax) }

    // MARK: - As standby

    /// The primary of a term requests to copy its frames here.
    ///
    /// - Parameter liveFrom: where live joins begin at the primary.
    package mutating func openCopy(
        term: Epoch, epoch: UInt32, instance: UInt64, liveFrom: FramePosition?, now: MonotonicTime
    ) -> (answer: CopyAnswer, actions: [Action]) {
        guard term >= assignment.term, role != .primary || term > assignment.term else {
            return (.refused(ApusError(.staleEpoch, "term \(assignment.term) is known here")), [])
        }
        var actions: [Action] = []
        if role == .primary {
            // A copy of a later term arrived before the map of that term. This node is now the standby.
            assignment = Assignment(term: term, owner: nil, standby: local)
            actions += stepDown()
        }
        let unsubscriptions = dropUpstreams()
        duty = .follow(.copy(term: term))
        note(epoch: epoch, instance: instance)
        if let liveFrom { actions += setLiveFloor(liveFrom) }
        return (.accepted(after: ring.last), actions + unsubscriptions)
    }

    /// The primary announces whose frames follow.
    package mutating func publisherChanged(term: Epoch, epoch: UInt32, instance: UInt64) {
        guard case .follow(.copy(term)) = duty else { return }
        note(epoch: epoch, instance: instance)
    }

    /// Stores the instance of an epoch. An unknown instance (0) does not replace a known one of the same epoch.
    private mutating func note(epoch: UInt32, instance: UInt64) {
        let known = publisher?.epoch ?? 0
        guard epoch > known || epoch == known && instance != 0 else { return }
        publisher = Publisher(epoch: epoch, instance: instance, acknowledged: publisher?.acknowledged)
    }

    /// Frames from the primary, in order of arrival. The primary sends every frame, so gaps occur only at the start of
    /// a copy.
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
            // If the rings have no frame in common, the primary sends from its oldest frame.
            if case .appended = ring.append(frame, allowingGap: true) { accepted.append(frame) }
        }
        guard let last = ring.last else { return actions }
        picture = .current
        if !accepted.isEmpty { actions.append(.distribute(accepted)) }
        actions.append(.confirmCopy(epoch: last.epoch, next: last.sequence + 1))
        return actions
    }

    /// The primary's stream ended.
    package mutating func copyClosed(term: Epoch, now: MonotonicTime) -> [Action] {
        guard case .follow(.copy(term)) = duty else { return [] }
        duty = .follow(.subscriptions([]))
        return adjustUpstream(now: now)
    }

    // MARK: - Live joins

    /// The earliest start of a live join at a node that this one feeds; nil if no frame is known.
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
