import ApusCalls
import ApusCluster
import ApusCore
import SwiftProtobuf
import Testing

@Suite("Claims that are made before a call is placed (CALL-5, CALL-6)")
struct ClaimAheadTests {
    private static let alice = CallDriver.caller.party

    private func granted(_ party: CallParty) -> CallClaimAnswer { .with { ($0.party, $0.granted) = (party, true) } }
    private func refused(_ party: CallParty, isCrossed: Bool = false) -> CallClaimAnswer {
        .with { ($0.party, $0.crossed) = (party, isCrossed) }
    }

    private func place(
        _ claims: [CallClaimAnswer], _ type: CallType = .oneToOne, to targets: [CallTarget] = [CallDriver.bell(1)],
        answering: CallAnswering? = nil
    ) throws -> CallDriver {
        try CallDriver(placing: CallDriver.start(type, to: targets, answering: answering, claims: claims))
    }

    @Test("A call whose parties are claimed rings with its first change, and is as one that has claimed them itself")
    func rings() throws {
        let call = try place([granted(Self.alice), granted(CallDriver.bell(1).party)])
        #expect(call.actions == [.ring(leg: 1)] && call.phase == .calling)
        let other = try CallDriver()
        #expect(call.machine.state == other.machine.state)
    }

    @Test("A party without an answer is claimed by the call itself")
    func unanswered() throws {
        var call = try place([])
        #expect(call.actions.count == 1 && call.phase == .placing)
        call = try place([granted(Self.alice)])
        guard case .claim(CallDriver.bell(1).party, _) = call.actions.first else { throw ApusError(.internalFailure) }
        #expect(call.actions.count == 1 && call.phase == .calling)
        call = try place(
            [granted(Self.alice), granted(CallDriver.bell(2).party)], .oneToMany, to: CallDriver.bells(2))
        #expect(call.actions.contains(.ring(leg: 2)) && call.actions.count == 2)
        call.happen(.partyClaimed(CallDriver.bell(1).party))
        #expect(call.actions == [.ring(leg: 1)])
    }

    @Test("A called party whose claim was answered before the caller's keeps it until the call claims it")
    func outOfOrder() throws {
        var call = try place([granted(CallDriver.bell(1).party)])
        guard case .claim(Self.alice, _) = call.actions.first else { throw ApusError(.internalFailure) }
        #expect(call.actions.count == 1)
        call.happen(.partyClaimed(Self.alice))
        call.happen(.partyClaimed(CallDriver.bell(1).party))
        #expect(call.actions == [.ring(leg: 1)])
    }

    @Test("A caller that is on another call receives −2520 with the first change, and rings nobody")
    func callerBusy() throws {
        let call = try place([refused(Self.alice)])
        #expect(call.phase == .ended && call.machine.view(0).end?.number == -2520)
        #expect(!call.actions.contains { if case .ring = $0 { true } else { false } })
        // The claim may have been sent twice, and granted the second time.
        #expect(call.actions.contains(.release(Self.alice)))
    }

    @Test("A called party that is on another call ends the call with −2511, and frees its caller")
    func calledBusy() throws {
        let call = try place([granted(Self.alice), refused(CallDriver.bell(1).party)])
        #expect(call.phase == .ended && call.machine.view(0).end?.number == -2511)
        #expect(call.actions.contains(.release(Self.alice)))
    }

    @Test("A party that is granted to a call that has ended with its first change is released")
    func endedAlready() throws {
        let call = try place([refused(Self.alice), granted(CallDriver.bell(1).party)])
        #expect(call.actions.contains(.release(CallDriver.bell(1).party)))
    }

    @Test("An answering machine answers for a busy party, and not for one that calls the caller")
    func machines() throws {
        let (bell, machine) = (CallDriver.bell(1).party, CallDriver.machine(of: CallDriver.bell(1).party))
        #expect(try place([granted(Self.alice), refused(bell)], answering: machine).phase == .recording)
        #expect(try place([granted(Self.alice), refused(bell, isCrossed: true)], answering: machine).phase == .ended)
    }

    @Test("A repeated start with other answers changes nothing")
    func repeated() throws {
        var call = try place([granted(Self.alice), granted(CallDriver.bell(1).party)])
        let state = call.machine.state
        var actions: [CallAction] = []
        let again = try CallDriver.start(claims: [refused(Self.alice)])
        #expect(try call.machine.start(again, at: call.now, &actions).end == nil)
        #expect(call.machine.state == state && actions.isEmpty)
    }

    @Test("A repeated start of a call that has ended releases the parties that were claimed for it, until they answer")
    func repeatedLate() throws {
        let bell = CallDriver.bell(1).party
        var call = try place([granted(Self.alice), granted(bell)])
        try call.send(.cancelled, 0)
        for party in [Self.alice, bell] { call.happen(.partyReleased(party)) }
        var actions: [CallAction] = []
        let again = try CallDriver.start(claims: [granted(Self.alice), granted(bell)])
        #expect(try call.machine.start(again, at: call.now, &actions).end != nil)
        #expect(actions == [.release(Self.alice), .release(bell)])
        call.happen(.partyReleased(Self.alice))
        call.wait(.seconds(2))
        #expect(call.machine.state.claims.map(\.status) == [.released, .releasing])
        call.happen(.partyReleased(bell))
        #expect(call.machine.state.claims.map(\.status) == [.released, .released])
    }

    // MARK: The party

    private let definition = PartyKind(configuration: CallConfiguration()) { _, _ in true }.definition
    private let door = CallParty.device(DeviceID(unchecked: "door"))
    private let call = CallID(shard: ShardID(1), RequestID(high: 1, low: 2))
    private let other = CallID(shard: ShardID(1), RequestID(high: 3, low: 4))

    private func claim(
        _ claim: CallPartyClaim, after state: CallPartyClaim? = nil
    ) throws -> (CallClaimAnswer, EntityTrial<CallPartyEntity>) {
        let entity = CallPartyEntity.with { if let state { $0.state.claim = state } }
        var trial = EntityTrial(
            entity, of: door.address, epoch: 1, wallMilliseconds: 1000, reminders: [],
            makeID: { RequestID(high: 5, low: 6) })
        let message = CallClaimAhead.with { $0.claim = claim }
        trial.carryOut(CallClaimAhead.method, try message.serializedBytes(), by: definition)
        return (try CallClaimAnswer(serializedBytes: try trial.answer.get()), trial)
    }

    private func makeClaim(_ id: CallID, isCaller: Bool = false, peer: String? = nil) -> CallPartyClaim {
        .with {
            ($0.call, $0.untilMs, $0.isCaller) = (id.rawValue, 31_000, isCaller)
            if let peer { $0.peer = .device(DeviceID(unchecked: peer)) }
        }
    }

    @Test("A free party is granted until the claim's time, and its call is not notified")
    func free() throws {
        let (answer, trial) = try claim(makeClaim(call))
        #expect(answer == granted(door))
        #expect(trial.content.state.claim.untilMs == 31_000 && trial.tellings.isEmpty)
    }

    @Test("A repeated claim is a renewal, and says so")
    func renewed() throws {
        let (answer, _) = try claim(makeClaim(call), after: makeClaim(call))
        #expect(answer.granted && answer.renewed)
    }

    @Test("A party on another call refuses, and the other call keeps it")
    func busy() throws {
        let (answer, trial) = try claim(makeClaim(call), after: makeClaim(other))
        #expect(answer == refused(door))
        #expect(trial.content.state.claim.call == other.rawValue && trial.tellings.isEmpty)
    }

    @Test("Of two calls that cross, the one with the lesser id has the party, and the other one is notified")
    func crossing() throws {
        let (answer, trial) = try claim(
            makeClaim(call, peer: "bell"), after: makeClaim(other, isCaller: true, peer: "bell"))
        #expect(answer == granted(door))
        let notes = try trial.tellings.map { try CallNote(serializedBytes: $0.message) }
        #expect(notes.map(\.kind) == [.refused] && notes.map(\.party) == [door])
        let (second, later) = try claim(
            makeClaim(other, peer: "bell"), after: makeClaim(call, isCaller: true, peer: "bell"))
        #expect(second == refused(door, isCrossed: true) && later.tellings.isEmpty)
    }

    @Test("A claim without the id of a call is refused with 10001")
    func malformed() {
        #expect(throws: ApusError(.malformed, "a claim has the id of a call")) { try claim(CallPartyClaim()) }
    }
}
