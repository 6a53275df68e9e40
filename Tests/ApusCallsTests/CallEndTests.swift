import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("How a call ends for each leg (CALL-8, CALL-9, CALL-13 to CALL-16)")
struct CallEndTests {
    @Test("CALL-8: a cancel ends the ringing of every leg with -2523")
    func cancel() throws {
        var call = try CallDriver(.oneToManySpecial, to: CallDriver.bells(3))
        try call.send(.rang, 1)
        #expect(try call.send(.cancelled, 0).end?.number == 0)
        #expect(call.numbers == [0, -2523, -2523, -2523] && call.ends == [1: -2523, 2: -2523, 3: -2523])
        call = try CallDriver(placing: CallDriver.start())
        try call.send(.cancelled, 0)
        #expect(call.ends == [:], "a leg that was not notified of the call is not notified of its end")
    }

    @Test("CALL-8: a cancel and an accept that cross end alike on both sides, in either order")
    func glareOfCancel() throws {
        var call = try CallDriver()
        try call.send(.accepted, 1)
        #expect(try call.send(.cancelled, 0).end?.number == 0)
        #expect(call.numbers == [0, -2513] && call.phase == .ended)
        call = try CallDriver()
        try call.send(.cancelled, 0)
        let view = try call.send(.accepted, 1)
        #expect(view.end?.number == -2523 && !view.flags.accepted)
        #expect(call.numbers == [0, -2523] && call.actions == [])
    }

    @Test("CALL-8: either side hangs up, and the other one receives -2513", arguments: [0, 1])
    func hangUp(leg: Int) throws {
        for isConnected in [false, true] {
            var call = try CallDriver.accepted()
            if isConnected {
                try call.send(.connected, 0)
                try call.send(.connected, 1)
            }
            try call.send(.hungUp, leg)
            #expect(call.number(leg) == 0 && call.number(1 - leg) == -2513 && call.ends == [1 - leg: -2513])
        }
    }

    @Test(
        "An ended call keeps nothing of what its caller has sent, and a repeated start still finds it (CALL-3, CALL-6)")
    func endedExtra() throws {
        let extra = #"{"bizType":"screen_ipc"}"#
        var call = try CallDriver(extra: extra)
        #expect(!call.machine.state.extra.isEmpty)
        try call.send(.cancelled, 0)
        #expect(call.machine.state.extra.isEmpty)
        let start = try CallDriver.start(extra: extra)
        #expect(try call.machine.start(start, at: call.now, &call.actions).end?.number == 0)
    }

    @Test("CALL-8: before the accept a hang-up is a cancel of the caller, or a reject of a called leg")
    func earlyHangUp() throws {
        var call = try CallDriver()
        try call.send(.hungUp, 0)
        #expect(call.numbers == [0, -2523])
        call = try CallDriver()
        try call.send(.hungUp, 1)
        #expect(call.numbers == [-2510, 0])
    }

    @Test("CALL-8: a reject of the winner after its accept is a hang-up, and one of a leg that lost has no effect")
    func lateReject() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        try call.send(.accepted, 1)
        #expect(try call.send(.rejected, 2).end?.number == -2522)
        #expect(call.phase == .accepted)
        try call.send(.rejected, 1)
        #expect(call.numbers == [-2513, 0, -2522])
    }

    @Test(
        "CALL-8: events that are repeated or come after the end have no further effect, and their answers have the end")
    func repetitions() throws {
        let events: [(CallEvent, Int)] = [
            (.rang, 1), (.accepted, 1), (.accepted, 2), (.connected, 0), (.connected, 1), (.hungUp, 0),
        ]
        var once = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        var twice = once
        for (event, leg) in events {
            try once.send(event, leg)
            try twice.send(event, leg)
            let state = twice.machine.state
            try twice.send(event, leg)
            // Only how often a notice was sent may differ.
            #expect(state.phase == twice.machine.state.phase && state.winner == twice.machine.state.winner)
            #expect(!twice.actions.contains { if case .ring = $0 { true } else { false } })
        }
        #expect(once.numbers == twice.numbers && once.numbers == [0, -2513, -2522])
        let ended = once.machine.state
        for (event, leg) in events + [(.cancelled, 0), (.rejected, 2), (.failed(-2570), 0), (.wasBusy, 1)] {
            #expect(try once.send(event, leg).flags.end)
        }
        #expect(once.machine.state == ended && once.actions == [])
    }

    @Test(
        "CALL-13, CALL-14: a leg reports an error, and both receive their numbers",
        arguments: [(-2531, -2531), (-2532, -2532), (-2533, -2533), (-2570, -2533), (-2571, -2533)] as [(Int32, Int32)])
    func exceptions(own: Int32, peer: Int32) throws {
        for leg in [0, 1] {
            var call = try CallDriver.accepted()
            #expect(try call.send(.failed(own), leg).end?.number == own)
            #expect(call.number(1 - leg) == peer && call.ends == [1 - leg: peer])
        }
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        try call.send(.failed(own), 1)
        #expect(call.numbers == [nil, own, nil], "a called leg leaves, and the others ring on")
        try call.send(.failed(own), 0)
        #expect(call.numbers == [own, own, -2523])
        call = try CallDriver()
        try call.send(.failed(own), 1)
        #expect(call.numbers == [-2512, own])
    }

    @Test("CALL-13: a call whose media do not connect in time ends with -2531 on both sides")
    func connectTimeout() throws {
        var call = try CallDriver.accepted()
        try call.send(.connected, 1)
        call.wait(.milliseconds(29_999))
        #expect(call.phase == .accepted)
        call.wait(.milliseconds(1))
        #expect(call.numbers == [-2531, -2531] && call.ends == [0: -2531, 1: -2531])
    }

    @Test("CALL-15: a call that reaches its longest duration ends with -2530 on both sides")
    func duration() throws {
        var call = try CallDriver.accepted()
        try call.send(.connected, 0)
        try call.send(.connected, 1)
        call.wait(.seconds(4 * 3600 - 1))
        #expect(call.phase == .connected)
        call.wait(.seconds(1))
        #expect(call.numbers == [-2530, -2530])
    }

    @Test(
        "CALL-13: a leg whose session has ended leaves an accepted call after the grace, unless it returns",
        arguments: [0, 1])
    func lost(leg: Int) throws {
        var call = try CallDriver.accepted()
        try call.send(.connected, 0)
        try call.send(.connected, 1)
        try call.send(.sessionEnded, leg, session: 1)
        call.wait(.seconds(14))
        try call.send(.sessionStarted, leg, session: 2)
        // A report about the former session comes late.
        try call.send(.sessionEnded, leg, session: 1)
        call.wait(.seconds(60))
        #expect(call.phase == .connected)
        try call.send(.sessionEnded, leg, session: 2)
        call.wait(.seconds(15))
        #expect(call.numbers == [-2532, -2532])
    }

    @Test("CALL-13: an event of a session that has ended, which comes late, does not bring the leg back")
    func lateEvent() throws {
        var call = try CallDriver.accepted()
        try call.send(.sessionEnded, 1, session: 3)
        try call.send(.connected, 1, session: 3)
        try call.send(.connected, 1, session: 2)
        call.wait(.seconds(15))
        #expect(call.numbers == [-2532, -2532])
    }

    @Test("CALL-8: a caller that is lost before the accept ends the call with -2523 for the legs")
    func lostCaller() throws {
        var call = try CallDriver()
        try call.send(.sessionEnded, 0)
        call.wait(.seconds(15))
        #expect(call.numbers == [-2532, -2523])
    }

    @Test("CALL-10: a called leg without a session leaves after the grace, unless a push reaches it")
    func lostLegs() throws {
        let targets = [CallDriver.app(1, hasPush: true), CallDriver.app(2, hasPush: false)]
        var call = try CallDriver(to: targets)
        try call.send(.sessionEnded, 1)
        try call.send(.sessionEnded, 2)
        call.wait(.seconds(15))
        #expect(call.numbers == [nil, nil, -2532])
        #expect(try call.send(.accepted, 1, session: 2).flags.accepted)
        call.wait(.seconds(20))
        #expect(call.phase == .accepted)
    }

    @Test("CALL-6: a call that reaches no leg ends with -2512")
    func unreachable() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        try call.send(.failed(-2532), 1)
        #expect(call.number(0) == nil)
        try call.send(.failed(-2532), 2)
        #expect(call.numbers == [-2512, -2532, -2532])
    }

    @Test("CALL-10: an app that a push has notified joins the call, rings and accepts")
    func joining() throws {
        var call = try CallDriver(to: [CallDriver.app(1)])
        let tablet = CallSender(CallDriver.app(1).party, AccessID(unchecked: "bob-2"))
        #expect(try call.send(.joined, from: tablet).leg == 2)
        #expect(call.actions == [.ring(leg: 2)])
        #expect(try call.send(.joined, from: tablet).leg == 2)
        #expect(call.machine.state.legs.count == 3)
        #expect(try call.send(.accepted, from: tablet).flags.accepted)
        #expect(call.numbers == [nil, -2522, nil])
        let watch = CallSender(tablet.party, AccessID(unchecked: "bob-3"))
        expectRefused(.answeredByOthers) { try call.send(.joined, from: watch) }
        // A device has one endpoint.
        let device = CallSender(.device(DeviceID(unchecked: "bell-1")), AccessID(unchecked: "bell-2"))
        expectRefused(.illegalRelation) { try call.send(.joined, from: device) }
    }

    @Test("CALL-9: a push that comes late for a call that has ended receives the number of its end")
    func latePush() throws {
        let watch = CallSender(CallDriver.app(1).party, AccessID(unchecked: "bob-9"))
        func refuse(_ code: ErrorCode, _ body: (inout CallDriver) throws -> Void) throws {
            var call = try CallDriver(.oneToMany, to: [CallDriver.app(1), CallDriver.bell(1)])
            try body(&call)
            let state = call.machine.state
            expectRefused(code) { try call.send(.joined, from: watch) }
            #expect(call.machine.state == state)
        }
        try refuse(.callCancelled) { try $0.send(.cancelled, 0) }
        try refuse(.rejectedByOthers) { try $0.send(.rejected, 2) }
        try refuse(.answeredByOthers) { try $0.send(.accepted, 2) }
        try refuse(.callTimedOut) { $0.wait(.seconds(30)) }
        try refuse(.answeredByOthers) {
            try $0.send(.accepted, 2)
            try $0.send(.hungUp, 2)
        }
        var busy = try CallDriver(placing: CallDriver.start(to: [CallDriver.app(1)]))
        busy.happen(.partyClaimed(CallDriver.caller.party))
        expectRefused(.callUnknown) { try busy.send(.joined, from: watch) }
        busy.happen(.partyRefused(CallDriver.app(1).party))
        expectRefused(.onCalling) { try busy.send(.joined, from: watch) }
    }

    @Test("CALL-10: a call has at most legsMax legs; one more app is refused with 10007")
    func legsMax() throws {
        var call = try CallDriver(to: (1...15).map { CallDriver.app($0) })
        func app(_ number: Int) -> CallSender {
            CallSender(CallDriver.app(1).party, AccessID(unchecked: "bob-\(number)"))
        }
        try call.send(.joined, from: app(16))
        expectRefused(.overloaded) { try call.send(.joined, from: app(17)) }
    }

    @Test("CALL-16: with keepConnect the channels stay for a time after a hang-up, and not after another end")
    func keepConnect() throws {
        var call = try CallDriver.accepted(extra: #"{"keepConnect":true}"#)
        try call.send(.hungUp, 1)
        #expect(!call.actions.contains(.releaseChannels))
        call.wait(.milliseconds(59_999))
        #expect(!call.actions.contains(.releaseChannels))
        call.wait(.milliseconds(1))
        #expect(call.actions.contains(.releaseChannels))
        call = try CallDriver.accepted(extra: #"{"keepConnect":true}"#)
        try call.send(.failed(-2532), 1)
        #expect(call.actions.contains(.releaseChannels))
        call = try CallDriver.accepted(extra: #"{"keepConnect":false}"#)
        try call.send(.hungUp, 1)
        #expect(call.actions.contains(.releaseChannels))
    }

    @Test("CALL-16: a call is not forgotten before its channels are released")
    func keptChannels() throws {
        var configuration = CallConfiguration()
        configuration.keepConnectTime = .seconds(90)
        var call = try CallDriver(extra: #"{"keepConnect":true}"#, configuration)
        try call.send(.accepted, 1)
        try call.send(.hungUp, 0)
        try call.send(.confirmed(.ended), 1)
        call.happen(.recordWritten)
        for claim in call.machine.state.claims { call.happen(.partyReleased(claim.party)) }
        call.wait(.seconds(89))
        #expect(call.phase == .ended && !call.actions.contains(.releaseChannels))
        call.wait(.seconds(1))
        #expect(call.phase == .unspecified && call.actions == [.releaseChannels])
    }

    @Test("CALL-8: the end, the record and the parties are repeated until confirmed, and the channels end once")
    func confirmation() throws {
        var call = try CallDriver.accepted()
        try call.send(.hungUp, 0)
        call.wait(.seconds(3))
        #expect(call.actions.count { $0 == .writeRecord } == 2 && call.ends == [1: -2513])
        #expect(!call.actions.contains(.releaseChannels))
        try call.send(.confirmed(.ended), 1)
        call.happen(.recordWritten)
        for claim in call.machine.state.claims { call.happen(.partyReleased(claim.party)) }
        call.wait(.seconds(50))
        #expect(call.actions == [] && call.phase == .ended)
        call.wait(.seconds(10))
        #expect(call.phase == .unspecified)
    }

    @Test("CALL-8: a leg that confirms what it was not notified of is notified nevertheless")
    func falseConfirmation() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        for stage in [CallStage.ended, .accepted, .UNRECOGNIZED(9)] { try call.send(.confirmed(stage), 1) }
        try call.send(.cancelled, 0)
        #expect(call.ends == [1: -2523, 2: -2523])
        call.wait(.seconds(2))
        #expect(call.ends == [1: -2523, 2: -2523], "the end is repeated")
    }

    @Test("CALL-5: a party that is claimed too late is released again, also after the call was forgotten")
    func lateClaim() throws {
        let bell = CallDriver.bell(1).party
        var call = try CallDriver(placing: CallDriver.start())
        call.happen(.partyClaimed(CallDriver.caller.party))
        try call.send(.cancelled, 0)
        for _ in 0..<2 {
            call.happen(.partyClaimed(bell))
            #expect(call.actions == [.release(bell)])
            call.happen(.partyReleased(bell))
        }
        call.happen(.recordWritten)
        call.wait(.seconds(601))
        #expect(call.phase == .unspecified)
        call.happen(.partyClaimed(bell))
        #expect(call.actions == [.release(bell)])
    }

    @Test("CALL-5: a claim is renewed once in a third of its time, and a refused renewal does not end an accepted call")
    func renewal() throws {
        var call = try CallDriver.accepted()
        try call.send(.connected, 0)
        try call.send(.connected, 1)
        for leg in [0, 1] { try call.send(.confirmed(.accepted), leg) }
        call.wait(.milliseconds(19_999))
        #expect(call.actions == [])
        call.wait(.milliseconds(1))
        #expect(call.actions.count == 2)
        for claim in call.machine.state.claims { call.happen(.partyClaimed(claim.party)) }
        call.wait(.milliseconds(19_999))
        #expect(call.actions == [])
        call.wait(.milliseconds(1))
        for claim in call.machine.state.claims { call.happen(.partyRefused(claim.party)) }
        call.wait(.milliseconds(19_999))
        #expect(call.actions == [] && call.phase == .connected)
        // Without an answer it is repeated.
        call.wait(.milliseconds(3001))
        #expect(call.actions.count == 6)
    }

    @Test("CALL-9: a new owner sends again what was not confirmed, and nothing else")
    func restored() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        try call.send(.rang, 1)
        try call.restore()
        #expect(call.actions.contains(.reportRinging) && call.actions.contains(.ring(leg: 2)))
        #expect(!call.actions.contains(.ring(leg: 1)))
        try call.send(.confirmed(.ring), 0)
        try call.send(.accepted, 2)
        try call.restore()
        #expect(call.ends == [1: -2522] && !call.actions.contains(.ring(leg: 2)))
        let grants = call.actions.compactMap { if case .reportAccepted(let leg, _) = $0 { leg } else { nil } }
        #expect(grants == [0, 2])
        try call.send(.confirmed(.accepted), 0)
        try call.send(.confirmed(.accepted), 2)
        try call.send(.confirmed(.ended), 1)
        call.happen(.partyReleased(CallDriver.bell(1).party))
        try call.restore()
        let claimed = call.actions.allSatisfy { if case .claim = $0 { true } else { false } }
        #expect(claimed && call.actions.count == 2, "only the claims are renewed")
    }

    @Test("CALL-9: a client that has restarted is notified again of what it had confirmed, and not of its own end")
    func restartedClient() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        try call.send(.rang, 1)
        try call.send(.sessionStarted, 1, session: 2)
        #expect(call.actions == [.ring(leg: 1)])
        try call.send(.rejected, 1)
        try call.send(.sessionStarted, 1, session: 3)
        #expect(call.actions == [])
    }
}
