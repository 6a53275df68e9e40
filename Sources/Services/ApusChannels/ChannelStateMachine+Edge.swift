package import ApusCore
package import ApusMedia

/// A channel at an edge: its subscriptions at the primary, or at the standby if the primary cannot be reached.
extension ChannelStateMachine {
    /// This node's subscriptions; empty if it receives a copy or is the primary.
    private var upstreams: [Upstream] {
        if case .follow(.subscriptions(let upstreams)) = duty { upstreams } else { [] }
    }

    /// A subscription was accepted.
    ///
    /// - Parameter liveFrom: where live joins begin at the upstream node.
    package mutating func subscribed(
        _ id: SubscriptionID, term: Epoch, liveFrom: FramePosition?, now: MonotonicTime
    ) -> [Action] {
        guard var upstream = upstreams.first(where: { $0.id == id }) else { return [.unsubscribe(id)] }
        guard term >= assignment.term || upstream.node != assignment.owner else {
            return subscriptionLost(id, now: now)
        }
        upstream.isOpen = true
        retry.waits.reset()
        retry.at = nil
        // The new stream overlaps the old ones, so they can end.
        let others = upstreams.filter { $0.id != id }
        duty = .follow(.subscriptions([upstream]))
        return others.map { .unsubscribe($0.id) } + (liveFrom.map { setLiveFloor($0) } ?? [])
    }

    /// Frames from an upstream node, in order of arrival.
    package mutating func received(_ id: SubscriptionID, _ frames: [RelayFrame]) -> [Action] {
        guard upstreams.contains(where: { $0.id == id }) else { return [] }
        var accepted: [RelayFrame] = []
        var actions: [Action] = []
        for frame in frames {
            if frame.flags.contains(.repeated) {
                ring.adopt(repeated: frame)
                actions.append(.adopt(frame))
            } else {
                // The held frames are current from here on.
                picture = .current
                if case .appended = ring.append(frame, allowingGap: true) { accepted.append(frame) }
            }
        }
        if !accepted.isEmpty { actions.append(.distribute(accepted)) }
        return actions
    }

    /// A subscription was refused, or its link was lost. After a failure at the owner, the standby is tried at once.
    /// Other retries are delayed.
    package mutating func subscriptionLost(_ id: SubscriptionID, now: MonotonicTime) -> [Action] {
        guard let lost = upstreams.first(where: { $0.id == id }) else { return [] }
        let others = upstreams.filter { $0.id != id }
        duty = .follow(.subscriptions(others))
        // Otherwise immediate retries would ask the same node in an endless loop.
        let hasOther = assignment.standby != nil && assignment.standby != local
        retry.asksStandby = lost.node == assignment.owner && others.isEmpty && hasOther
        if !retry.asksStandby { retry.at = now + retry.waits.next() }
        return adjustUpstream(now: now)
    }

    mutating func dropUpstreams() -> [Action] {
        guard case .follow(.subscriptions(let upstreams)) = duty else { return [] }
        duty = .follow(.subscriptions([]))
        return upstreams.map { .unsubscribe($0.id) }
    }

    /// Subscribes if frames are needed here, and unsubscribes if they are not.
    mutating func adjustUpstream(now: MonotonicTime) -> [Action] {
        // A copy has all frames, so no subscription is needed.
        guard case .follow(.subscriptions(let upstreams)) = duty else { return [] }
        let actions = use == .watched ? adjustSubscriptions(upstreams, now: now) : unsubscribe()
        guard !self.upstreams.contains(where: \.isOpen) else { return actions }
        return actions + setLiveFloor(ring.last.map(Self.successor))
    }

    /// Ends the subscriptions of a channel without viewers. From then on the frames of an edge are old. Those of a
    /// standby that lost its copy are not.
    private mutating func unsubscribe() -> [Action] {
        if role == .edge, !picture.isOld { picture = .old(wantedAfter: nil) }
        return dropUpstreams()
    }

    private mutating func adjustSubscriptions(_ upstreams: [Upstream], now: MonotonicTime) -> [Action] {
        var upstreams = upstreams
        defer { duty = .follow(.subscriptions(upstreams)) }
        var actions: [Action] = []
        // Streams from nodes that are no longer owner or standby end here.
        for upstream in upstreams where upstream.node != assignment.owner && upstream.node != assignment.standby {
            actions.append(.unsubscribe(upstream.id))
        }
        upstreams.removeAll { $0.node != assignment.owner && $0.node != assignment.standby }
        if let at = retry.at, now < at { return actions }
        retry.at = nil
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

    private mutating func nextUpstreamNode() -> NodeID? {
        let standby = assignment.standby.flatMap { $0 == local ? nil : $0 }
        if retry.asksStandby, let standby {
            retry.asksStandby = false
            return standby
        }
        return assignment.owner ?? standby
    }

    /// The position after which an edge subscribes; nil: the live picture. Old frames are continued only for a receiver
    /// that has them.
    private var begin: FramePosition? {
        guard case .old(let wantedAfter) = picture else { return ring.last }
        return wantedAfter.map { max(Self.before($0), ring.last ?? Self.before($0)) }
    }

    /// Ends the subscriptions that begin too late for a new receiver, so that earlier ones replace them. This is
    /// possible until the first frame arrives.
    mutating func askEarlier() -> [Action] {
        guard picture.isOld, let begin, case .follow(.subscriptions(let upstreams)) = duty else { return [] }
        let tooLate = upstreams.filter { $0.after.map { begin < $0 } ?? true }
        duty = .follow(.subscriptions(upstreams.filter { upstream in !tooLate.contains { $0.id == upstream.id } }))
        return tooLate.map { .unsubscribe($0.id) }
    }

    /// Where an edge that is not fed subscribes for its first receiver: some frames before the receiver's position.
    /// Receivers that lost another node together arrive one after another, at slightly different positions.
    private static func before(_ position: FramePosition) -> FramePosition {
        FramePosition(epoch: position.epoch, sequence: position.sequence - min(position.sequence, leadFrameCount))
    }
    /// About two seconds of video and audio.
    package static let leadFrameCount: UInt64 = 128
}
