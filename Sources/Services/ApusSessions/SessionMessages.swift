import ApusCluster
public import ApusWire

// The messages of `proto/apus/session.proto`, with their stable numbers. Each says what is true, not what
// changed, so each may be repeated when an answer was lost.

extension SessionRegister: EntityMessage {
    package typealias Reply = SessionRegistered
    package static var method: UInt16 { 0x0101 }
    package static var isIdempotent: Bool { true }
}

extension SessionUnregister: EntityMessage {
    package typealias Reply = SessionUnregistered
    package static var method: UInt16 { 0x0102 }
    package static var isIdempotent: Bool { true }
}

extension SessionInspect: EntityMessage {
    package typealias Reply = SessionInspected
    package static var method: UInt16 { 0x0103 }
    package static var isIdempotent: Bool { true }
}

extension SessionForget: EntityMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0104 }
    package static var isIdempotent: Bool { true }
}

extension SessionSleep: EntityMessage {
    package typealias Reply = SessionSlept
    package static var method: UInt16 { 0x0105 }
    package static var isIdempotent: Bool { true }
}

/// An owner tells an edge that a session was superseded.
extension SessionKick: NodeMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0041 }
}

/// An owner tells an edge that a device's presence changed.
extension SessionPresenceChanged: NodeMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0042 }
}
