// The names of phases in texts (VA-6).

extension ClientDialogPhase {
    /// Reads a phase, in any case of letters. The spellings of earlier contracts are accepted: `UDISCONNECT` for
    /// disconnected, `SPERAKER` for speaking, and `FINISH` for finished. Nil for another text.
    public init?(named text: String) {
        switch text.uppercased() {
        case "DISCONNECTED", "UDISCONNECT": self = .disconnected
        case "PENDING": self = .pending
        case "IDLE": self = .idle
        case "LISTENING": self = .listening
        case "THINKING": self = .thinking
        case "SPEAKING", "SPERAKER": self = .speaking
        case "FINISHED", "FINISH": self = .finished
        default: return nil
        }
    }

    /// Such as `SPEAKING`; `UNSPECIFIED` for a phase that this version does not know.
    public var name: String {
        switch self {
        case .disconnected: "DISCONNECTED"
        case .pending: "PENDING"
        case .idle: "IDLE"
        case .listening: "LISTENING"
        case .thinking: "THINKING"
        case .speaking: "SPEAKING"
        case .finished: "FINISHED"
        case .unspecified, .UNRECOGNIZED: "UNSPECIFIED"
        }
    }
}
