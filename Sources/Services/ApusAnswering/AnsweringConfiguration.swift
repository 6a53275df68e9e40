/// The limits of answering machines (D13, docs/answering-machine.md).
package struct AnsweringConfiguration: Sendable, Hashable {
    /// The most messages of one party. A machine that has this many does not answer. Key `answering.messages_max`.
    package var messagesMax = 50
    /// The size at which a message is cut off. Key `answering.message_bytes_max`.
    package var messageByteCountMax = 16 << 20
    /// The most bytes of one account's messages and greetings in the record store. A machine without room does not
    /// answer. Key `answering.account_bytes_max`.
    package var accountByteCountMax = 256 << 20
    /// The same limit for all accounts. One account may have at most eight ninths of what other accounts leave. Key
    /// `answering.bytes_max`.
    package var byteCountMax = 1 << 30
    /// The most messages that a node records at once. Another one is recorded when there is room again. Key
    /// `answering.recordings_max`.
    package var recordingsMax = 64
    /// One account may have ``recordingsMax`` divided by this number of recordings at a node. Its next one waits until
    /// another one ends.
    package static let accountPart = 8
    /// The interval at which received frames are stored. Until then, two nodes have them in the channel. Key
    /// `answering.store_interval`.
    package var storeInterval = Duration.milliseconds(500)

    /// The longest length of a message, and the default, in seconds.
    package static let lengthSecondsMax: UInt32 = 120
    package static let lengthSeconds: UInt32 = 30
    /// The longest time until a machine answers, in seconds.
    package static let afterSecondsMax: UInt32 = 120
    /// The longest time for which messages are kept, and the default, in days.
    package static let keepDaysMax: UInt32 = 365
    package static let keepDays: UInt32 = 30
    /// The largest piece of a greeting in a request.
    package static let greetingPieceByteCountMax = 64 << 10
    /// The most pieces of a greeting: 2 MiB.
    package static let greetingPiecesMax: UInt32 = 32
    /// The most frames of a greeting. Each costs its node some microseconds whenever it is played.
    package static let greetingFramesMax = 8192
    /// The longest greeting, in microseconds.
    package static let greetingTimeMax: Int64 = 30_000_000
    /// The sizes of the pieces in which frames, and MP4 files, are stored.
    static let framePieceByteCount = 128 << 10
    static let moviePieceByteCount = 64 << 10
    /// The most pieces or messages that are read, or removed, in one step.
    static let stepCount = 32
    /// A recording is abandoned if it has not ended this long after the message's longest length, in milliseconds. Its
    /// call was lost.
    static let abandonedAfterMs: Int64 = 180_000
    /// Received frames wait for the store up to this size. Beyond it, the channel sends the recorder no frames until
    /// some are stored (``FrameTap``).
    static let waitingByteCountMax = 8 << 20

    /// A machine answers if the account has room for a message of this size.
    static let messageByteCountMin: UInt64 = 1 << 20

    var shares: AnsweringShares { AnsweringShares(accountMax: accountByteCountMax, allMax: byteCountMax) }

    package init() {}
}
