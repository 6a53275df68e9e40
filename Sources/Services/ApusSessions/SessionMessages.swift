import ApusCluster
import ApusCore
public import ApusWire

// The messages of `proto/apus/session.proto`, with their stable numbers. Each states the current value, not the change,
// so it may be repeated if an answer was lost.

extension SessionRegister: EntityMessage {
    package typealias Reply = SessionRegistered
    package static var method: UInt16 { 0x0101 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { order.isWithinBounds && place.isWithinBounds }
    package static func isWithinBounds(_ reply: SessionRegistered) -> Bool { reply.order.isWithinBounds }
}

extension SessionUnregister: EntityMessage {
    package typealias Reply = SessionUnregistered
    package static var method: UInt16 { 0x0102 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { place.isWithinBounds }
}

extension SessionInspect: EntityMessage {
    package typealias Reply = SessionInspected
    package static var method: UInt16 { 0x0103 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { place.isWithinBounds }
    package static func isWithinBounds(_ reply: SessionInspected) -> Bool { reply.place.isWithinBounds }
}

extension SessionForget: EntityMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0104 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { place.isWithinBounds }
}

extension SessionSleep: EntityMessage {
    package typealias Reply = SessionSlept
    package static var method: UInt16 { 0x0105 }
    package static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool { place.isWithinBounds }
}

extension SessionRelate: EntityMessage {
    package typealias Reply = SessionRelated
    package static var method: UInt16 { 0x0106 }
}

/// An owner notifies an edge that a session was superseded.
extension SessionKick: NodeMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0041 }
    package var isWithinBounds: Bool { order.isWithinBounds && epoch <= WireNumber.termMax }
}

/// An owner notifies an edge that a device's presence changed.
extension SessionPresenceChanged: NodeMessage {
    package typealias Reply = SessionForgotten
    package static var method: UInt16 { 0x0042 }
    package var isWithinBounds: Bool { epoch <= WireNumber.termMax }
}

/// A node asks the client of a session, which is connected to another node, for an answer.
extension SessionProbe: NodeMessage {
    package typealias Reply = SessionProbed
    package static var method: UInt16 { 0x0060 }
}

extension ApusWire.SessionOrder {
    fileprivate var isWithinBounds: Bool { sequence <= WireNumber.sequenceMax && epoch <= WireNumber.termMax }
}

extension ApusWire.SessionPlace {
    fileprivate var isWithinBounds: Bool { incarnation <= WireNumber.incarnationMax }
}
