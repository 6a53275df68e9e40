/// Which device of a room listens, if several have heard the same wake phrase (VA-8).
///
/// **Rounds.** The first device that has heard a phrase opens a round. The room collects the others for a window, and
/// ends it early if all devices have come that may hear it. The loudest one wins: the one with the largest ratio of
/// signal to noise, then the one with the largest energy, then the one whose id is first. A device belongs to a round
/// if the phrase ended at about the same time for it. A tap wins at once.
///
/// **Late devices.** A device whose message was late may be clearly louder than the winner. Then the winner is asked to
/// yield, which it does unless it has heard a sentence. The late one listens only after that, so two devices never
/// carry out the same sentence.
///
/// **Failures.** A repetition of a message is answered as before. A room that is lost with its node begins again, and a
/// device that gets no answer listens by itself: two devices that answer are better than none.
///
/// Pure value. Times are milliseconds of the owner's monotonic clock.
package struct ArbitrationStateMachine: Sendable {
    /// What a device has heard.
    package struct Wake: Sendable, Equatable {
        package var device: String
        /// Of its listening.
        package var id: String
        /// In hundredths of a decibel.
        package var signalToNoise: Int32
        package var energy: Int32
        /// When the phrase ended.
        package var endedMs: Int64

        package init(device: String, id: String, signalToNoise: Int32, energy: Int32, endedMs: Int64) {
            (self.device, self.id, self.endedMs) = (device, id, endedMs)
            (self.signalToNoise, self.energy) = (signalToNoise, energy)
        }

        /// The stable order of devices that are equally loud is that of their ids.
        package func isLouder(than other: Wake) -> Bool {
            guard signalToNoise == other.signalToNoise else { return signalToNoise > other.signalToNoise }
            guard energy == other.energy else { return energy > other.energy }
            return device < other.device
        }
    }

    /// What a device is answered.
    package enum Answer: Sendable, Equatable {
        /// Nothing is decided; ask again at this time.
        case waits(untilMs: Int64)
        case wins
        case loses(to: Wake)
        /// It wins if this device yields first; see ``revised(_:isFree:)``.
        case revises(Wake)
        /// The room does not know the message any more.
        case unknown
    }

    private enum Phase: Sendable {
        case collecting
        case decided(Wake)
        /// A late device wins if the winner yields. The time bounds it.
        case revising(Wake, by: Wake, untilMs: Int64)
        /// The winner has been tapped, or has heard a sentence.
        case final(Wake)

        var winner: Wake? {
            switch self {
            case .collecting: nil
            case .decided(let winner), .revising(let winner, _, _), .final(let winner): winner
            }
        }
    }

    private struct Round: Sendable {
        let endedMs: Int64
        let decideMs: Int64
        var heard: [Wake]
        /// The devices of the room that may hear it, too.
        var expected: Set<String>
        var phase: Phase

        var isComplete: Bool { expected.isSubset(of: heard.map(\.device)) }
    }

    /// Phrases that ended within this time of each other are one.
    package static let sameMs: Int64 = 700
    /// A louder device may come so long after the decision.
    package static let revisionMs: Int64 = 1_000
    /// It must be louder by this, in hundredths of a decibel.
    package static let revisionMargin: Int32 = 100
    /// The time in which the winner yields, or keeps its place.
    package static let yieldMs: Int64 = 500
    /// The rounds and the devices of a round that are known. One more device loses.
    package static let roundsMax = 4
    package static let devicesMax = 32

    private let windowMs: Int64
    private var rounds: [Round] = []

    package init(windowMs: Int64) { self.windowMs = windowMs }

    // MARK: - Events

    /// A device has heard a phrase.
    ///
    /// - Parameter others: the devices of the room that are connected and may hear it, too.
    package mutating func heard(_ wake: Wake, others: [String], at now: Int64) -> Answer {
        decide(at: now)
        guard rounds.allSatisfy({ round in !round.heard.contains { $0.id == wake.id } }) else {
            return answer(to: wake.id, at: now)
        }
        guard let index = index(of: wake, at: now) else {
            var round = Round(
                endedMs: wake.endedMs, decideMs: now + windowMs, heard: [wake], expected: Set(others),
                phase: .collecting)
            round.expected.remove(wake.device)
            rounds = rounds.suffix(Self.roundsMax - 1) + [round]
            decide(at: now)
            return answer(to: wake.id, at: now)
        }
        guard rounds[index].heard.count < Self.devicesMax else {
            return .loses(to: rounds[index].phase.winner ?? rounds[index].heard[0])
        }
        rounds[index].heard.append(wake)
        if case .decided(let winner) = rounds[index].phase, mayRevise(wake, winner, rounds[index], at: now) {
            rounds[index].phase = .revising(winner, by: wake, untilMs: now + Self.yieldMs)
            return .revises(winner)
        }
        decide(at: now)
        return answer(to: wake.id, at: now)
    }

    /// A device was tapped: it wins at once, also over the winner of a round that has just been decided.
    ///
    /// - Returns: the device that must stop listening; nil: none.
    package mutating func tapped(_ wake: Wake, at now: Int64) -> Wake? {
        decide(at: now)
        guard let index = index(of: wake, at: now) else {
            rounds =
                rounds.suffix(Self.roundsMax - 1) + [
                    Round(endedMs: wake.endedMs, decideMs: now, heard: [wake], expected: [], phase: .final(wake))
                ]
            return earlier(than: wake.id)
        }
        guard !rounds[index].heard.contains(where: { $0.id == wake.id }) else { return nil }
        let winner = rounds[index].phase.winner
        rounds[index].heard = rounds[index].heard.suffix(Self.devicesMax - 1) + [wake]
        rounds[index].phase = .final(wake)
        return winner.flatMap { $0.device == wake.device ? nil : $0 }
    }

    /// The winner has yielded to the device with this id, or has heard a sentence and keeps its place.
    package mutating func revised(_ id: String, isFree: Bool, at now: Int64) -> Answer {
        decide(at: now)
        guard let index = rounds.firstIndex(where: { round in round.heard.contains { $0.id == id } }) else {
            return .unknown
        }
        if case .revising(let winner, let wake, _) = rounds[index].phase, wake.id == id {
            rounds[index].phase = isFree ? .decided(wake) : .final(winner)
        }
        return answer(to: id, at: now)
    }

    /// What the device with this id is answered by now.
    package mutating func answer(to id: String, at now: Int64) -> Answer {
        decide(at: now)
        guard let round = rounds.last(where: { round in round.heard.contains { $0.id == id } }) else { return .unknown }
        switch round.phase {
        case .collecting: return .waits(untilMs: round.decideMs)
        case .decided(let winner), .final(let winner): return winner.id == id ? .wins : .loses(to: winner)
        case .revising(let winner, let wake, let until):
            if winner.id == id { return .wins }
            return wake.id == id ? .revises(winner) : .waits(untilMs: until)
        }
    }

    /// The device that has won the phrase before, and may still listen; nil: none. One device of a room listens.
    package func earlier(than id: String) -> Wake? {
        guard let index = rounds.lastIndex(where: { $0.phase.winner?.id == id }), index > 0,
            let before = rounds[index - 1].phase.winner, before.device != rounds[index].phase.winner?.device
        else { return nil }
        return before
    }

    // MARK: - Parts

    /// The round of a phrase; nil: it is a new one.
    private func index(of wake: Wake, at now: Int64) -> Int? {
        rounds.lastIndex { round in
            abs(round.endedMs - wake.endedMs) <= Self.sameMs && now <= round.decideMs + Self.revisionMs
        }
    }

    private func mayRevise(_ wake: Wake, _ winner: Wake, _ round: Round, at now: Int64) -> Bool {
        now <= round.decideMs + Self.revisionMs
            && wake.signalToNoise >= winner.signalToNoise.addingReportingOverflow(Self.revisionMargin).partialValue
    }

    private mutating func decide(at now: Int64) {
        for index in rounds.indices {
            switch rounds[index].phase {
            case .collecting:
                guard now >= rounds[index].decideMs || rounds[index].isComplete,
                    let first = rounds[index].heard.first
                else { continue }
                let loudest = rounds[index].heard.dropFirst().reduce(first) { $1.isLouder(than: $0) ? $1 : $0 }
                rounds[index].phase = .decided(loudest)
            case .revising(let winner, _, let until):
                // Whoever was to ask the winner has died: the winner may have yielded, and then none listens.
                if now >= until { rounds[index].phase = .decided(winner) }
            case .decided, .final: break
            }
        }
    }
}
