package import ApusCore
package import ApusMedia

/// A channel at its primary: the publisher, the copies at the standby and the candidate, and the acknowledgements.
extension ChannelStateMachine {
    /// The state that exists only while this node is the primary.
    struct Primary: Sendable {
        /// The publisher's stream, if it is attached.
        var stream: Stream?
        /// Another instance that opened a stream while a publisher is attached. Its first frame makes it the publisher.
        var challenger: Attached?
        /// The copies at the standby and, if there is one, at the candidate.
        var copies: [Copy] = []
        var candidate = Candidate.none
        /// No later frame was ever acknowledged, by this node or an earlier primary.
        var promised: FramePosition?
        var protection = Protection.kept
        /// The time of the last check of the protection.
        var lastLooked = MonotonicTime.zero

        init(promised: FramePosition?) { self.promised = promised }

        var hasPublishers: Bool { stream != nil || challenger != nil }

        func copy(at node: NodeID?) -> Copy? { copies.first { $0.node == node } }

        mutating func closeCopies() -> [Action] {
            defer { copies = [] }
            return copies.map { .closeCopy($0.node) }
        }
    }

    // MARK: - The publisher

    /// Opens a stream for a publisher that is connected here or to another node (IV-C1).
    ///
    /// ``PublisherEpoch`` decides which epoch the publisher gets, or refuses it with 10024. If another instance is
    /// attached, the new one replaces it with its first frame, and only then does the other one receive 10024.
    ///
    /// - Parameter wallSeconds: this node's clock, in Unix seconds.
    package mutating func openIngest(
        _ id: IngestID, _ offer: PublishOffer, wallSeconds: UInt32, now: MonotonicTime
    ) -> (answer: IngestAnswer, actions: [Action]) {
        guard case .lead(var primary) = duty else { return (.refused(ApusError(.moved)), []) }
        guard offer.isConfirmed || offer.continues(publisherIdentity) else {
            return (.refused(ApusError(.unavailable, "the owner has not confirmed the publisher's session yet")), [])
        }
        guard case .given(let epoch) = publisherEpoch(of: primary, wallSeconds: wallSeconds).answer(to: offer) else {
            let known = publisherIdentity.epoch
            return (.refused(ApusError(.stalePublisher, "epoch \(known) of another publisher is known")), [])
        }
        let next = max(ring.next(in: epoch) ?? offer.oldest, offer.oldest)
        let opened = Attached(
            publisher: Publisher(epoch: epoch, instance: offer.instance), stream: Stream(id: id, startsAt: next))
        var actions: [Action] = []
        if let challenger = primary.challenger {
            actions.append(.endIngest(challenger.stream.id, Self.ending(challenger.publisher, for: opened)))
        }
        primary.challenger = nil
        if use == .released { use = .unwatched }
        if let publisher, primary.stream != nil, publisher.instance != offer.instance {
            primary.challenger = opened
        } else {
            if let publisher, let stream = primary.stream {
                actions.append(.endIngest(stream.id, Self.ending(publisher, for: opened)))
            }
            actions += take(opened, into: &primary)
            actions += adjustCopies(of: &primary, now: now)
        }
        duty = .lead(primary)
        return (.accepted(epoch: epoch, next: next, isProtected: isProtected), actions)
    }

    private func publisherEpoch(of primary: Primary, wallSeconds: UInt32) -> PublisherEpoch {
        let (known, holder) = publisherIdentity
        return PublisherEpoch(
            known: known, holder: holder, seen: max(seenEpoch, primary.challenger?.publisher.epoch ?? 0),
            wallSeconds: wallSeconds, aheadMax: UInt32(clamping: configuration.epochAheadMax.components.seconds))
    }

    /// The error of a replaced stream. The same publisher may return through another endpoint before the previous
    /// endpoint notices.
    private static func ending(_ previous: Publisher, for next: Attached) -> ApusError {
        ApusError(previous.instance == next.publisher.instance ? .kicked : .stalePublisher)
    }

    /// Makes an instance the channel's publisher.
    private mutating func take(_ opened: Attached, into primary: inout Primary) -> [Action] {
        let isSame =
            publisher.map { $0.epoch == opened.publisher.epoch && $0.instance == opened.publisher.instance } ?? false
        publisher = opened.publisher
        primary.stream = opened.stream
        return isSame ? [] : primary.copies.filter(\.isActive).map { .announcePublisher($0.node) }
    }

    /// Makes the challenger the publisher when its first frame arrives. The previous publisher receives 10024.
    private mutating func takeChallenger(_ id: IngestID, of primary: inout Primary) -> [Action] {
        guard let challenger = primary.challenger, challenger.stream.id == id else { return [] }
        primary.challenger = nil
        var actions: [Action] = []
        if let previous = primary.stream { actions.append(.endIngest(previous.id, ApusError(.stalePublisher))) }
        return actions + take(challenger, into: &primary)
    }

    /// Frames from the publisher, in order of arrival.
    package mutating func ingest(_ id: IngestID, _ frames: [RelayFrame], now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty else { return [] }
        defer { duty = .lead(primary) }
        var actions = frames.isEmpty ? [] : takeChallenger(id, of: &primary)
        guard let publisher, var stream = primary.stream, stream.id == id else { return actions }
        var accepted: [RelayFrame] = []
        for var frame in frames where frame.position.epoch == publisher.epoch {
            // Frames in flight when the stream was opened may precede the frame at which it starts.
            let isFirst = ring.last?.epoch != publisher.epoch
            let offered: FrameRing.Appended
            if isFirst, frame.position.sequence != stream.startsAt {
                offered = .gap(expected: stream.startsAt)
            } else {
                frame.stamp(term: assignment.term)
                offered = ring.append(frame, allowingGap: frame.position.sequence == stream.startsAt)
            }
            switch offered {
            case .appended:
                stream.askedToResumeAt = nil
                accepted.append(frame)
            case .gap(let expected):
                guard stream.askedToResumeAt != expected else { continue }
                stream.askedToResumeAt = expected
                actions.append(.resume(id, next: expected))
            case .duplicate, .stale:
                continue
            }
        }
        primary.stream = stream
        if !accepted.isEmpty {
            picture = .current
            actions.insert(.distribute(accepted), at: 0)
        }
        return actions + acknowledgements(of: &primary, now: now)
    }

    /// The publisher's stream ended. The publisher may return, here or at another node.
    package mutating func closeIngest(_ id: IngestID) {
        guard case .lead(var primary) = duty else { return }
        if primary.challenger?.stream.id == id { primary.challenger = nil }
        if primary.stream?.id == id { primary.stream = nil }
        duty = .lead(primary)
    }

    // MARK: - Acknowledgements

    /// Returns the acknowledgements that are due to the publisher, and checks whether confirmations are overdue.
    mutating func acknowledgements(of primary: inout Primary, now: MonotonicTime) -> [Action] {
        guard let publisher, let last = ring.last, last.epoch == publisher.epoch else { return [] }
        let safe = safeCount(of: &primary, epoch: publisher.epoch, held: last.sequence + 1, now: now)
        // An acknowledgement is never withdrawn, although a new standby may have fewer frames at first.
        guard let stream = primary.stream, safe > publisher.acknowledged ?? 0 else { return [] }
        self.publisher?.acknowledged = safe
        let newest = FramePosition(epoch: publisher.epoch, sequence: safe - 1)
        primary.promised = primary.promised.map { max($0, newest) } ?? newest
        // Without protection, acknowledgements do not wait for the candidate either.
        if primary.protection.isLost { primary.leaveCandidateBehind() }
        return [.acknowledge(stream.id, epoch: publisher.epoch, next: safe)]
    }

    /// The sequence number below which every frame of an epoch may be acknowledged.
    private func safeCount(
        of primary: inout Primary, epoch: UInt32, held: UInt64, now: MonotonicTime
    ) -> UInt64 {
        primary.countCandidate(now: now)
        let atStandby = confirmedCount(at: assignment.standby, of: epoch, in: primary)
        var confirmed = assignment.standby == nil ? held : atStandby
        if case .counted(let candidate) = primary.candidate {
            confirmed = min(confirmed, confirmedCount(at: candidate, of: epoch, in: primary))
        }
        measureDebt(of: &primary, held: held, confirmed: confirmed, atStandby: atStandby, now: now)
        if primary.protection.isLost { return held }
        return primary.candidate.isCounted || assignment.standby == nil ? confirmed : atStandby
    }

    /// The sequence number below which a node has every frame of an epoch. It covers only frames that this node has,
    /// whatever the other node reports.
    private func confirmedCount(at node: NodeID?, of epoch: UInt32, in primary: Primary) -> UInt64 {
        guard let confirmed = primary.copy(at: node)?.confirmed, confirmed.epoch == epoch else { return 0 }
        return min(confirmed.sequence + 1, ring.next(in: epoch) ?? 0)
    }

    /// Checks whether a confirmation is overdue. Periods without a check do not count: a node that was paused may have
    /// been replaced (D4).
    private func measureDebt(
        of primary: inout Primary, held: UInt64, confirmed: UInt64, atStandby: UInt64, now: MonotonicTime
    ) {
        let wasStopped = now - primary.lastLooked >= Self.lateness
        primary.lastLooked = now
        let (debt, isLost) = (primary.protection.debt, primary.protection.isLost)
        if confirmed >= held {
            primary.protection = .kept
        } else if let debt, !wasStopped, confirmed < debt.next {
            guard now - debt.since >= configuration.protectionTimeout else { return }
            if atStandby >= debt.next {
                primary.leaveCandidateBehind()
                primary.protection = isLost ? .lost(nil) : .kept
            } else {
                primary.protection = .lost(debt)
            }
        } else {
            // With a steady flow, some frames are always unconfirmed. A standby that confirms the due ones in time
            // keeps up.
            let isInTime = debt.map { !wasStopped && now - $0.since < configuration.protectionTimeout } ?? false
            let next = Protection.Debt(next: held, since: now)
            primary.protection = isLost && !isInTime ? .lost(next) : .owed(next)
        }
    }
    /// A node without a check for this long was itself late. Its peers do not consider it dead earlier (D4).
    private static let lateness = Duration.milliseconds(200)

    // MARK: - The copies

    mutating func adjustCopies(of primary: inout Primary, now: MonotonicTime) -> [Action] {
        guard use != .released, publisher != nil || ring.last != nil else { return [] }
        let wanted = [assignment.standby, primary.candidate.node].compactMap { $0 }.filter { $0 != local }
        var actions: [Action] = []
        for copy in primary.copies where !wanted.contains(copy.node) { actions.append(.closeCopy(copy.node)) }
        primary.copies.removeAll { !wanted.contains($0.node) }
        for node in wanted {
            guard let index = primary.copies.firstIndex(where: { $0.node == node }) else {
                primary.copies.append(Copy(node: node, retries: configuration.retries))
                actions.append(.openCopy(node))
                continue
            }
            guard case .waiting(let until) = primary.copies[index].step, now >= until else { continue }
            primary.copies[index].step = .opening
            actions.append(.openCopy(node))
        }
        return actions
    }

    /// A node accepted the copy. It has every frame up to `after`, and receives the later ones.
    package mutating func copyOpened(at node: NodeID, after: FramePosition?, now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty, let index = primary.copies.firstIndex(where: { $0.node == node }),
            case .opening = primary.copies[index].step
        else { return [] }
        defer { duty = .lead(primary) }
        primary.copies[index].step = .active(confirmed: after)
        primary.copies[index].retries.reset()
        // The publisher may have changed since the copy was requested.
        return [.announcePublisher(node)] + acknowledgements(of: &primary, now: now)
    }

    /// The node of a copy holds every frame of an epoch below `next`.
    package mutating func copyConfirmed(
        at node: NodeID, epoch: UInt32, next: UInt64, now: MonotonicTime
    ) -> [Action] {
        guard next > 0, case .lead(var primary) = duty,
            let index = primary.copies.firstIndex(where: { $0.node == node }), primary.copies[index].isActive
        else { return [] }
        let position = FramePosition(epoch: epoch, sequence: next - 1)
        if let confirmed = primary.copies[index].confirmed, position <= confirmed { return [] }
        defer { duty = .lead(primary) }
        primary.copies[index].step = .active(confirmed: position)
        return acknowledgements(of: &primary, now: now)
    }

    /// A copy could not be opened, or was lost.
    package mutating func copyFailed(at node: NodeID, now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty, let index = primary.copies.firstIndex(where: { $0.node == node }),
            !primary.copies[index].isWaiting
        else { return [] }
        let wait = primary.copies[index].retries.next()
        primary.copies[index].step = .waiting(until: now + wait)
        duty = .lead(primary)
        return [.closeCopy(node)]
    }

    /// True if a node has every acknowledged frame of this channel, and later frames are acknowledged only when it has
    /// them. The map may then name it as the standby.
    package func isCopied(to node: NodeID) -> Bool {
        guard ring.last != nil, use != .released else { return true }
        guard case .lead(let primary) = duty, let copy = primary.copy(at: node), copy.isActive else { return false }
        if node != assignment.standby {
            guard case .counted(node) = primary.candidate else { return false }
        }
        return primary.promised.map { copy.has($0) } ?? true
    }

    // MARK: - Planned change of the standby

    /// Sets the candidate for the standby; nil: none. The channel is copied to the candidate as well as to the standby.
    ///
    /// A candidate may be withdrawn only while no map can name it without this node's knowledge.
    package mutating func setCandidate(_ node: NodeID?, now: MonotonicTime) -> [Action] {
        guard case .lead(var primary) = duty else { return [] }
        let node = node != assignment.standby && node != local ? node : nil
        guard node != primary.candidate.node else { return [] }
        defer { duty = .lead(primary) }
        primary.candidate = node.map { .followed($0, nil) } ?? .none
        primary.countCandidate(now: now)
        return adjustCopies(of: &primary, now: now) + acknowledgements(of: &primary, now: now)
    }
}

extension ChannelStateMachine.Primary {
    /// Acknowledgements no longer wait for the candidate. If the map names it as the standby now, the channel is
    /// unprotected.
    mutating func leaveCandidateBehind() {
        if case .counted(let node) = candidate { candidate = .late(node, nil) }
    }

    /// Counts the candidate, if it has caught up. Acknowledgements wait for a counted candidate.
    ///
    /// It has caught up if it has every acknowledged frame except those of the last `candidateLagMax`: with a steady
    /// flow, it may always be slightly behind the standby. If nothing was acknowledged yet, it counts at once, unless
    /// it was late.
    mutating func countCandidate(now: MonotonicTime) {
        let (node, marked): (NodeID, ChannelStateMachine.Candidate.Mark?)
        switch candidate {
        case .none, .counted: return
        case .followed(let followed, let mark), .late(let followed, let mark): (node, marked) = (followed, mark)
        }
        guard !protection.isLost else { return }
        guard let promised else {
            if !candidate.isLate { candidate = .counted(node) }
            return
        }
        guard let copy = copy(at: node), copy.confirmed != nil else { return candidate = candidate.marked(nil) }
        let mark = marked ?? .init(position: promised, since: now)
        if copy.has(promised) || copy.has(mark.position) && now - mark.since < Self.candidateLagMax {
            candidate = .counted(node)
        } else {
            candidate = candidate.marked(copy.has(mark.position) ? .init(position: promised, since: now) : mark)
        }
    }
    /// The largest lag with which a candidate is counted.
    private static let candidateLagMax = Duration.milliseconds(250)
}
