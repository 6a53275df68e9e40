public import ApusContract

/// What a person sees of a dialog at a device: the phases of the cluster, and DISCONNECTED and PENDING (VA-6).
///
/// Changes that the device has missed are shown by the way that leads to the phase, so each change that is shown is a
/// legal one: DISCONNECTED, PENDING, IDLE, LISTENING, THINKING, SPEAKING, FINISHED, IDLE. A tap leads to LISTENING from
/// each active phase, a stop to IDLE, and a lost connection to DISCONNECTED.
///
/// Pure value.
public struct VoiceStateMachine: Sendable {
    public private(set) var phase = ClientDialogPhase.disconnected
    /// The version of the dialog that is shown; 0: none.
    public private(set) var version: UInt64 = 0

    public init() {}

    /// The phases that may follow one.
    public static func following(_ phase: ClientDialogPhase) -> [ClientDialogPhase] {
        switch phase {
        case .disconnected: [.pending]
        case .pending: [.idle, .disconnected]
        case .idle: [.listening, .disconnected]
        case .listening: [.thinking, .idle, .listening, .disconnected]
        case .thinking: [.speaking, .listening, .idle, .disconnected]
        case .speaking: [.finished, .listening, .idle, .disconnected]
        case .finished: [.idle, .disconnected]
        case .unspecified, .UNRECOGNIZED: []
        }
    }

    // MARK: - Events. Each returns the phases to show, in order.

    /// The device connects, or is connected and has not synchronized its dialog.
    public mutating func connecting() -> [ClientDialogPhase] {
        guard phase != .pending else { return [] }
        let lost = disconnected()
        return lost + show(.pending)
    }

    public mutating func disconnected() -> [ClientDialogPhase] {
        guard phase != .disconnected else { return [] }
        version = 0
        phase = .disconnected
        return [.disconnected]
    }

    /// The dialog is synchronized, and has this phase and version.
    public mutating func synchronized(_ phase: ClientDialogPhase, version: UInt64) -> [ClientDialogPhase] {
        guard self.phase == .pending else { return [] }
        self.version = version
        return show(.idle) + show(phase)
    }

    /// The dialog has gone through phases.
    ///
    /// - Parameter version: the new one. An earlier change has no effect.
    public mutating func changed(_ phases: [ClientDialogPhase], version: UInt64) -> [ClientDialogPhase] {
        guard phase != .disconnected, phase != .pending, version > self.version else { return [] }
        self.version = version
        return phases.flatMap { show($0) }
    }

    /// The device ends what it does by itself, such as without a microphone (VA-14).
    public mutating func ended() -> [ClientDialogPhase] {
        guard phase == .listening || phase == .thinking || phase == .speaking else { return [] }
        phase = .idle
        return [.idle]
    }

    // MARK: - Parts

    /// Shows a phase, by the shortest legal way.
    private mutating func show(_ next: ClientDialogPhase) -> [ClientDialogPhase] {
        guard next != phase || next == .listening, let way = Self.way(from: phase, to: next) else { return [] }
        phase = next
        return way
    }

    /// Nil if there is none. A way does not lead over a lost connection.
    private static func way(from phase: ClientDialogPhase, to next: ClientDialogPhase) -> [ClientDialogPhase]? {
        var ways: [[ClientDialogPhase]] = [[]]
        // The longest way has six changes.
        for _ in 0..<6 {
            var longer: [[ClientDialogPhase]] = []
            for way in ways {
                for step in following(way.last ?? phase) {
                    if step == next { return way + [step] }
                    if step != .disconnected, !way.contains(step) { longer.append(way + [step]) }
                }
            }
            ways = longer
        }
        return nil
    }
}
