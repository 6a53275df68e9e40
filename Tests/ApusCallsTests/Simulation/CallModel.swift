import ApusCalls
import ApusCore

/// An input that a call has handled, in the order of its owners.
struct CallInput {
    enum Content {
        case start(CallStart)
        case event(CallEvent, CallSender)
        case cluster(CallClusterEvent)
    }

    let content: Content
    let at: Int64
}

/// What the contract says of a call, by the inputs that it has handled: the winner, and the number of each leg.
///
/// Written from the requirements and independently of the machine: it has no phases, no notices and no retries.
struct CallModel {
    private struct Leg {
        let party: CallParty
        let endpoint: AccessID
        let hasPush: Bool
        var isOffered = false
        var isAbsent = false
        var number: Int32?
        var hasRejected = false
        var isBusy = false
        var newestSession: UInt64 = 0
        var lostAt: Int64?
    }

    private enum Hold { case asked, held, gone }

    private let configuration: CallConfiguration
    private var type = CallType.unspecified
    private var legs: [Leg] = []
    private var holds: [(party: CallParty, hold: Hold)] = []
    private var isCalling = false
    private var ringEnd: Int64 = 0
    /// When the answering machine answers a call that still rings.
    private var machineAt = Int64.max
    private var acceptedAt: Int64?
    private var connected: Set<Int> = []
    private(set) var winner: Int?
    private var machine: CallAnswering?
    /// When the answering machine has answered.
    private var messageAt: Int64?
    private var now: Int64 = 0

    init(_ inputs: [CallInput], _ configuration: CallConfiguration) {
        self.configuration = configuration
        for input in inputs {
            expire(until: input.at)
            now = input.at
            switch input.content {
            case .start(let start): if legs.isEmpty { place(start, at: input.at) }
            case .event(let event, let sender): apply(event, sender, at: input.at)
            case .cluster(let event): apply(event)
            }
        }
        expire(until: .max)
    }

    var numbers: [Int32?] { legs.map(\.number) }
    var hasMessage: Bool { messageAt != nil }

    private var isOver: Bool { legs.first?.number != nil }
    private var open: [Int] { legs.indices.dropFirst().filter { legs[$0].number == nil && $0 != winner } }

    private mutating func place(_ start: CallStart, at now: Int64) {
        (type, machine) = (start.type, start.answering)
        ringEnd = now + Int64((start.timeout ?? configuration.ringTime).milliseconds)
        legs = [Leg(party: start.caller.party, endpoint: start.caller.endpoint, hasPush: false)]
        legs[0].newestSession = start.caller.session
        holds = [(start.caller.party, .asked)]
        for target in start.targets {
            legs.append(Leg(party: target.party, endpoint: target.endpoint, hasPush: target.hasPush))
            if target.isAbsent { (legs[legs.endIndex - 1].isAbsent, legs[legs.endIndex - 1].number) = (true, -2532) }
            if !holds.contains(where: { $0.party == target.party }) { holds.append((target.party, .asked)) }
        }
        machineAt = start.answering.flatMap { $0.afterMs > 0 ? now + $0.afterMs : nil } ?? .max
        for claim in start.claims {
            let refusal: CallClusterEvent = claim.crossed ? .partyCrossed(claim.party) : .partyRefused(claim.party)
            apply(claim.granted ? .partyClaimed(claim.party) : refusal)
        }
    }

    // MARK: Inputs

    private mutating func apply(_ event: CallEvent, _ sender: CallSender, at now: Int64) {
        var found = legs.firstIndex { $0.party == sender.party && $0.endpoint == sender.endpoint }
        if found == nil, event == .joined, isHeld(sender.party), !isOver, winner == nil {
            legs.append(Leg(party: sender.party, endpoint: sender.endpoint, hasPush: true))
            found = legs.endIndex - 1
            legs[legs.endIndex - 1].isOffered = true
        }
        guard let leg = found else { return }
        if sender.session >= legs[leg].newestSession {
            let isNewer = sender.session > legs[leg].newestSession
            legs[leg].newestSession = sender.session
            if event == .sessionEnded {
                legs[leg].lostAt = legs[leg].lostAt ?? now
            } else if isNewer {
                legs[leg].lostAt = nil
            }
        }
        guard !isOver, legs[leg].number == nil else { return }
        let isPart = leg == 0 || leg == winner
        switch event {
        case .accepted:
            guard winner == nil, legs[leg].isOffered else { return }
            (winner, acceptedAt) = (leg, now)
            for other in open { legs[other].number = -2522 }
        case .rejected, .hungUp, .cancelled:
            if winner != nil {
                hangUp(leg)
            } else if leg == 0, messageAt != nil {
                finish(caller: 0, others: 0)
            } else if leg == 0 {
                finish(caller: 0, others: -2523)
            } else {
                reject(leg)
            }
        case .wasBusy where !isPart: leave(leg, -2520)
        case .failed(let number):
            guard isPart else { return leave(leg, number) }
            let peer: Int32 = number == -2531 || number == -2532 ? number : -2533
            if let winner {
                finish(caller: leg == 0 ? number : peer, others: leg == winner ? number : peer)
            } else {
                finish(caller: number, others: -2523)
            }
        case .connected where winner != nil && isPart: connected.insert(leg)
        case .joined, .rang, .confirmed, .sessionStarted, .sessionEnded, .wasBusy, .connected: break
        }
    }

    private mutating func apply(_ event: CallClusterEvent) {
        guard !isOver else { return }
        switch event {
        case .partyClaimed(let party):
            guard let hold = holds.firstIndex(where: { $0.party == party }), holds[hold].hold == .asked,
                hold == 0 || isCalling
            else { return }
            holds[hold].hold = .held
            if hold == 0 { isCalling = true }
            for leg in open where legs[leg].party == party { legs[leg].isOffered = true }
            if hold == 0, open.isEmpty { conclude() }
        case .partyRefused(let party), .partyCrossed(let party):
            // The caller was taken over by the call of the party whose machine it speaks to.
            if messageAt != nil, holds[0].party == party { return finish(caller: 0, others: 0) }
            guard winner == nil, messageAt == nil, let hold = holds.firstIndex(where: { $0.party == party }),
                holds[hold].hold != .gone
            else { return }
            holds[hold].hold = .gone
            if case .partyCrossed = event { machine = nil }
            if hold == 0 { return finish(caller: isCalling ? -2511 : -2520, others: isCalling ? -2523 : -2520) }
            for leg in open where legs[leg].party == party { (legs[leg].number, legs[leg].isBusy) = (-2520, true) }
            conclude()
        case .partyReleased, .recordWritten, .restored, .timeAdvanced: break
        case .messageFull: if messageAt != nil { finish(caller: 0, others: 0) }
        case .messageStored: break
        }
    }

    // MARK: Rules

    private func isHeld(_ party: CallParty) -> Bool {
        holds.dropFirst().contains { $0.party == party && $0.hold == .held }
    }

    private mutating func hangUp(_ leg: Int) {
        guard leg == 0 || leg == winner else { return }
        finish(caller: leg == 0 ? 0 : -2513, others: leg == 0 ? -2513 : 0)
    }

    private mutating func reject(_ leg: Int) {
        legs[leg].hasRejected = true
        legs[leg].number = 0
        let others = open.filter { type != .oneToManySpecial || legs[$0].party == legs[leg].party }
        for other in others { legs[other].number = -2521 }
        if type == .oneToManySpecial { conclude() } else { finish(caller: -2510, others: -2521) }
    }

    private mutating func leave(_ leg: Int, _ number: Int32) {
        guard open.contains(leg) else { return }
        legs[leg].number = number
        legs[leg].isBusy = number == -2520
        conclude()
    }

    private mutating func conclude() {
        for hold in holds.indices.dropFirst() {
            let party = holds[hold].party
            // An app may still come to a party that had no client.
            let isLeft = legs.allSatisfy { $0.party != party || ($0.number != nil && !$0.isAbsent) }
            if isLeft { holds[hold].hold = .gone }
        }
        guard open.isEmpty else { return }
        let isRejected = legs.contains(where: \.hasRejected)
        if !isRejected, answer(at: now) { return }
        finish(caller: isRejected ? -2510 : legs.contains(where: \.isBusy) ? -2511 : -2512, others: 0)
    }

    private mutating func finish(caller: Int32, others: Int32) {
        for leg in legs.indices where legs[leg].number == nil { legs[leg].number = leg == 0 ? caller : others }
    }

    /// The machine answers where nobody has accepted, once the caller may call.
    private mutating func answer(at now: Int64) -> Bool {
        guard machine != nil, isCalling else { return false }
        messageAt = now
        for leg in open { legs[leg].number = -2530 }
        for hold in holds.indices.dropFirst() { holds[hold].hold = .gone }
        return true
    }

    // MARK: Time

    private mutating func expire(until now: Int64) {
        while !isOver, !legs.isEmpty, let next = nextExpiry(), next.at <= now {
            self.now = now == .max ? next.at : now
            switch next.leg {
            case nil:
                if messageAt != nil {
                    finish(caller: 0, others: 0)
                } else if winner == nil {
                    // The machine's time begins when its owner notices that.
                    if !answer(at: self.now) { finish(caller: -2512, others: -2530) }
                } else {
                    let isConnected = connected.count == 2
                    let duration = (acceptedAt ?? 0) + Int64(configuration.durationMax.milliseconds)
                    let number: Int32 = !isConnected && next.at < duration ? -2531 : -2530
                    finish(caller: number, others: number)
                }
            case let leg? where leg == 0 || leg == winner:
                finish(caller: -2532, others: winner == nil ? -2523 : -2532)
            case let leg?: leave(leg, -2532)
            }
        }
    }

    private func nextExpiry() -> (at: Int64, leg: Int?)? {
        var expiries: [(at: Int64, leg: Int?)] = []
        if let messageAt, let machine {
            expiries.append((messageAt + machine.lengthMs, nil))
        } else if let acceptedAt {
            if connected.count < 2 {
                expiries.append((acceptedAt + Int64(configuration.connectTime.milliseconds), nil))
            }
            expiries.append((acceptedAt + Int64(configuration.durationMax.milliseconds), nil))
        } else {
            expiries.append((isCalling ? min(ringEnd, machineAt) : ringEnd, nil))
        }
        for leg in legs.indices where legs[leg].number == nil {
            guard let lostAt = legs[leg].lostAt, leg == 0 || leg == winner || !legs[leg].hasPush else { continue }
            expiries.append((lostAt + Int64(configuration.grace.milliseconds), leg))
        }
        return expiries.min { $0.at < $1.at }
    }
}
