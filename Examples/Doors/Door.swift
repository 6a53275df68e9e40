import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

// Step 1: what an entity knows, and its messages (proto/apus/doors.proto).

extension DoorState: EntityContentMessage {}

extension DoorPass: EntityMessage {
    typealias Reply = DoorPassed
    static var method: UInt16 { 0x0e01 }
}

extension DoorCloseLater: EntityMessage {
    typealias Reply = DoorCloseNoted
    static var method: UInt16 { 0x0e02 }
}

extension DoorLook: EntityMessage {
    typealias Reply = DoorState
    static var method: UInt16 { 0x0e03 }
    static var isIdempotent: Bool { true }
}

extension EntityKind {
    /// A door whose standby knows all that it knows.
    static let door = Self(rawValue: 13)
    /// A door that is in the records.
    static let recordedDoor = Self(rawValue: 14)
}

// Step 2: what its messages do.

extension EntityDefinition<DoorState> {
    /// A door counts who passes, and closes by itself at a time, whichever node it lives at by then.
    static func door(_ kind: EntityKind, name: String, durability: EntityDurability) -> Self {
        var definition = Self(kind, name: name, durability: durability)
        definition.on(DoorPass.self) { door, _, _ throws(ApusError) in
            door.passes += 1
            return DoorPassed.with { $0.passes = door.passes }
        }
        definition.on(DoorCloseLater.self) { _, message, scope throws(ApusError) in
            let due = scope.wallMilliseconds + Int64(clamping: min(message.afterMs, 86_400_000))
            // A name of its own for each request, so that every one of them closes the door.
            try scope.remind("close-\(scope.call.request.map { "\($0)" } ?? "\(due)")", at: due)
            return DoorCloseNoted()
        }
        definition.onReading(DoorLook.self) { door, _, _ throws(ApusError) in door }
        definition.onReminder { door, reminder, scope throws(ApusError) in
            door.closings += 1
            let late = scope.wallMilliseconds - reminder.due
            if late < 0 { door.earlyClosings += 1 }
            door.latestMs = max(door.latestMs, UInt64(max(0, late)))
        }
        return definition
    }
}
