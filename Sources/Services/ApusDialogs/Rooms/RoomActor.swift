import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf

// The rooms of an account at the owners of their shards.
//
// A room is not replicated: it lives for the second in which its devices hear the same phrase. If its node dies in this
// second, the devices listen by themselves. A replicated room would cost two messages between nodes within the window
// of each wake, to protect a decision that the dialogs of the devices protect already: a sentence begins only at a
// device that has not yielded.

extension EntityKind {
    static let voiceRooms = Self(rawValue: 19)
}

extension DialogRoomWake: EntityMessage {
    typealias Reply = DialogRoomDecision
    static var method: UInt16 { 0x0191 }
    static var isIdempotent: Bool { true }
    package var isWithinBounds: Bool {
        (0...60_000).contains(sinceMs) && others.count <= ArbitrationStateMachine.devicesMax
            && (-20_000...20_000).contains(signalToNoiseCb) && (-20_000...20_000).contains(energyCb)
    }
}

extension DialogRoomRevise: EntityMessage {
    typealias Reply = DialogRoomDecision
    static var method: UInt16 { 0x0192 }
    static var isIdempotent: Bool { true }
}

/// A room (``ArbitrationStateMachine`` decides).
///
/// Isolation: an actor. A message waits in its own task until the room has decided.
actor RoomActor {
    private var machine: ArbitrationStateMachine
    /// How often a message that waits looks for the decision.
    private static let lookInterval: Int64 = 10

    init(_ configuration: DialogConfiguration) {
        machine = ArbitrationStateMachine(windowMs: Int64(configuration.arbitrationWindow.milliseconds))
    }

    /// - Throws: 10006 if this node stops.
    func heard(_ message: DialogRoomWake) async throws(ApusError) -> DialogRoomDecision {
        let wake = ArbitrationStateMachine.Wake(
            device: message.device, id: message.id, signalToNoise: message.signalToNoiseCb, energy: message.energyCb,
            endedMs: Self.now - message.sinceMs)
        guard !message.isTap else {
            let yielding = machine.tapped(wake, at: Self.now)
            return Self.decision(wake, yielding: yielding)
        }
        var answer = machine.heard(wake, others: message.others, at: Self.now)
        while case .waits(let until) = answer {
            let pause = min(max(1, until - Self.now), Self.lookInterval)
            guard (try? await Task.sleep(for: .milliseconds(pause))) != nil else { throw ApusError(.cancelled) }
            answer = machine.answer(to: wake.id, at: Self.now)
        }
        var decision = try Self.decision(wake, answer)
        if answer == .wins, let before = machine.earlier(than: wake.id) {
            (decision.yielding, decision.yieldingListening) = (before.device, before.id)
            decision.yieldsAlways = true
        }
        return decision
    }

    func revise(_ message: DialogRoomRevise) throws(ApusError) -> DialogRoomDecision {
        let wake = ArbitrationStateMachine.Wake(
            device: message.device, id: message.id, signalToNoise: 0, energy: 0, endedMs: 0)
        return try Self.decision(wake, machine.revised(message.id, isFree: message.isFree, at: Self.now))
    }

    private static var now: Int64 { Int64((MonotonicTime.now() - .zero).milliseconds) }

    private static func decision(
        _ wake: ArbitrationStateMachine.Wake, _ answer: ArbitrationStateMachine.Answer
    ) throws(ApusError) -> DialogRoomDecision {
        switch answer {
        case .wins: return decision(wake)
        case .loses(let winner): return decision(winner)
        case .revises(let winner): return decision(wake, yielding: winner)
        case .waits, .unknown: throw ApusError(.overloaded, "too many devices of the room talk at once")
        }
    }

    private static func decision(
        _ winner: ArbitrationStateMachine.Wake, yielding: ArbitrationStateMachine.Wake? = nil
    ) -> DialogRoomDecision {
        .with {
            ($0.winner, $0.listening) = (winner.device, winner.id)
            if let yielding { ($0.yielding, $0.yieldingListening) = (yielding.device, yielding.id) }
        }
    }
}
