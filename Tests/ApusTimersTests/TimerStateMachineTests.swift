import ApusCore
import ApusTimers
import SwiftProtobuf
import Testing

/// A state machine that expectations can change.
private final class Timers {
    private(set) var machine = TimerStateMachine(TimerState(), .init())

    var list: [TimerEntry] { machine.list }
    var state: TimerState { machine.state }
    var nextMilliseconds: Int64? { machine.nextMilliseconds }

    func enter(_ since: UInt64) throws(ApusError) { try machine.enter(since) }
    func due(at now: Int64) -> TimerStateMachine.Outcome { machine.due(at: now) }
    func stop() -> TimerStateMachine.Outcome { machine.stop() }

    func set(_ message: TimerSet, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        try machine.set(message, at: now)
    }

    func cancel(_ selection: TimerSelection) throws(ApusError) -> TimerStateMachine.Outcome {
        try machine.cancel(selection)
    }

    func pause(_ id: UInt32, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        try machine.pause(id, at: now)
    }

    func resume(_ id: UInt32, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        try machine.resume(id, at: now)
    }
}

@Suite("Timers of a device (VA-2)")
struct TimerStateMachineTests {
    private let machine = Timers()
    private let start: Int64 = 1_800_000_000_000

    private func timer(_ milliseconds: Int64, at now: Int64, label: String = "") throws(ApusError) -> UInt32 {
        try machine.set(.with { ($0.durationMs, $0.label) = (milliseconds, label) }, at: now).timers[0].id
    }

    private func alarm(at due: Int64, now: Int64) throws(ApusError) -> UInt32 {
        try machine.set(.with { $0.dueMs = due }, at: now).timers[0].id
    }

    private func fails(_ code: ErrorCode, _ body: () throws(ApusError) -> Void) {
        do throws(ApusError) {
            try body()
            Issue.record("\(code) is expected")
        } catch {
            #expect(error.code == code)
        }
    }

    @Test("A timer rings when it is due, and not before, until it is stopped")
    func rings() throws {
        let id = try timer(10_000, at: start, label: "tea")
        #expect(machine.nextMilliseconds == start + 10_000)
        #expect(machine.due(at: start + 9_999) == .init())
        let rung = machine.due(at: start + 10_000)
        #expect(rung.events.map(\.kind) == [.ringing] && rung.timers[0].label == "tea")
        #expect(machine.list[0].status == .ringing && machine.list[0].ringingMs == start + 10_000)
        #expect(machine.due(at: start + 10_001) == .init(), "it rings once")
        #expect(machine.nextMilliseconds == start + 70_000)
        let stopped = machine.stop()
        #expect(stopped.events.map(\.kind) == [.stopped] && stopped.timers.map(\.id) == [id])
        #expect(stopped.timers[0].status == .ended && !stopped.events[0].unattended)
        #expect(machine.list.isEmpty && machine.nextMilliseconds == nil && machine.stop() == .init())
    }

    @Test("An alarm clock rings at its time, and cannot be paused")
    func alarms() throws {
        let id = try alarm(at: start + 5_000, now: start)
        fails(.badParameter) { () throws(ApusError) in _ = try machine.pause(id, at: start) }
        #expect(machine.due(at: start + 5_000).timers.map(\.id) == [id])
    }

    @Test("Ringing ends by itself after timers.ring_time")
    func unattended() throws {
        _ = try timer(1_000, at: start)
        _ = machine.due(at: start + 1_100)
        #expect(machine.due(at: start + 61_099) == .init())
        let ended = machine.due(at: start + 61_100)
        #expect(ended.events.map(\.kind) == [.stopped] && ended.events[0].unattended)
        #expect(machine.list.isEmpty)
    }

    @Test("After all nodes were down, a timer rings if it is less than timers.late_max late; otherwise it is missed")
    func late() throws {
        let first = try timer(1_000, at: start)
        let second = try timer(2_000, at: start)
        let outcome = machine.due(at: start + 601_500)
        #expect(outcome.events.map(\.kind) == [.missed, .ringing])
        #expect(outcome.timers.map(\.id) == [first, second] && outcome.timers[0].status == .ended)
    }

    @Test("A paused timer does not ring, and keeps what is left of its duration")
    func pauses() throws {
        let id = try timer(10_000, at: start)
        #expect(try machine.pause(id, at: start + 4_000).timers[0].remainingMs == 6_000)
        #expect(machine.nextMilliseconds == nil)
        #expect(machine.due(at: start + 1_000_000_000) == .init())
        let again = try machine.pause(id, at: start + 5_000)
        #expect(again.events.isEmpty && again.timers[0].remainingMs == 6_000)
        let resumed = try machine.resume(id, at: start + 20_000)
        #expect(resumed.events.map(\.kind) == [.updated] && resumed.timers[0].dueMs == start + 26_000)
        #expect(try machine.resume(id, at: start + 21_000).events.isEmpty)
        #expect(machine.due(at: start + 26_000).events.map(\.kind) == [.ringing])
        fails(.versionConflict) { () throws(ApusError) in _ = try machine.pause(id, at: start + 26_001) }
        fails(.versionConflict) { () throws(ApusError) in _ = try machine.resume(id, at: start + 26_001) }
    }

    @Test("A timer that is due, and does not ring yet, can be cancelled and not paused")
    func dueAlready() throws {
        let id = try timer(1_000, at: start)
        fails(.versionConflict) { () throws(ApusError) in _ = try machine.pause(id, at: start + 1_000) }
        #expect(try machine.cancel(.id(id)).events.map(\.kind) == [.cancelled])
        #expect(machine.due(at: start + 1_100) == .init())
    }

    @Test("Timers are cancelled by id, by ringing, and all together")
    func cancels() throws {
        let ids = try (1...4).map { try timer(Int64($0) * 1_000, at: start) }
        #expect(ids == [1, 2, 3, 4])
        #expect(try machine.cancel(.ringing) == .init())
        _ = machine.due(at: start + 1_000)
        #expect(try machine.cancel(.ringing).timers.map(\.id) == [1])
        #expect(try machine.cancel(.id(3)).timers.map(\.id) == [3])
        fails(.targetUnknown) { () throws(ApusError) in _ = try machine.cancel(.id(3)) }
        #expect(try machine.cancel(.all).timers.map(\.id) == [2, 4])
        #expect(machine.list.isEmpty)
    }

    @Test("An id is given again only after all others, and never twice at once")
    func ids() throws {
        let kept = try timer(1_000_000, at: start)
        var last = kept
        for _ in 0..<2_000 {
            let id = try timer(1_000, at: start)
            #expect(id != kept && (1...999).contains(id) && id == (last % 999 + 1 == kept ? kept + 1 : last % 999 + 1))
            last = id
            _ = try machine.cancel(.id(id))
        }
    }

    @Test("What is out of range is refused: durations, times, labels, and one timer too many")
    func bounds() throws {
        for duration in [Int64.min, -1, 0, 604_800_001, .max] {
            fails(.badParameter) { () throws(ApusError) in _ = try timer(duration, at: start) }
        }
        for due in [Int64.min, 0, start - 1, start, start + 31_622_400_001, .max] {
            fails(.badParameter) { () throws(ApusError) in _ = try alarm(at: due, now: start) }
        }
        fails(.badParameter) { () throws(ApusError) in _ = try machine.set(TimerSet(), at: start) }
        for label in [String(repeating: "x", count: 65), "a\nb", String(repeating: "茶", count: 22)] {
            fails(.badParameter) { () throws(ApusError) in _ = try timer(1, at: start, label: label) }
        }
        _ = try timer(604_800_000, at: start, label: String(repeating: "x", count: 64))
        _ = try alarm(at: start + 31_622_400_000, now: start)
        for _ in 0..<30 { _ = try timer(1_000, at: start) }
        fails(.overloaded) { () throws(ApusError) in _ = try timer(1_000, at: start) }
        #expect(machine.list.count == 32 && machine.state.version == 32)
    }

    @Test("The timers of a former account are dropped without an event, and its messages are refused")
    func accounts() throws {
        try machine.enter(0)
        _ = try timer(1_000, at: start)
        let before = machine.state.version
        try machine.enter(7)
        #expect(machine.list.isEmpty && machine.nextMilliseconds == nil && machine.due(at: start + 1_000) == .init())
        fails(.illegalRelation) { () throws(ApusError) in try machine.enter(6) }
        try machine.enter(7)
        let event = try machine.set(.with { $0.durationMs = 1_000 }, at: start).events[0]
        #expect(event.version > before + 1 && event.dataSinceMs == 7 && event.previousVersion == event.version - 1)
        #expect(event.timer.id == 1)
    }

    @Test("A clock that goes back delays no timer by more than its duration, and no ringing by more than its time")
    func clockBack() throws {
        let id = try timer(10_000, at: start)
        #expect(try machine.pause(id, at: start - 100_000).timers[0].remainingMs == 10_000)
        _ = try machine.resume(id, at: start)
        _ = machine.due(at: start + 10_000)
        _ = machine.due(at: start - 100_000)
        #expect(machine.nextMilliseconds == start - 40_000)
    }

    @Test("The list has ringing timers first, then running ones by their times, and paused ones")
    func order() throws {
        let late = try timer(90_000, at: start)
        let paused = try timer(80_000, at: start)
        let soon = try timer(20_000, at: start)
        let ringing = try timer(1_000, at: start)
        _ = try machine.pause(paused, at: start)
        _ = machine.due(at: start + 1_000)
        #expect(machine.list.map(\.id) == [ringing, soon, late, paused])
    }
}
