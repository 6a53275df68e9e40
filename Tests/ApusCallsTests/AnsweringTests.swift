import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("The answering machine in a call (CALL-5 to CALL-8)")
struct AnsweringTests {
    private static let bell = CallDriver.bell(1).party

    private static func call(
        _ type: CallType = .oneToOne, to targets: [CallTarget] = [CallDriver.bell(1)], after: Duration = .zero
    ) throws -> CallDriver {
        let machine = CallDriver.machine(of: targets[0].party, after: after)
        var call = try CallDriver(placing: CallDriver.start(type, to: targets, answering: machine))
        for claim in call.machine.state.claims { call.happen(.partyClaimed(claim.party)) }
        return call
    }

    @Test("CALL-6, CALL-8: nobody accepts in time: the legs end with -2530, their parties are free, the caller records")
    func notAnswered() throws {
        var call = try Self.call()
        try call.send(.rang, 1)
        call.wait(.seconds(29))
        #expect(call.phase == .ringing)
        call.wait(.seconds(1))
        #expect(call.phase == .recording && call.numbers == [nil, -2530] && call.ends == [1: -2530])
        #expect(call.actions.contains(.release(Self.bell)) && call.actions.contains(.recordMessage(isOver: false)))
        #expect(!call.actions.contains(.release(CallDriver.caller.party)), "the caller is on a call")
        #expect(call.actions.contains(.reportAccepted(leg: 0, peer: 0)))
        let flags = call.machine.view(0).flags
        #expect(flags.answered && !flags.accepted && !flags.end)
        // Too late.
        #expect(try call.send(.accepted, 1).end?.number == -2530)
        #expect(call.phase == .recording)

        call.wait(.seconds(5))
        #expect(try call.send(.hungUp, 0).end?.number == 0)
        #expect(call.phase == .ended && call.machine.state.end.reason == .messageLeft)
        #expect(call.actions.contains(.recordMessage(isOver: true)) && call.actions.contains(.releaseChannels))
        #expect(call.numbers == [0, -2530])
    }

    @Test("CALL-8: a message ends by itself at its longest length, and at its largest size")
    func longest() throws {
        for isFull in [false, true] {
            var call = try Self.call()
            call.wait(.seconds(30))
            #expect(call.phase == .recording)
            if isFull {
                call.happen(.messageFull)
            } else {
                call.wait(.seconds(19))
                #expect(call.phase == .recording)
                call.wait(.seconds(1))
            }
            #expect(call.phase == .ended && call.numbers == [0, -2530] && call.ends == [0: 0])
            #expect(call.machine.state.end.reason == .messageLeft)
        }
    }

    @Test("CALL-6: a machine answers after its own time, and never in place of an accept or a reject")
    func ownTime() throws {
        var call = try Self.call(after: .seconds(10))
        call.wait(.seconds(10))
        #expect(call.phase == .recording)

        var accepted = try Self.call(after: .seconds(10))
        try accepted.send(.accepted, 1)
        accepted.wait(.seconds(20))
        #expect(accepted.phase == .accepted)

        for type in [CallType.oneToOne, .oneToManySpecial] {
            var rejected = try Self.call(type)
            try rejected.send(.rejected, 1)
            #expect(rejected.phase == .ended && rejected.numbers == [-2510, 0])
        }
        var cancelled = try Self.call()
        try cancelled.send(.cancelled, 0)
        #expect(cancelled.phase == .ended && cancelled.machine.state.end.reason == .cancelled)
    }

    @Test("CALL-5: a machine answers at once when the called parties are busy, cannot be reached, or have no client")
    func nobody() throws {
        var busy = try CallDriver(
            placing: CallDriver.start(answering: CallDriver.machine(of: Self.bell)))
        busy.happen(.partyClaimed(CallDriver.caller.party))
        busy.happen(.partyRefused(Self.bell))
        #expect(busy.phase == .recording && busy.numbers == [nil, -2520])

        var lost = try Self.call(.oneToMany, to: CallDriver.bells(2))
        try lost.send(.failed(-2532), 1)
        #expect(lost.phase == .calling)
        try lost.send(.failed(-2532), 2)
        #expect(lost.phase == .recording && lost.numbers == [nil, -2532, -2532])

        let absent = CallTarget(Self.bell, AccessID(unchecked: "absent"), isAbsent: true)
        var alone = try CallDriver(
            placing: CallDriver.start(to: [absent], answering: CallDriver.machine(of: Self.bell)))
        #expect(alone.phase == .placing)
        alone.happen(.partyClaimed(CallDriver.caller.party))
        #expect(alone.phase == .recording && alone.actions.contains(.recordMessage(isOver: false)))
        #expect(!alone.actions.contains { if case .ring = $0 { true } else { false } })
        try alone.restore()
        #expect(alone.phase == .recording)
    }

    @Test(
        "CALL-5: no machine takes a call that crosses another one, and a message ends when the called party calls back")
    func crossing() throws {
        var crossed = try CallDriver(placing: CallDriver.start(answering: CallDriver.machine(of: Self.bell)))
        crossed.happen(.partyClaimed(CallDriver.caller.party))
        crossed.happen(.partyCrossed(Self.bell))
        #expect(crossed.phase == .ended && crossed.numbers == [-2511, -2520])

        var message = try Self.call()
        message.wait(.seconds(30))
        #expect(message.phase == .recording)
        message.happen(.partyRefused(CallDriver.caller.party))
        #expect(message.phase == .ended && message.numbers == [0, -2530] && message.ends == [0: 0])
        #expect(message.machine.state.end.reason == .messageLeft)
        #expect(message.actions.contains(.recordMessage(isOver: true)))
    }

    @Test("CALL-8: the next owner records on, and a message is asked for until it is stored")
    func survives() throws {
        var call = try Self.call()
        call.wait(.seconds(30))
        try call.restore()
        #expect(call.phase == .recording && call.actions.contains(.recordMessage(isOver: false)))
        call.wait(.seconds(20))
        try call.restore()
        #expect(call.phase == .ended && call.actions.contains(.recordMessage(isOver: true)))
        for claim in call.machine.state.claims { call.happen(.partyReleased(claim.party)) }
        call.happen(.recordWritten)
        try call.send(.confirmed(.ended), 0)
        _ = try? call.send(.confirmed(.ended), 1)
        call.wait(.seconds(20))
        #expect(call.actions.contains(.recordMessage(isOver: true)))
        call.happen(.messageStored)
        call.wait(.seconds(20))
        #expect(!call.actions.contains(.recordMessage(isOver: true)))
        call.wait(.seconds(60))
        #expect(call.phase == .unspecified)
    }

    @Test("CALL-8: a caller that is lost ends its message; its claim is renewed while it speaks")
    func lost() throws {
        var call = try Self.call()
        call.wait(.seconds(30))
        call.wait(.seconds(10))
        #expect(
            call.actions.contains { if case .claim(CallDriver.caller.party, _) = $0 { true } else { false } }
                || call.machine.state.claims[0].untilMs > call.now)
        try call.send(.sessionEnded, 0)
        call.wait(.seconds(15))
        #expect(call.phase == .ended && call.actions.contains(.recordMessage(isOver: true)))
    }

    @Test("CALL-10: an app that comes by push while a message is left receives -2530, and does not ring")
    func latePush() throws {
        let bob = CallDriver.app(1)
        var call = try Self.call(to: [bob])
        call.wait(.seconds(30))
        let late = CallSender(bob.party, AccessID(unchecked: "bob-2"))
        expectRefused(.callTimedOut) { try call.send(.joined, from: late) }
        try call.send(.hungUp, 0)
        expectRefused(.callTimedOut) { try call.send(.joined, from: late) }
    }

    @Test("CALL-8: a state with a machine of a party that is not called is refused with 10001")
    func foreignMachine() throws {
        var call = try Self.call()
        call.wait(.seconds(30))
        let good = call.machine.state
        let changes: [(inout CallState) -> Void] = [
            { $0.answering.party.id = "other" }, { $0.clearAnswering() }, { $0.messageMs = 0 }, { $0.winner = 1 },
            { $0.recordMessage.status = .UNRECOGNIZED(3) }, { $0.legs[0].status = .calling },
        ]
        for (index, change) in changes.enumerated() {
            var state = good
            change(&state)
            #expect(throws: ApusError(.malformed), "change \(index)") { try CallStateMachine(restoring: state) }
        }
    }

    @Test("CALL-6: the machine of a party without a client answers in place of another party's apps")
    func otherParty() throws {
        let (first, second) = (CallDriver.bell(1), CallDriver.bell(2).party)
        let absent = CallTarget(second, AccessID(unchecked: "absent"), isAbsent: true)
        var call = try CallDriver(
            placing: CallDriver.start(.oneToMany, to: [first, absent], answering: CallDriver.machine(of: second)))
        for claim in call.machine.state.claims { call.happen(.partyClaimed(claim.party)) }
        try call.restore()
        try call.send(.rang, 1)
        call.wait(.seconds(30))
        #expect(call.phase == .recording && call.numbers == [nil, -2530, -2532])
        try call.restore()
        #expect(call.phase == .recording)
    }

    @Test("CALL-6: a machine of a party that is not called is refused, before there is a call that nobody can restore")
    func notCalled() throws {
        let start = try CallDriver.start(answering: CallDriver.machine(of: CallDriver.bell(2).party))
        expectRefused(.callParametersInvalid) { _ = try CallDriver(placing: start) }
    }

    @Test("CALL-3: a call whose record cannot be written is kept for two hours, and asks at least every five minutes")
    func recordWithoutRoom() throws {
        var call = try CallDriver(placing: CallDriver.start())
        for claim in call.machine.state.claims { call.happen(.partyClaimed(claim.party)) }
        try call.send(.cancelled, 0)
        for claim in call.machine.state.claims { call.happen(.partyReleased(claim.party)) }
        call.wait(.seconds(6_500))
        #expect(call.phase == .ended)
        call.wait(.seconds(600))
        let asked = call.actions.count { $0 == .writeRecord }
        #expect((2...3).contains(asked), "\(asked)")
        call.happen(.recordWritten)
        call.wait(.seconds(1))
        #expect(call.phase == .unspecified)
    }
}
