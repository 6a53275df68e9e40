import ApusCore
import ApusTimers
import SwiftProtobuf
import Testing

/// A fault of an implementation, which the walk must find.
private enum Mutant: CaseIterable {
    case ringsTwice, forgetsPaused, ringsForFormerAccount, ringsEarly, ringsTooLate, ringsForEver, reusesIDs
    case losesEvent, stopsAll, resumesFromStart
}

/// The state machine, or one with a fault.
private struct Candidate {
    private var machine = TimerStateMachine(TimerState(), .init())
    private let mutant: Mutant?
    private var rung: [TimerEvent] = []

    init(_ mutant: Mutant?) { self.mutant = mutant }

    var list: [TimerEntry] { machine.list }
    var next: Int64? { machine.nextMilliseconds }

    /// All nodes end, and the record is read again.
    mutating func restart() throws {
        var state = try TimerState(serializedBytes: machine.state.serializedBytes() as [UInt8])
        if mutant == .forgetsPaused { state.timers.removeAll { $0.status == .paused } }
        machine = TimerStateMachine(state, .init())
    }

    mutating func enter(_ since: UInt64) throws(ApusError) {
        guard mutant != .ringsForFormerAccount else { return }
        try machine.enter(since)
    }

    mutating func set(_ message: TimerSet, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        var outcome = try machine.set(message, at: now)
        guard mutant == .reusesIDs else { return outcome }
        for index in outcome.timers.indices { outcome.timers[index].id = 1 }
        for index in outcome.events.indices { outcome.events[index].timer.id = 1 }
        return outcome
    }

    mutating func cancel(_ selection: TimerSelection) throws(ApusError) -> TimerStateMachine.Outcome {
        var outcome = try machine.cancel(selection)
        if mutant == .losesEvent { outcome.events = outcome.events.dropLast() }
        return outcome
    }

    mutating func pause(_ id: UInt32, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        try machine.pause(id, at: now)
    }

    mutating func resume(_ id: UInt32, at now: Int64) throws(ApusError) -> TimerStateMachine.Outcome {
        guard mutant == .resumesFromStart, let timer = list.first(where: { $0.id == id }) else {
            return try machine.resume(id, at: now)
        }
        return try machine.resume(id, at: now + timer.durationMs - timer.remainingMs)
    }

    mutating func stop() throws(ApusError) -> TimerStateMachine.Outcome {
        mutant == .stopsAll ? try machine.cancel(.all) : machine.stop()
    }

    mutating func due(at now: Int64) -> TimerStateMachine.Outcome {
        var outcome = machine.due(at: mutant == .ringsEarly ? now + 400 : now)
        switch mutant {
        case .ringsTwice:
            let again = rung
            rung = outcome.events.filter { $0.kind == .ringing }
            outcome.events += again
        case .ringsTooLate:
            for index in outcome.events.indices where outcome.events[index].kind == .missed {
                outcome.events[index].kind = .ringing
            }
        case .ringsForEver: outcome.events.removeAll { $0.unattended }
        default: break
        }
        return outcome
    }
}

/// What the timers of a device must do, written in another way: by what was heard, and when.
private struct Model {
    struct Timer {
        var isAlarm: Bool
        var duration: Int64
        /// When it is due; nil while it is paused.
        var due: Int64?
        var left: Int64 = 0
        var ringsSince: Int64?
    }

    struct Wrong: Error, CustomStringConvertible {
        let description: String
        init(_ description: String) { self.description = description }
    }

    var timers: [UInt32: Timer] = [:]
    var version: UInt64 = 0
    var since: UInt64 = 0

    private func require(_ condition: Bool, _ text: @autoclosure () -> String) throws {
        guard condition else { throw Wrong(text()) }
    }

    mutating func started(_ outcome: TimerStateMachine.Outcome, _ message: TimerSet, at now: Int64) throws {
        try require(outcome.events.map(\.kind) == [.started], "a timer that is set has one event: \(outcome)")
        let id = outcome.timers[0].id
        try require(timers[id] == nil, "the id \(id) is in use")
        timers[id] = Timer(
            isAlarm: message.dueMs > 0, duration: message.durationMs,
            due: message.dueMs > 0 ? message.dueMs : now + message.durationMs)
        try hear(outcome.events)
    }

    mutating func paused(_ id: UInt32, _ outcome: TimerStateMachine.Outcome, at now: Int64) throws {
        guard var timer = timers[id], !timer.isAlarm, timer.ringsSince == nil else {
            throw Wrong("\(id) cannot be paused")
        }
        if let due = timer.due { (timer.left, timer.due) = (due - now, nil) }
        timers[id] = timer
        try hear(outcome.events)
    }

    mutating func resumed(_ id: UInt32, _ outcome: TimerStateMachine.Outcome, at now: Int64) throws {
        guard var timer = timers[id], timer.ringsSince == nil else { throw Wrong("\(id) cannot be resumed") }
        if timer.due == nil { timer.due = now + timer.left }
        timers[id] = timer
        try hear(outcome.events)
    }

    mutating func ended(
        _ kind: TimerEventKind, _ outcome: TimerStateMachine.Outcome, where isEnded: (UInt32, Timer) -> Bool
    ) throws {
        let wanted = timers.filter { isEnded($0.key, $0.value) }.keys.sorted()
        try require(outcome.timers.map(\.id).sorted() == wanted, "\(wanted) end, not \(outcome.timers)")
        try require(outcome.events.allSatisfy { $0.kind == kind }, "\(kind) is the event: \(outcome.events)")
        try require(outcome.events.count == wanted.count, "each timer that ends has an event")
        for id in wanted { timers[id] = nil }
        try hear(outcome.events)
    }

    mutating func passed(_ outcome: TimerStateMachine.Outcome, at now: Int64) throws {
        var wanted: [String] = []
        for (id, timer) in timers {
            if let since = timer.ringsSince {
                guard now - since >= 60_000 else { continue }
                wanted.append("stopped \(id)")
                timers[id] = nil
            } else if let due = timer.due, due <= now {
                let isMissed = now - due >= 600_000
                wanted.append("\(isMissed ? "missed" : "ringing") \(id)")
                timers[id]?.ringsSince = now
                if isMissed { timers[id] = nil }
            }
        }
        let heard = outcome.events.map { "\($0.kind) \($0.timer.id)" }
        try require(heard.sorted() == wanted.sorted(), "\(wanted.sorted()) is due, not \(heard)")
        try hear(outcome.events)
    }

    mutating func entered(_ since: UInt64) {
        self.since = since
        if !timers.isEmpty { version += 1 }
        timers = [:]
    }

    /// The versions have no gaps, and each event is of the account of the time.
    private mutating func hear(_ events: [TimerEvent]) throws {
        for event in events {
            try require(
                event.version == version + 1 && event.previousVersion == version, "\(event) follows \(version)")
            try require(event.dataSinceMs == since, "\(event) is of another account")
            version = event.version
        }
    }

    func check(_ candidate: Candidate) throws {
        let listed = candidate.list
        try require(listed.map(\.id).sorted() == timers.keys.sorted(), "\(listed) is listed, not \(timers)")
        for entry in listed {
            guard let timer = timers[entry.id] else { continue }
            let status: TimerStatus = timer.ringsSince != nil ? .ringing : timer.due == nil ? .paused : .running
            try require(entry.status == status, "\(entry) is \(status)")
            try require(entry.dueMs == timer.due ?? 0, "\(entry) is due at \(timer.due ?? 0)")
        }
        let next = timers.values.compactMap { timer in timer.ringsSince.map { $0 + 60_000 } ?? timer.due }.min()
        try require(candidate.next == next, "the next time is \(next ?? 0), not \(candidate.next ?? 0)")
    }
}

/// One run of random inputs, by its seed.
private struct Walk {
    private var random: SeededRandom
    private var candidate: Candidate
    private var model = Model()
    private var now: Int64 = 1_800_000_000_000

    init(seed: UInt64, _ mutant: Mutant?) {
        random = SeededRandom(seed: seed)
        candidate = Candidate(mutant)
    }

    /// What is wrong; nil: nothing.
    mutating func run(stepCount: Int) -> String? {
        for step in 0..<stepCount {
            do {
                try self.step()
                try model.check(candidate)
            } catch {
                return "step \(step): \(error)"
            }
        }
        return nil
    }

    private mutating func step() throws {
        let id = model.timers.keys.sorted().randomElement(using: &random) ?? 1
        switch Int.random(in: 0..<20, using: &random) {
        case 0..<5: try set()
        case 5:
            let outcome = try attempt { (walk) throws(ApusError) in try walk.candidate.cancel(.id(id)) }
            if let outcome { try model.ended(.cancelled, outcome) { key, _ in key == id } }
        case 6: try model.ended(.cancelled, try candidate.cancel(.ringing)) { _, timer in timer.ringsSince != nil }
        case 7 where Bool.random(using: &random):
            try model.ended(.cancelled, try candidate.cancel(.all)) { _, _ in true }
        case 8, 9:
            let at = now
            let outcome = try attempt { (walk) throws(ApusError) in try walk.candidate.pause(id, at: at) }
            if let outcome { try model.paused(id, outcome, at: at) }
        case 10, 11:
            let at = now
            let outcome = try attempt { (walk) throws(ApusError) in try walk.candidate.resume(id, at: at) }
            if let outcome { try model.resumed(id, outcome, at: at) }
        case 12: try model.ended(.stopped, try candidate.stop()) { _, timer in timer.ringsSince != nil }
        case 13: try candidate.restart()
        case 14 where Int.random(in: 0..<4, using: &random) == 0:
            try candidate.enter(model.since + 1)
            model.entered(model.since + 1)
        case 15:
            // All nodes are down for a while.
            try candidate.restart()
            now += Int64.random(in: 0..<1_200_000, using: &random)
            try model.passed(candidate.due(at: now), at: now)
        default:
            // Mostly to the time of the reminder, or until shortly before it.
            let next = (candidate.next ?? now) - now
            now += max(0, next + Int64.random(in: -500..<200, using: &random))
            try model.passed(candidate.due(at: now), at: now)
        }
    }

    private mutating func set() throws {
        let message = TimerSet.with {
            let time = Int64.random(in: 1..<300_000, using: &random)
            if Bool.random(using: &random) { $0.dueMs = now + time } else { $0.durationMs = time }
        }
        let at = now
        let outcome = try attempt { (walk) throws(ApusError) in try walk.candidate.set(message, at: at) }
        if let outcome { try model.started(outcome, message, at: at) }
    }

    /// Nil if it is refused. A refusal changes nothing.
    private mutating func attempt(
        _ body: (inout Self) throws(ApusError) -> TimerStateMachine.Outcome
    ) throws -> TimerStateMachine.Outcome? {
        do throws(ApusError) {
            return try body(&self)
        } catch {
            let expected: Set<ErrorCode> = [.overloaded, .targetUnknown, .versionConflict, .badParameter]
            guard expected.contains(error.code) else { throw error }
            return nil
        }
    }
}

@Suite("Timers through random inputs (VA-2)")
struct TimerWalkTests {
    @Test("Each timer rings once and in time, is missed or ends, and each change has one event", arguments: 0..<40)
    func walk(seed: UInt64) {
        var walk = Walk(seed: seed, nil)
        let wrong = walk.run(stepCount: 2_500)
        #expect(wrong == nil)
    }

    @Test("The walk finds each fault", arguments: Mutant.allCases)
    fileprivate func caught(mutant: Mutant) {
        let found = (UInt64(0)..<40).lazy.compactMap { seed -> String? in
            var walk = Walk(seed: seed, mutant)
            return walk.run(stepCount: 2_500)
        }.first
        #expect(found != nil)
    }
}
