import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("States from elsewhere (CALL-8)")
struct CallRestoringTests {
    @Test("A state survives its way to a new owner, in every phase")
    func roundTrip() throws {
        var call = try CallDriver(.oneToMany, to: CallDriver.bells(2), extra: #"{"keepConnect":true}"#)
        for (event, leg) in [(CallEvent.rang, 1), (.accepted, 1), (.connected, 0), (.connected, 1), (.hungUp, 1)] {
            let state = call.machine.state
            let bytes: Data = try state.serializedBytes()
            #expect(try CallStateMachine(restoring: CallState(serializedBytes: bytes)).state == state)
            try call.send(event, leg)
        }
        #expect(try CallStateMachine(restoring: CallState()).nextMs == nil)
    }

    @Test("A state of sixteen legs with the longest extra is small")
    func size() throws {
        let extra = #"{"a":""# + String(repeating: "x", count: 4088) + #""}"#
        let call = try CallDriver(.oneToMany, to: CallDriver.bells(16), extra: extra)
        let bytes: Data = try call.machine.state.serializedBytes()
        #expect(bytes.count < 4096 + 1600)
        let small: Data = try CallDriver.accepted(extra: #"{"bizType":"screen_ipc"}"#).machine.state.serializedBytes()
        #expect(small.count < 350)
    }

    @Test("CALL-8: a state that is not one of a call is refused with 10001")
    func refused() throws {
        let accepted = try CallDriver.accepted().machine.state
        let changes: [(inout CallState) -> Void] = [
            { $0.phase = .unspecified }, { $0.phase = .UNRECOGNIZED(9) }, { $0.type = .unspecified }, { $0.id = "" },
            { $0.winner = 0 }, { $0.winner = 2 }, { $0.winner = .max }, { $0.legs = [] }, { $0.legs.removeLast() },
            { $0.claims = [] }, { $0.claims.removeLast() }, { $0.legs[1].claim = 2 }, { $0.legs[1].claim = .max },
            { $0.legs[0].claim = 1 }, { $0.legs[1].claim = 0 }, { $0.legs[1].status = .UNRECOGNIZED(5) },
            { $0.legs[1].status = .ringing }, { $0.legs[0].status = .ended }, { $0.legs[1].stage = .ended },
            { $0.legs[1].confirmed = .ended }, { $0.legs[1].endpoint = "a b" },
            { $0.claims[1].party.kind = .unspecified },
            { $0.claims[1].status = .UNRECOGNIZED(7) }, { $0.end.leg = 9 }, { $0.end.reason = .UNRECOGNIZED(99) },
            { $0.extra = Data(count: 65_537) }, { $0.phase = .ended }, { $0.phase = .ringing },
            { $0.writeRecord.status = .UNRECOGNIZED(3) },
            { state in state.legs += Array(repeating: state.legs[1], count: 300) },
        ]
        for (index, change) in changes.enumerated() {
            var state = accepted
            change(&state)
            #expect(throws: ApusError(.malformed), "change \(index)") { try CallStateMachine(restoring: state) }
        }
        expectRefused(.malformed) {
            _ = try PartyStateMachine(restoring: .with { $0.claim.call = "a b" })
        }
    }

    /// Valid states with random numbers in them, so that they pass the check, and random bytes.
    @Test("CALL-8: random states are refused, or go on without a crash until they end", arguments: 0..<8)
    func random(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        var restoredCount = 0
        for round in 0..<3000 {
            let state = round % 4 == 0 ? Self.garbage(&random) : try Self.damaged(&random)
            guard var machine = try? CallStateMachine(restoring: state) else { continue }
            restoredCount += 1
            Self.drive(&machine, &random)
            #expect(machine.state.legs.count <= 20)
        }
        #expect(restoredCount > 200)
    }

    private static func drive(_ machine: inout CallStateMachine, _ random: inout SeededRandom) {
        let times: [Int64] = [.min, -1, 0, 1, 1_000_000, 1_030_000, .max]
        var actions: [CallAction] = []
        for _ in 0..<12 {
            let now = times[Int(random.next() % 7)]
            let events: [CallEvent] = [
                .joined, .rang, .accepted, .rejected, .wasBusy, .cancelled, .hungUp, .connected, .failed(-2570),
                .confirmed(.UNRECOGNIZED(7)), .confirmed(.ended), .sessionStarted, .sessionEnded,
            ]
            let sender =
                [CallDriver.caller]
                + CallDriver.bells(2).map { CallSender($0.party, $0.endpoint, session: random.next()) }
            let event = events[Int(random.next() % UInt64(events.count))]
            _ = try? machine.handle(event, from: sender[Int(random.next() % 3)], at: now, &actions)
            let party = sender[Int(random.next() % 3)].party
            let clusterEvents: [CallClusterEvent] = [
                .partyClaimed(party), .partyRefused(party), .partyReleased(party),
                .partyCrossed(party), .recordWritten, .messageStored, .messageFull, .restored, .timeAdvanced,
            ]
            machine.handle(clusterEvents[Int(random.next() % 9)], at: now, &actions)
            _ = machine.nextMs
        }
        #expect(actions.count < 2000)
    }

    /// The state of a real call with some bytes changed.
    private static func damaged(_ random: inout SeededRandom) throws -> CallState {
        var call = try CallDriver(.oneToManySpecial, to: CallDriver.bells(2))
        let events: [(CallEvent, Int)] = [(.rang, 1), (.accepted, 1), (.connected, 0), (.connected, 1), (.hungUp, 0)]
        for (event, leg) in events.prefix(Int(random.next() % 6)) { try call.send(event, leg) }
        var state = call.machine.state
        let numbers: [Int64] = [.min, -1, 0, 1, .max, Int64(bitPattern: random.next())]
        func number(_ random: inout SeededRandom) -> Int64 { numbers[Int(random.next() % 6)] }
        state.ringEndMs = number(&random)
        state.acceptedMs = number(&random)
        state.endedMs = number(&random)
        let leg = Int(random.next() % 3)
        state.legs[leg].sentMs = number(&random)
        state.legs[leg].lostMs = number(&random)
        state.legs[leg].sends = UInt32(truncatingIfNeeded: number(&random))
        state.legs[leg].session = UInt64(bitPattern: number(&random))
        state.claims[leg].sentMs = number(&random)
        state.claims[leg].untilMs = number(&random)
        state.claims[leg].sends = UInt32(truncatingIfNeeded: number(&random))
        state.writeRecord.sentMs = number(&random)
        guard random.next() % 2 == 0 else { return state }
        var bytes: Data = try state.serializedBytes()
        for _ in 0...(random.next() % 3) {
            bytes[Int(random.next() % UInt64(bytes.count))] = UInt8(truncatingIfNeeded: random.next())
        }
        return (try? CallState(serializedBytes: bytes)) ?? state
    }

    private static func garbage(_ random: inout SeededRandom) -> CallState {
        let bytes = Data((0..<Int(random.next() % 60)).map { _ in UInt8(truncatingIfNeeded: random.next()) })
        return (try? CallState(serializedBytes: bytes)) ?? CallState()
    }
}
