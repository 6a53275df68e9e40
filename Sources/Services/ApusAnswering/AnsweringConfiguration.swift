/// The bounds of answering machines (D13, docs/answering-machine.md).
package struct AnsweringConfiguration: Sendable, Hashable {
    /// Messages of one party. A machine that has so many does not answer. Key `answering.messages_max`.
    package var messagesMax = 50
    /// The size at which a message is cut off. Key `answering.message_bytes_max`.
    package var messageByteCountMax = 16 << 20
    /// Bytes of the messages and greetings of one account in the record store. A machine without room does not answer.
    /// Key `answering.account_bytes_max`.
    package var accountByteCountMax = 256 << 20
    /// Those of all accounts, of which one has at most eight ninths of what the others leave. Key
    /// `answering.bytes_max`.
    package var byteCountMax = 1 << 30
    /// Messages that one node records at once. One more is recorded when there is room again. Key
    /// `answering.recordings_max`.
    package var recordingsMax = 64
    /// The part of ``recordingsMax`` that one account can have at a node. The next one is recorded when another ends.
    package static let accountPart = 8
    /// How often the frames that have come in are stored. Until then they are in the channel, at two nodes. Key
    /// `answering.store_interval`.
    package var storeInterval = Duration.milliseconds(500)

    /// The longest message, in seconds, and that of a machine that names none.
    package static let lengthSecondsMax: UInt32 = 120
    package static let lengthSeconds: UInt32 = 30
    /// How long a machine may wait, in seconds.
    package static let afterSecondsMax: UInt32 = 120
    /// How long messages are kept, in days, and those of a machine that names nothing.
    package static let keepDaysMax: UInt32 = 365
    package static let keepDays: UInt32 = 30
    /// The longest piece of a greeting in a request.
    package static let greetingPieceByteCountMax = 64 << 10
    /// The most pieces of a greeting: 2 MiB.
    package static let greetingPiecesMax: UInt32 = 32
    /// The most frames of a greeting. Each costs its node some microseconds whenever it is played.
    package static let greetingFramesMax = 8192
    /// The longest greeting, in microseconds.
    package static let greetingTimeMax: Int64 = 30_000_000
    /// The pieces in which frames are stored, and those of an MP4.
    static let framePieceByteCount = 128 << 10
    static let moviePieceByteCount = 64 << 10
    /// Pieces that are removed, or made, in one step.
    static let stepCount = 32
    /// A message that is still being recorded so long after its longest length, in milliseconds, has lost its call.
    static let abandonedAfterMs: Int64 = 180_000
    /// Frames that come in faster than the store takes them wait up to this size; then the channel sends the recorder
    /// no more until it has stored some (``FrameTap``).
    static let waitingByteCountMax = 8 << 20

    /// A machine answers while the account has room for such a message.
    static let messageByteCountMin: UInt64 = 1 << 20

    var shares: AnsweringShares { AnsweringShares(accountMax: accountByteCountMax, allMax: byteCountMax) }

    package init() {}
}
