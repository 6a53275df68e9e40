import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("The rules of a call (CALL-3 to CALL-9, CALL-15, CALL-16)")
struct CallRuleTests {
    private static let types: [CallType] = [.oneToOne, .oneToMany, .oneToManySpecial]

    // MARK: The way of a call

    @Test("CALL-3, CALL-7: a call is placed, rings, is accepted, connected and hung up, and each leg learns each stage")
    func wholeCall() throws {
        var call = try CallDriver(placing: CallDriver.start(timeout: .seconds(30)))
        let (alice, bell) = (CallDriver.caller.party, CallDriver.bell(1).party)
        guard case .claim(alice, let claim) = call.actions.first else { throw ApusError(.internalFailure) }
        #expect(claim.isCaller && claim.peer == bell && claim.call == "call-1" && call.actions.count == 1)
        call.happen(.partyClaimed(alice))
        guard case .claim(bell, let called) = call.actions.first else { throw ApusError(.internalFailure) }
        #expect(!called.isCaller && called.peer == alice && call.phase == .calling)
        call.happen(.partyClaimed(bell))
        #expect(call.actions == [.ring(leg: 1)])

        #expect(try call.send(.rang, 1).flags.answered)
        #expect(call.actions == [.reportRinging] && call.phase == .ringing)
        #expect(call.machine.view(0).flags.answered && !call.machine.view(0).flags.accepted)
        #expect(try call.send(.accepted, 1).flags.accepted)
        #expect(call.actions == [.reportAccepted(leg: 0, peer: 1), .reportAccepted(leg: 1, peer: 0)])
        try call.send(.connected, 0)
        #expect(call.phase == .accepted && !call.machine.view(0).flags.connected)
        #expect(try call.send(.connected, 1).flags.connected)
        #expect(call.phase == .connected && call.machine.view(0).flags.connected && call.actions == [])

        #expect(try call.send(.hungUp, 0).end?.number == 0)
        #expect(call.ends == [1: -2513] && call.phase == .ended)
        #expect(call.actions.contains(.release(alice)) && call.actions.contains(.release(bell)))
        #expect(call.actions.suffix(2) == [.releaseChannels, .writeRecord])
    }

    @Test("CALL-3: the flags of both sides only change from false to true, and outgoing is the caller's")
    func flags() throws {
        var call = try CallDriver()
        var seen: [CallFlags] = [call.machine.view(0).flags, call.machine.view(1).flags]
        for (event, leg) in [(CallEvent.rang, 1), (.accepted, 1), (.connected, 0), (.connected, 1), (.hungUp, 1)] {
            try call.send(event, leg)
            for index in seen.indices {
                let flags = call.machine.view(index).flags
                #expect(flags.includes(seen[index]) && flags.outgoing == (index == 0))
                seen[index] = flags
            }
        }
        #expect(seen.allSatisfy { $0.answered && $0.accepted && $0.connected && $0.end })
    }

    // MARK: Types

    /// All orders in which five parties answer, each with an accept or a reject.
    @Test("CALL-4: the first accept wins and all others receive -2522, in all orders of five parties", arguments: types)
    func orders(type: CallType) throws {
        let count = type == .oneToOne ? 1 : 5
        var checked = 0
        for answers in 0..<(1 << count) {
            for order in Self.permutations(Array(1...count)) {
                var call = try CallDriver(type, to: CallDriver.bells(count))
                for leg in order { try call.send(answers >> (leg - 1) & 1 == 1 ? .accepted : .rejected, leg) }
                #expect(call.numbers == Self.expected(type, order) { answers >> ($0 - 1) & 1 == 1 })
                checked += 1
            }
        }
        #expect(checked == (count == 1 ? 2 : 3840))
    }

    /// The numbers of the caller and of the legs, by the words of the contract.
    private static func expected(_ type: CallType, _ order: [Int], _ accepts: (Int) -> Bool) -> [Int32?] {
        let winner = order.first(where: accepts)
        let rejecting = type == .oneToManySpecial ? nil : order.first { !accepts($0) }
        let isRejected =
            rejecting.map { leg in
                winner.map { order.firstIndex(of: leg) ?? 0 < order.firstIndex(of: $0) ?? 0 } ?? true
            } ?? false
        var numbers = [Int32?](repeating: nil, count: order.count + 1)
        if isRejected {
            numbers[0] = -2510
            for leg in order { numbers[leg] = leg == rejecting ? 0 : -2521 }
            return numbers
        }
        guard let winner else {
            return [-2510] + order.map { _ in 0 }
        }
        for (place, leg) in order.enumerated() where leg != winner {
            let wasBefore = place < order.firstIndex(of: winner) ?? 0
            numbers[leg] = wasBefore ? 0 : -2522
        }
        return numbers
    }

    private static func permutations(_ items: [Int]) -> [[Int]] {
        guard items.count > 1 else { return [items] }
        return items.flatMap { first in permutations(items.filter { $0 != first }).map { [first] + $0 } }
    }

    @Test("CALL-4: in a call of type 3 a reject at one app of an account ends the ringing of its other apps with -2521")
    func rejectOfAnAccount() throws {
        let targets = [CallDriver.app(1), CallDriver.app(2), CallDriver.bell(1)]
        var call = try CallDriver(.oneToManySpecial, to: targets)
        try call.send(.rejected, 1)
        #expect(call.numbers == [nil, 0, -2521, nil] && call.ends == [2: -2521])
        #expect(call.actions.contains(.release(targets[0].party)))
        try call.send(.accepted, 3)
        #expect(call.numbers == [nil, 0, -2521, nil] && call.phase == .accepted)
    }

    @Test("CALL-4: one app of an account that accepts a call of type 1 ends the others with -2522, a reject with -2521")
    func oneAccount() throws {
        let targets = [CallDriver.app(1), CallDriver.app(2)]
        var call = try CallDriver(to: targets)
        try call.send(.accepted, 2)
        #expect(call.numbers == [nil, -2522, nil] && call.ends == [1: -2522])
        #expect(!call.actions.contains(.release(targets[0].party)), "the account stays on the call")
        call = try CallDriver(to: targets)
        try call.send(.rejected, 2)
        #expect(call.numbers == [-2510, -2521, 0])
    }

    // MARK: Busy

    @Test("CALL-5: a caller on another call receives -2520, and nobody is called")
    func busyCaller() throws {
        var call = try CallDriver(placing: CallDriver.start())
        call.happen(.partyRefused(CallDriver.caller.party))
        #expect(call.number(0) == -2520 && call.ends == [0: -2520])
        #expect(!call.actions.contains { if case .ring = $0 { true } else { false } })
        expectRefused(.callUnknown) { try call.send(.accepted, 1) }
    }

    @Test("CALL-5: a busy party receives -2520 and does not ring; the caller receives -2511 when all are busy")
    func busyParties() throws {
        var call = try CallDriver(placing: CallDriver.start(.oneToMany, to: CallDriver.bells(2)))
        call.happen(.partyClaimed(CallDriver.caller.party))
        call.happen(.partyRefused(CallDriver.bell(1).party))
        #expect(call.actions.contains(.stopRinging(leg: 1, CallLegEnd(.busy, -2520))) && call.number(0) == nil)
        call.happen(.partyClaimed(CallDriver.bell(2).party))
        #expect(call.actions == [.ring(leg: 2)])
        #expect(try call.send(.wasBusy, 2).end?.number == -2520)
        #expect(call.numbers == [-2511, -2520, -2520] && call.ends == [0: -2511])
    }

    @Test("CALL-5: a party that refused one claim may have accepted its repetition, and is released")
    func refusedAndAccepted() throws {
        let bell = CallDriver.bell(1).party
        for repetitions in 0...2 {
            var call = try CallDriver(placing: CallDriver.start())
            call.happen(.partyClaimed(CallDriver.caller.party))
            for _ in 0..<repetitions {
                let next = try #require(call.machine.nextMs)
                call.wait(.milliseconds(next - call.now))
                #expect(call.actions.contains { if case .claim(bell, _) = $0 { true } else { false } })
            }
            call.happen(.partyRefused(bell))
            #expect(call.phase == .ended && call.actions.contains(.release(bell)) == (repetitions > 0))
        }
    }

    // MARK: Requests

    @Test("CALL-6: bad parameters are refused with -2500")
    func parameters() throws {
        func refuse(
            _ type: CallType = .oneToOne, to targets: [CallTarget] = CallDriver.bells(1), timeout: Duration? = nil
        ) {
            expectRefused(.callParametersInvalid) {
                _ = try CallDriver(placing: CallDriver.start(type, to: targets, timeout: timeout))
            }
        }
        refuse(.unspecified)
        refuse(.UNRECOGNIZED(4))
        refuse(to: [])
        refuse(.oneToMany, to: CallDriver.bells(17))
        refuse(to: CallDriver.bells(2))
        refuse(.oneToMany, to: [CallDriver.bell(1), CallDriver.bell(1)])
        refuse(to: [CallTarget(CallDriver.caller.party, AccessID(unchecked: "alice-tablet"))])
        refuse(to: [CallTarget(CallParty(), AccessID(unchecked: "nobody"))])
        refuse(timeout: .milliseconds(4999))
        refuse(timeout: .milliseconds(120_001))
        refuse(timeout: .seconds(-30))
        _ = try CallDriver(placing: CallDriver.start(timeout: .seconds(5)))
        _ = try CallDriver(placing: CallDriver.start(.oneToMany, to: CallDriver.bells(16), timeout: .seconds(120)))
    }

    @Test("CALL-6: a call that nobody accepts ends after its time-out with -2512 for the caller and -2530 for the legs")
    func timeout() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(3))
        try call.send(.rang, 2)
        call.wait(.milliseconds(29_999))
        #expect(call.phase == .ringing)
        call.wait(.milliseconds(1))
        #expect(call.numbers == [-2512, -2530, -2530, -2530])
        // An accept that comes too late changes nothing, and its answer has the reason.
        #expect(try call.send(.accepted, 2).end?.number == -2530)
        #expect(call.numbers == [-2512, -2530, -2530, -2530])
    }

    @Test("CALL-6: a call whose caller's party never answers ends after its time-out, and nobody is called")
    func placingTimeout() throws {
        var call = try CallDriver(placing: CallDriver.start(timeout: .seconds(10)))
        call.wait(.seconds(10))
        #expect(call.number(0) == -2512 && call.ends == [0: -2512])
    }

    @Test("CALL-6: a repeated start has no further effect, and another start with the id is refused with -2500")
    func repeatedStart() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        let state = call.machine.state
        var actions: [CallAction] = []
        let start = try CallDriver.start(.oneToMany, to: CallDriver.bells(2))
        #expect(try call.machine.start(start, at: call.now + 500, &actions).leg == 0)
        #expect(call.machine.state == state && actions == [])
        let others = try [
            CallDriver.start(.oneToManySpecial, to: CallDriver.bells(2)),
            CallDriver.start(.oneToMany, to: CallDriver.bells(3)),
            CallDriver.start(.oneToMany, to: CallDriver.bells(2), timeout: .seconds(31)),
            CallDriver.start(.oneToMany, to: CallDriver.bells(2), extra: "{}"),
        ]
        for other in others {
            expectRefused(.callParametersInvalid) { _ = try call.machine.start(other, at: call.now, &actions) }
        }
    }

    @Test("CALL-8: events of parties that are no leg are refused with 8003, and reveal nothing")
    func foreigners() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2))
        let outsiders = [
            CallSender(.account(AccountID(unchecked: "mallory")), AccessID(unchecked: "mallory-phone")),
            // The endpoint of a leg, on behalf of another account.
            CallSender(.account(AccountID(unchecked: "mallory")), CallDriver.caller.endpoint),
            // Another endpoint of the caller's account.
            CallSender(CallDriver.caller.party, AccessID(unchecked: "alice-tablet")),
        ]
        let events: [CallEvent] = [
            .joined, .rang, .accepted, .rejected, .wasBusy, .cancelled, .hungUp, .connected, .failed(-2570),
            .confirmed(.ended), .sessionStarted, .sessionEnded,
        ]
        let before = call.machine.state
        for sender in outsiders {
            for event in events { expectRefused(.illegalRelation) { try call.send(event, from: sender) } }
        }
        #expect(call.machine.state == before)
        try call.send(.cancelled, 0)
        for event in events { expectRefused(.illegalRelation) { try call.send(event, from: outsiders[0]) } }
    }

    @Test("CALL-15: events of a call that does not exist are refused with -2508")
    func unknown() throws {
        var actions: [CallAction] = []
        var machine = CallStateMachine()
        expectRefused(.callUnknown) { _ = try machine.handle(.accepted, from: CallDriver.caller, at: 0, &actions) }
        var call = try CallDriver()
        try call.send(.cancelled, 0)
        call.happen(.recordWritten)
        call.wait(.seconds(601))
        #expect(call.phase == .unspecified && call.machine.nextMs == nil && call.machine.state == CallState())
        expectRefused(.callUnknown) { try call.send(.hungUp, 0) }
    }

    @Test("CALL-8: an event of the other side is refused with -2500")
    func wrongSide() throws {
        var call = try CallDriver()
        let state = call.machine.state
        for event in [CallEvent.rang, .accepted, .rejected, .wasBusy, .joined] {
            expectRefused(.callParametersInvalid) { try call.send(event, 0) }
        }
        expectRefused(.callParametersInvalid) { try call.send(.cancelled, 1) }
        for number: Int32 in [0, 1, -2500, -2513, .min] {
            expectRefused(.callParametersInvalid) { try call.send(.failed(number), 1) }
        }
        #expect(call.machine.state == state)
    }
}

extension CallFlags {
    /// No flag of the other one is missing.
    func includes(_ other: CallFlags) -> Bool {
        let pairs = [
            (outgoing, other.outgoing), (answered, other.answered), (accepted, other.accepted),
            (connected, other.connected), (end, other.end),
        ]
        return pairs.allSatisfy { $0.0 || !$0.1 }
    }
}
