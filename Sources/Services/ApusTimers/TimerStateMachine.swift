package import ApusCore
import SwiftProtobuf

/// The timers and alarm clocks of one device (VA-2, docs/timers.md).
///
/// **States.** A timer runs until it is due, and then it rings. It can be paused, which keeps what is left of its
/// duration. Ringing ends when it is stopped or cancelled, or after ``Limits/ringMilliseconds``. A timer that has ended
/// is not kept. An alarm clock has a time of the wall clock, and cannot be paused.
///
/// **Events.** Each change has an event with a version of its own, which grows by one. The entity stores the events
/// with the change, so subscribers receive each of them, in order, whichever nodes fail.
///
/// **After all nodes were down.** A timer that became due meanwhile rings if it is late by less than
/// ``Limits/lateMilliseconds``. Otherwise it ends as missed. A timer that rang when the nodes failed rings until its
/// time is over.
///
/// **Accounts.** The timers belong to the account that the device had when they were set. When the device is handed
/// over without its data, they are dropped (``enter(_:)``).
///
/// Pure value: confined to its owner. Times are Unix milliseconds of the cluster's clock, which may go back.
package struct TimerStateMachine: Sendable {
    /// The bounds of a device's timers.
    package struct Limits: Sendable, Hashable {
        /// Timers of one device that have not ended; one more is refused with 10007.
        package var countMax = 32
        /// How long a timer rings, in milliseconds.
        package var ringMilliseconds: Int64 = 60_000
        /// A timer that is so late does not ring any more, in milliseconds.
        package var lateMilliseconds: Int64 = 600_000

        package init() {}

        /// The longest label, in bytes.
        package static let labelByteCountMax = 64
        /// The longest duration of a timer, in milliseconds: seven days.
        package static let durationMax: Int64 = 604_800_000
        /// The furthest time of an alarm clock from now, in milliseconds: 366 days.
        package static let alarmMax: Int64 = 31_622_400_000
        /// The largest id; the ids begin again at 1 after it.
        package static let idMax: UInt32 = 999
    }

    /// What an input has done.
    package struct Outcome: Sendable, Equatable {
        /// The timers that it concerns, as they are now.
        package var timers: [TimerEntry] = []
        /// What has happened to them, in the order of the versions.
        package var events: [TimerEvent] = []

        package init(timers: [TimerEntry] = [], events: [TimerEvent] = []) {
            (self.timers, self.events) = (timers, events)
        }
    }

    /// What is stored.
    package private(set) var state: TimerState
    private let limits: Limits

    package init(_ state: TimerState, _ limits: Limits) { (self.state, self.limits) = (state, limits) }

    // MARK: - Accounts

    /// A message for the account whose data of the device begins at this time. The timers of an earlier account are
    /// dropped, without events.
    ///
    /// - Parameter since: as `DeviceRecord.dataSince`; 0: the device never changed hands.
    /// - Throws: 8003 if the device has a later account.
    package mutating func enter(_ since: UInt64) throws(ApusError) {
        guard since != 0, since != state.dataSinceMs else { return }
        guard since > state.dataSinceMs else {
            throw ApusError(.illegalRelation, "the device has another account since")
        }
        state.dataSinceMs = since
        guard !state.timers.isEmpty else { return }
        (state.timers, state.lastID) = ([], 0)
        state.version += 1
    }

    // MARK: - Requests

    /// Sets a timer or an alarm clock.
    ///
    /// - Throws: 10007 over ``Limits/countMax``, 21031 if the label, the duration or the time is out of its range.
    package mutating func set(_ message: TimerSet, at now: Int64) throws(ApusError) -> Outcome {
        guard state.timers.count < limits.countMax else {
            throw ApusError(.overloaded, "the device has \(limits.countMax) timers already")
        }
        var timer = try Self.timer(message, at: now)
        timer.id = freeID()
        state.lastID = timer.id
        state.timers.append(timer)
        return Outcome(timers: [timer], events: [note(.started, timer)])
    }

    /// Cancels timers. Nothing is changed if none of them rings, or if there is none.
    ///
    /// - Throws: 8002 if no timer has the id.
    package mutating func cancel(_ selection: TimerSelection) throws(ApusError) -> Outcome {
        switch selection {
        case .id(let id):
            _ = try index(of: id)
            return end { $0.id == id ? .cancelled : nil }
        case .ringing: return end { $0.status == .ringing ? .cancelled : nil }
        case .all: return end { _ in .cancelled }
        }
    }

    /// Silences the timers that ring.
    package mutating func stop() -> Outcome { end { $0.status == .ringing ? .stopped : nil } }

    /// Pauses a timer. Has no effect on one that is paused.
    ///
    /// - Throws: 8002 if no timer has the id, 10030 if it rings or is due, 21031 if it is an alarm clock.
    package mutating func pause(_ id: UInt32, at now: Int64) throws(ApusError) -> Outcome {
        let index = try index(of: id)
        var timer = state.timers[index]
        guard timer.kind == .timer else { throw ApusError(.badParameter, "an alarm clock cannot be paused") }
        guard timer.status != .paused else { return Outcome(timers: [timer]) }
        guard timer.status == .running, timer.dueMs > now else {
            throw ApusError(.versionConflict, "the timer rings already")
        }
        // The clock may have gone back.
        timer.remainingMs = min(timer.dueMs - now, timer.durationMs)
        (timer.status, timer.dueMs) = (.paused, 0)
        return update(index, timer)
    }

    /// Lets a paused timer run. Has no effect on one that runs.
    ///
    /// - Throws: 8002 if no timer has the id, 10030 if it rings.
    package mutating func resume(_ id: UInt32, at now: Int64) throws(ApusError) -> Outcome {
        let index = try index(of: id)
        var timer = state.timers[index]
        guard timer.status != .ringing else { throw ApusError(.versionConflict, "the timer rings already") }
        guard timer.status == .paused else { return Outcome(timers: [timer]) }
        (timer.status, timer.dueMs, timer.remainingMs) = (.running, now + timer.remainingMs, 0)
        return update(index, timer)
    }

    /// The timers: those that ring, the running ones by the time when they are due, and the paused ones.
    package var list: [TimerEntry] { state.timers.sorted { $0.place < $1.place } }

    // MARK: - Time

    /// When ``due(at:)`` has something to do, in Unix milliseconds; nil: never.
    package var nextMilliseconds: Int64? {
        state.timers.compactMap { timer in
            switch timer.status {
            case .running: timer.dueMs
            case .ringing: timer.ringingMs + limits.ringMilliseconds
            case .paused, .ended, .unspecified, .UNRECOGNIZED: nil
            }
        }.min()
    }

    /// Time has passed: timers begin to ring, or are missed, and those that have rung for long enough end.
    package mutating func due(at now: Int64) -> Outcome {
        var outcome = end { [limits] timer in
            switch timer.status {
            case .running where now - timer.dueMs >= limits.lateMilliseconds: .missed
            case .ringing where now - timer.ringingMs >= limits.ringMilliseconds: .unattended
            case .running, .ringing, .paused, .ended, .unspecified, .UNRECOGNIZED: nil
            }
        }
        for index in state.timers.indices.sorted(by: { state.timers[$0].dueMs < state.timers[$1].dueMs }) {
            var timer = state.timers[index]
            switch timer.status {
            case .running where timer.dueMs <= now:
                (timer.status, timer.ringingMs) = (.ringing, now)
                state.timers[index] = timer
                outcome.timers.append(timer)
                outcome.events.append(note(.ringing, timer))
            // The clock has gone back: it rings no longer than it may.
            case .ringing where timer.ringingMs > now: state.timers[index].ringingMs = now
            case .running, .ringing, .paused, .ended, .unspecified, .UNRECOGNIZED: break
            }
        }
        return outcome
    }

    // MARK: - Changes

    /// How a timer ends.
    private enum End {
        case stopped, unattended, cancelled, missed

        var event: TimerEventKind {
            switch self {
            case .stopped, .unattended: .stopped
            case .cancelled: .cancelled
            case .missed: .missed
            }
        }
    }

    /// Ends the timers for which `how` says so, in the order of the list.
    private mutating func end(_ how: (TimerEntry) -> End?) -> Outcome {
        var outcome = Outcome()
        for var timer in list {
            guard let end = how(timer) else { continue }
            state.timers.removeAll { $0.id == timer.id }
            timer.status = .ended
            outcome.timers.append(timer)
            outcome.events.append(note(end.event, timer, unattended: end == .unattended))
        }
        return outcome
    }

    private mutating func update(_ index: Int, _ timer: TimerEntry) -> Outcome {
        state.timers[index] = timer
        return Outcome(timers: [timer], events: [note(.updated, timer)])
    }

    private mutating func note(_ kind: TimerEventKind, _ timer: TimerEntry, unattended: Bool = false) -> TimerEvent {
        let previous = state.version
        state.version += 1
        return .with { [state] in
            ($0.kind, $0.timer, $0.unattended) = (kind, timer, unattended)
            ($0.version, $0.previousVersion, $0.dataSinceMs) = (state.version, previous, state.dataSinceMs)
        }
    }

    private func index(of id: UInt32) throws(ApusError) -> Int {
        guard let index = state.timers.firstIndex(where: { $0.id == id }) else {
            throw ApusError(.targetUnknown, "the device has no timer of this number")
        }
        return index
    }

    /// The next id that no timer has. A number is given again late, so that a request for an ended timer does not
    /// concern a new one.
    private func freeID() -> UInt32 {
        let used = Set(state.timers.map(\.id))
        var id = state.lastID
        repeat { id = id % Limits.idMax + 1 } while used.contains(id)
        return id
    }

    private static func timer(_ message: TimerSet, at now: Int64) throws(ApusError) -> TimerEntry {
        let label = message.label
        guard label.utf8.count <= Limits.labelByteCountMax,
            !label.unicodeScalars.contains(where: { $0.properties.generalCategory == .control })
        else {
            throw ApusError(
                .badParameter, "a label has at most \(Limits.labelByteCountMax) bytes, and no control characters")
        }
        var timer = TimerEntry.with {
            ($0.label, $0.account, $0.createdMs, $0.status) = (label, message.account, now, .running)
        }
        switch message.due {
        case .durationMs(let duration)?:
            guard (1...Limits.durationMax).contains(duration) else {
                throw ApusError(.badParameter, "the duration of a timer is 1 ms to seven days")
            }
            (timer.kind, timer.durationMs, timer.dueMs) = (.timer, duration, now + duration)
        case .dueMs(let due)?:
            guard due > now, due <= now + Limits.alarmMax else {
                throw ApusError(.badParameter, "the time of an alarm clock is later than now, and within 366 days")
            }
            (timer.kind, timer.dueMs) = (.alarm, due)
        case nil: throw ApusError(.badParameter, "a timer has a duration, and an alarm clock a time")
        }
        return timer
    }
}

/// Which timers of a device a request concerns.
package enum TimerSelection: Sendable, Hashable {
    /// The one with this number.
    case id(UInt32)
    /// Those that ring.
    case ringing
    case all
}

extension TimerEntry {
    /// Its place in a list.
    fileprivate var place: (Int, Int64, UInt32) {
        switch status {
        case .ringing: (0, ringingMs, id)
        case .running: (1, dueMs, id)
        case .paused, .ended, .unspecified, .UNRECOGNIZED: (2, remainingMs, id)
        }
    }
}
