/// Answering machines of parties: the port that their service implements for calls.
///
/// Isolation: may be called from anywhere.
package protocol AnsweringMachines: Sendable {
    /// The machine of the first of these parties that has one; nil if none has.
    func machine(of parties: [CallParty]) async -> CallAnswering?

    /// A call of this node's shards asks to record its message, or reports that it is over. The call repeats the
    /// request until the message is stored. Returns at once.
    ///
    /// - Parameter report: called on any thread.
    func record(_ recording: CallVoiceMessage, report: @escaping @Sendable (VoiceMessageReport) -> Void)
}

/// A report to a call about its message.
package enum VoiceMessageReport: Sendable {
    /// It is stored, or there is nothing to store.
    case stored
    /// It has its largest size.
    case full
}
