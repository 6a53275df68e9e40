import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

// The timers of a device at the owner of the device's shard. Their state is a record with one reminder for the next due
// time, so timers survive the failure of all nodes. Each event leaves by way of the outbox, which is stored with the
// change.

extension EntityKind {
    static let timers = Self(rawValue: 17)
}

extension TimerState: EntityContentMessage {}

extension TimerSet: EntityMessage {
    typealias Reply = TimerAnswer
    static var method: UInt16 { 0x0171 }
}

extension TimerList: EntityMessage {
    typealias Reply = TimerAnswer
    static var method: UInt16 { 0x0172 }
    static var isIdempotent: Bool { true }
}

extension TimerCancel: EntityMessage {
    typealias Reply = TimerAnswer
    static var method: UInt16 { 0x0173 }
}

extension TimerChange: EntityMessage {
    typealias Reply = TimerAnswer
    static var method: UInt16 { 0x0174 }
    static var isIdempotent: Bool { true }
}

extension TimerStop: EntityMessage {
    typealias Reply = TimerAnswer
    static var method: UInt16 { 0x0175 }
}

extension TimerEnter: EntityMessage {
    typealias Reply = TimerEntered
    static var method: UInt16 { 0x0176 }
    static var isIdempotent: Bool { true }
}

/// The kind of entity of timers; the key is the device's id.
enum TimerEntities {
    private static var reminder: String { "due" }

    /// The address of a device's timers.
    static func address(_ device: DeviceID) -> EntityAddress { plain.address(device.rawValue) }

    private static var plain: EntityDefinition<TimerState> {
        EntityDefinition(.timers, name: "timers", durability: .recorded)
    }

    static func definition(_ limits: TimerStateMachine.Limits) -> EntityDefinition<TimerState> {
        var definition = plain
        definition.on(TimerSet.self) { state, message, scope throws(ApusError) in
            try change(&state, message.dataSinceMs, limits, &scope) { machine, now throws(ApusError) in
                try machine.set(message, at: now)
            }
        }
        definition.on(TimerCancel.self) { state, message, scope throws(ApusError) in
            guard let selection = TimerSelection(message) else { throw ApusError(.malformed) }
            return try change(&state, message.dataSinceMs, limits, &scope) { machine, _ throws(ApusError) in
                try machine.cancel(selection)
            }
        }
        definition.on(TimerChange.self) { state, message, scope throws(ApusError) in
            try change(&state, message.dataSinceMs, limits, &scope) { machine, now throws(ApusError) in
                message.paused ? try machine.pause(message.id, at: now) : try machine.resume(message.id, at: now)
            }
        }
        definition.on(TimerStop.self) { state, message, scope throws(ApusError) in
            try change(&state, message.dataSinceMs, limits, &scope) { machine, _ throws(ApusError) in machine.stop() }
        }
        definition.on(TimerEnter.self) { state, message, scope throws(ApusError) in
            // Of a device without timers nothing is stored. Its next timer enters its account.
            guard !state.timers.isEmpty, message.dataSinceMs > state.dataSinceMs else { return TimerEntered() }
            _ = try change(&state, message.dataSinceMs, limits, &scope) { _, _ throws(ApusError) in .init() }
            return TimerEntered()
        }
        definition.onReading(TimerList.self) { state, message, scope throws(ApusError) in
            var machine = TimerStateMachine(state, limits)
            try machine.enter(message.dataSinceMs)
            return .with {
                $0.timers = machine.list
                ($0.version, $0.nowMs) = (machine.state.version, scope.wallMilliseconds)
            }
        }
        definition.onReminder { state, reminder, scope throws(ApusError) in
            _ = try change(&state, 0, limits, &scope, delivered: reminder) { machine, now throws(ApusError) in
                machine.due(at: now)
            }
        }
        return definition
    }

    /// Changes the timers of an account, adds the events to the outbox, and sets the reminder of what follows without a
    /// message.
    private static func change(
        _ state: inout TimerState, _ since: UInt64, _ limits: TimerStateMachine.Limits, _ scope: inout EntityScope,
        delivered: Reminder? = nil,
        _ body: (inout TimerStateMachine, _ now: Int64) throws(ApusError) -> TimerStateMachine.Outcome
    ) throws(ApusError) -> TimerAnswer {
        let now = scope.wallMilliseconds
        var machine = TimerStateMachine(state, limits)
        try machine.enter(since)
        let outcome = try body(&machine, now)
        for event in outcome.events {
            guard let bytes: [UInt8] = try? event.serializedBytes() else { throw ApusError(.internalFailure) }
            try scope.enqueue(bytes, number: event.version)
        }
        state = machine.state
        try remind(at: machine.nextMilliseconds, &scope, delivered: delivered)
        return .with { ($0.timers, $0.version, $0.nowMs) = (outcome.timers, state.version, now) }
    }

    /// - Parameter delivered: the reminder that is being carried out, which does not come again.
    private static func remind(
        at next: Int64?, _ scope: inout EntityScope, delivered: Reminder?
    ) throws(ApusError) {
        guard let next else { return scope.cancelReminder(reminder) }
        guard !scope.reminders.contains(where: { $0.due == next && $0.id != delivered?.id }) else { return }
        try scope.remind(reminder, at: next)
    }
}

extension TimerSelection {
    /// Nil if the message selects nothing.
    fileprivate init?(_ message: TimerCancel) {
        switch message.which {
        case .id(let id)?: self = .id(id)
        case .ringing(true)?: self = .ringing
        case .all(true)?: self = .all
        case .ringing(false)?, .all(false)?, nil: return nil
        }
    }

    /// As ``TimerCancel`` has it.
    var message: TimerCancel.OneOf_Which {
        switch self {
        case .id(let id): .id(id)
        case .ringing: .ringing(true)
        case .all: .all(true)
        }
    }
}
