import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf

/// Calls, parties and clients over a network that loses, repeats, delays and reorders messages, with owners that die.
///
/// A change of an entity is confirmed after some time, in order, and what it causes is sent only then. When an owner
/// dies, changes that are not confirmed are lost, and what a confirmed change causes may be lost. One seed is one run.
struct CallWorld {
    /// What an entity sends when a change is confirmed.
    enum Output {
        case action(CallAction)
        case reply(client: Int, event: CallEvent, Result<CallView, ApusError>)
        case started(client: Int, Result<CallView, ApusError>)
        case answer(call: Int, CallClusterEvent)
        case claimedAhead(call: Int, client: Int, [CallClaimAnswer])
    }

    struct Held {
        var state: Data
        /// The call, if the change is one of a call.
        var call: CallStateMachine?
        /// The change, and confirmations after it.
        var inputs: [CallInput]
        var outputs: [Output]
    }

    struct CallEntity {
        var id: CallID
        var machine: CallStateMachine
        /// What the standby has: the next owner begins with it.
        var confirmed = Data()
        /// The same, as it is read.
        var confirmedState = CallState()
        var held: [Held] = []
        var isDown = false
        var incarnation = 0
        var skew: Int64 = 0
        /// Confirmed inputs, for the model.
        var inputs: [CallInput] = []
        /// The number of each leg when the call ended.
        var numbers: [Int32?]?
        var endedAt: Int64?
        /// When the end of each leg was confirmed.
        var endTimes: [Int64?] = []
        var flags: [CallFlags] = []
        var wakeAt = Int64.max
        var hasRecord = false
        var hasChannels = false
        /// What the recorder has of a message: it begins, and stores it once the call is over.
        var isRecording = false
        var hasMessage = false
        /// Since when the caller of a message is on another call.
        var takenAt: Int64?
        var isMade = false
        /// The ends of claims that were granted before the call was placed, and of which it does not know.
        var claimsAhead: Set<Int64> = []
    }

    struct PartyEntity {
        var party: CallParty
        var machine: PartyStateMachine
        var confirmed = Data()
        var held: [Held] = []
        var isDown = false
        var incarnation = 0
    }

    enum Letter {
        case start(call: Int, client: Int)
        case claimAhead(call: Int, client: Int, [CallClaimAnswer])
        case claimedAhead(call: Int, client: Int, [CallClaimAnswer])
        case request(call: Int, client: Int, event: CallEvent, session: UInt64)
        case outsider(call: Int, event: CallEvent)
        case reply(call: Int, client: Int, event: CallEvent, Result<CallView, ApusError>)
        case started(call: Int, client: Int, Result<CallView, ApusError>)
        case notice(call: Int, client: Int, CallAction)
        case claim(call: Int, party: Int, CallPartyClaim)
        case release(call: Int, party: Int)
        case answer(call: Int, CallClusterEvent)
        case confirmCall(Int, incarnation: Int)
        case confirmParty(Int, incarnation: Int)
        case killCall(Int)
        case killParty(Int)
        case ownCall(Int)
        case ownParty(Int)
        case wake(Int)
        case act(client: Int, call: Int, CallEvent)
        case retry(client: Int, call: Int, CallEvent, tries: Int)
        case retryStart(call: Int, tries: Int)
        case die(client: Int)
        case comeBack(client: Int)
        case reportSession(client: Int, call: Int, CallEvent, session: UInt64, tries: Int)
    }

    let seed: UInt64
    let mutant: CallMutant
    var random: SeededRandom
    /// For what answering machines do.
    var machineRandom: SeededRandom
    /// For claims that are made before a call is placed.
    var claimRandom: SeededRandom
    var now: Int64 = 1_000_000
    var configuration = CallConfiguration()
    var calls: [CallEntity] = []
    var parties: [PartyEntity] = []
    var clients: [SimulatedClient] = []
    var starts: [CallStart] = []
    /// Sorted by time, the last comes first.
    private var letters: [(at: Int64, number: Int, letter: Letter)] = []
    private var letterCount = 0
    var violations: [String] = []
    var counts = Counts()
    let loss: Double
    private let doubling: Double
    private let delayMax: Int64
    /// Deaths of owners that are still to come, each just after a change.
    var plannedDeaths = 0

    /// What runs have reached.
    struct Counts {
        var events = 0
        var accepted = 0
        var ended = 0
        var deaths = 0
        var lostChanges = 0
        var lostOutputs = 0
        /// Confirmations that the standby receives with the next change.
        var deferredChanges = 0
        var late = 0
        var busy = 0
        var glare = 0
        var joined = 0
        var lost = 0
        var messages = 0
        /// Calls that rang with their first change.
        var claimedAhead = 0
        var legsMax = 0
        var byteCountMax = 0
    }

    init(seed: UInt64, type: CallType, mutant: CallMutant = .none) {
        (self.seed, self.mutant) = (seed, mutant)
        random = SeededRandom(seed: seed)
        machineRandom = SeededRandom(seed: ~seed)
        claimRandom = SeededRandom(seed: seed &* 3 &+ 1)
        loss = [0, 0.05, 0.3][Int(random.next() % 3)]
        doubling = [0, 0.2][Int(random.next() % 2)]
        delayMax = [5, 50, 2000][Int(random.next() % 3)]
        configuration.durationMax = .seconds(150)
        configuration.endedTime = .seconds(20)
        configuration.endedTimeMax = .seconds(120)
        configuration.keepConnectTime = .seconds(5)
        makeClients()
        makeCalls(type)
    }

    // MARK: The run

    /// Runs until nothing is left to do.
    ///
    /// - Returns: what was violated.
    mutating func run() -> [String] {
        let end = now + 1_200_000
        while let next = letters.popLast() {
            guard next.at < end else {
                violate("something goes on for ever")
                break
            }
            now = max(now, next.at)
            counts.events += 1
            take(next.letter)
            guard violations.count < 5 else { break }
        }
        checkEnd()
        return violations
    }

    mutating func violate(_ text: String) { violations.append("seed \(seed) at \(now): \(text)") }

    mutating func chance(_ share: Double) -> Bool { random.nextUnit() < share }

    mutating func number(_ range: ClosedRange<Int64>) -> Int64 {
        range.lowerBound + Int64(random.next() % UInt64(range.upperBound - range.lowerBound + 1))
    }

    mutating func later(_ delay: Int64, _ letter: Letter) {
        letterCount += 1
        let at = now + max(0, delay)
        var (low, high) = (0, letters.count)
        while low < high {
            let middle = (low + high) / 2
            if letters[middle].at > at { low = middle + 1 } else { high = middle }
        }
        letters.insert((at, letterCount, letter), at: low)
    }

    /// Sends over the network.
    mutating func send(_ letter: Letter, isInside: Bool = false) {
        let (loss, delayMax) = isInside ? (min(loss, 0.05), min(delayMax, 50)) : (loss, delayMax)
        for _ in 0..<(chance(doubling) ? 2 : 1) where !chance(loss) { later(number(1...delayMax), letter) }
    }

    private mutating func take(_ letter: Letter) {
        switch letter {
        case .start(let call, let client): order(call, client)
        case .claimAhead(let call, let client, let answers): claimAhead(call, client, answers)
        case .claimedAhead(let call, let client, let answers): claimNext(call, client, answers)
        case .request(let call, let client, let event, let session):
            var sender = clients[client].sender
            sender.session = session
            handle(event, of: sender, client, call)
        case .outsider(let call, let event): intrude(event, call)
        case .reply(let call, let client, let event, let result): reply(result, to: event, call, client)
        case .started(let call, let client, let result): started(result, call, client)
        case .notice(let call, let client, let action): notice(action, call, client)
        case .claim(let call, let party, let claim): take(claim, of: call, party)
        case .release(let call, let party): release(call, party)
        case .answer(let call, let event): happen(event, call)
        case .confirmCall(let call, let incarnation): if calls[call].incarnation == incarnation { confirm(call) }
        case .confirmParty(let party, let incarnation):
            if parties[party].incarnation == incarnation { confirmParty(party) }
        case .killCall(let call): kill(call)
        case .killParty(let party): killParty(party)
        case .ownCall(let call): own(call)
        case .ownParty(let party): ownParty(party)
        case .wake(let call):
            guard now >= calls[call].wakeAt else { return }
            calls[call].wakeAt = .max
            happen(.timeAdvanced, call)
        case .act(let client, let call, let event): act(client, call, event)
        case .retry(let client, let call, let event, let tries): retry(client, call, event, tries)
        case .retryStart(let call, let tries): retryStart(call, tries)
        case .die(let client): die(client)
        case .comeBack(let client): comeBack(client)
        case .reportSession(let client, let call, let event, let session, let tries):
            reportSession(client, call, event, session, tries)
        }
    }

    // MARK: Parties

    private mutating func take(_ claim: CallPartyClaim, of call: Int, _ party: Int) {
        guard !parties[party].isDown, let (answer, outputs) = decide(claim, party) else { return }
        let event: CallClusterEvent =
            switch answer {
            case .granted, .grantedInsteadOf: .partyClaimed(parties[party].party)
            case .refused: .partyRefused(parties[party].party)
            case .crossed: .partyCrossed(parties[party].party)
            }
        hold([.answer(call: call, event)] + outputs, party)
    }

    /// - Returns: the answer, and what the call receives that loses the party.
    mutating func decide(_ claim: CallPartyClaim, _ party: Int) -> (PartyStateMachine.Answer, [Output])? {
        var changed = claim
        if mutant == .grantsBusyParties, parties[party].machine.state.claim.call != claim.call {
            parties[party].machine.release(CallID(unchecked: parties[party].machine.state.claim.call), at: now)
        }
        if mutant == .refusesBoth { changed.clearPeer() }
        let holder = parties[party].machine.state.claim.call
        guard let answer = try? parties[party].machine.claim(changed, at: now) else { return nil }
        switch answer {
        case .granted, .crossed: return (answer, [])
        case .grantedInsteadOf:
            counts.glare += 1
            let other = calls.firstIndex { $0.id.rawValue == holder }
            return (answer, other.map { [.answer(call: $0, .partyRefused(parties[party].party))] } ?? [])
        case .refused:
            counts.busy += 1
            return (answer, [])
        }
    }

    private mutating func release(_ call: Int, _ party: Int) {
        guard !parties[party].isDown else { return }
        parties[party].machine.release(calls[call].id, at: now)
        hold([.answer(call: call, .partyReleased(parties[party].party))], party)
    }

    mutating func hold(_ outputs: [Output], _ party: Int) {
        let state: Data = (try? parties[party].machine.state.serializedBytes()) ?? Data()
        parties[party].held.append(Held(state: state, call: nil, inputs: [], outputs: outputs))
        later(number(1...4), .confirmParty(party, incarnation: parties[party].incarnation))
        if diesNow() { later(number(0...3), .killParty(party)) }
    }

    /// True for one of the planned deaths.
    mutating func diesNow() -> Bool {
        guard plannedDeaths > 0, chance(0.1) else { return false }
        plannedDeaths -= 1
        return true
    }

    private mutating func confirmParty(_ party: Int) {
        let held = parties[party].held.removeFirst()
        parties[party].confirmed = held.state
        for output in held.outputs {
            switch output {
            case .answer(let call, let event): send(.answer(call: call, event), isInside: true)
            case .claimedAhead(let call, let client, let answers):
                send(.claimedAhead(call: call, client: client, answers), isInside: true)
            case .action, .reply, .started: break
            }
        }
    }

    private mutating func killParty(_ party: Int) {
        guard !parties[party].isDown else { return }
        counts.deaths += 1
        counts.lostChanges += parties[party].held.count
        parties[party].isDown = true
        parties[party].incarnation += 1
        parties[party].held = []
        later(number(50...300), .ownParty(party))
    }

    private mutating func ownParty(_ party: Int) {
        guard let state = try? CallPartyState(serializedBytes: parties[party].confirmed),
            let machine = try? PartyStateMachine(restoring: state, configuration)
        else { return violate("the state of a party cannot be restored") }
        (parties[party].machine, parties[party].isDown) = (machine, false)
    }
}
