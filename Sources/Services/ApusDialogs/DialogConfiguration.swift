/// The bounds of dialogs (D13, VA-6).
package struct DialogConfiguration: Sendable, Hashable {
    /// The sentences that the clients of an account may say at one node in a minute; also the burst. One more is
    /// refused with 10007. Key `dialogs.sentences_per_minute`.
    package var sentencesPerMinute = 240
    /// The sentences that a node carries out at once. One more is refused with 10007. Key `dialogs.running_max`.
    package var runningMax = 1024
    /// Those of one account; 10007 beyond. Key `dialogs.account_running_max`.
    package var accountRunningMax = 64
    /// How long a device listens for a sentence after a tap or a wake. Then the dialog is idle. Key
    /// `dialogs.listening_time`.
    package var listeningTime: Duration = .seconds(15)
    /// How long a room collects the devices that have heard a wake phrase, from the first one. Key
    /// `dialogs.arbitration_window`.
    package var arbitrationWindow: Duration = .milliseconds(150)
    /// How long a sentence may take. Then the reply says that it took too long. Key `dialogs.thinking_time`.
    package var thinkingTime: Duration = .seconds(15)
    /// How long a device that is connected has to confirm a setting, before the reply says that it has not. Key
    /// `dialogs.confirm_time`.
    package var confirmTime: Duration = .seconds(2)
    /// How long a question can be answered. Key `dialogs.question_time`.
    package var questionTime: Duration = .seconds(30)
    /// How long the sentences of a dialog are kept after the last one. Key `dialogs.history_time`.
    package var historyTime: Duration = .seconds(600)
    /// A folder with further sentences, read at the start and at SIGHUP; empty: none. Key `dialogs.templates`.
    package var templates = ""
    /// The languages whose sentences are only those of the folder. Key `dialogs.templates_replace`.
    package var replacedLanguages: [String] = []
    /// The language model for sentences that are not understood.
    package var guest = GuestConfiguration()

    /// Work on a sentence is begun again if the dialog has not heard of it for this time: the node that had it may have
    /// died.
    static let againTime: Int64 = 2_000
    /// The sentences of a dialog that are kept, with their replies.
    static let turnsMax = 8
    /// A longer state forgets its oldest turns, and then its oldest changes that wait to be published. Replicated
    /// states have at most 64 KiB.
    static let stateByteCountMax = 48 << 10
    /// The longest value that is read, and the longest message of an error, in bytes.
    static let valueByteCountMax = 256
    /// The changes that wait to be published. The oldest is left out beyond: its readers see a gap in the versions.
    static let unpublishedMax = 16
    /// The longest wake phrase, in bytes.
    static let phraseByteCountMax = 128
    /// The ringing timers that a device names.
    static let alertsMax = 32
    /// The other devices of a room that are considered.
    static let neighboursMax = 16
    /// Other devices of a room are quieter for so much longer than a phase may last, in milliseconds.
    static let duckReserve: Int64 = 2_000
    /// The last ids of listenings that a dialog knows.
    static let knownMax = 8
    /// A dialog listens after a question so many times in a row without a tap or a wake: a television that is taken for
    /// a person does not talk with it for ever.
    static let continuedMax: UInt32 = 6
    /// The steps of one sentence. One that needs more is refused.
    static let stepsMax = 16
    /// The longest sentence, in bytes; 10002 beyond.
    static let textByteCountMax = 512
    /// How long a reply of a length is being given: to a reader of a screen, until a device reports what it has played.
    static func speakingTime(_ reply: String) -> Int64 { min(30_000, 1_500 + 70 * Int64(reply.count)) }

    package init() {}
}
