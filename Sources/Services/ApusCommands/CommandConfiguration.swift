/// The bounds of commands (D13, IV-D11).
package struct CommandConfiguration: Sendable, Hashable {
    /// Commands of one device that have not ended; one more is refused with 10007. Key `commands.open_max`.
    package var openMax = 64
    /// Their bytes together, with 320 for each command beside its content and names; 10007 beyond. Key
    /// `commands.open_bytes_max`.
    package var openByteCountMax = 144 << 10
    /// Reads of one device's own values that have not ended; one more is refused with 10007. Who may only view a device
    /// may read, and must leave room for commands. Key `commands.reads_max`.
    package var readsMax = 8
    /// Commands of one device that are sent and not acknowledged. Key `commands.sent_max`.
    package var sentMax = 16
    /// The longest time for which a command is kept for a device that is away. Key `commands.ttl_max`.
    package var ttlMax: Duration = .seconds(7 * 86_400)
    /// A command that is not acknowledged is sent again after this time, and then after twice the time before, at most
    /// a minute. Key `commands.resend_after`.
    package var resendAfter: Duration = .seconds(5)
    /// How long a device may take to answer what it has acknowledged; then 21002. Key `commands.answer_time`.
    package var answerTime: Duration = .seconds(600)

    /// Commands of one device that are kept after their end; of those that ended with their requests, 8 at most. Key
    /// `commands.ended_max`.
    package var endedMax = 32
    /// They are kept for this time; those that ended with their requests for ten minutes
    /// at most. Key `commands.ended_time`.
    package var endedTime: Duration = .seconds(7 * 86_400)

    /// A command is sent if the right of its sender was checked within this time. Otherwise it is checked first: the
    /// sender may have lost it (IV-B10).
    package private(set) var rightTime: Duration = .seconds(1)

    package init() {}

    /// The longest content of a command that is only replicated. A longer one is recorded, whatever its time to live.
    package static let liveContentByteCountMax = 4 << 10

    /// The bounds of commands that end with their requests, whose senders wait for them. They are replicated, so they
    /// take memory at two nodes, and all of a device together are one state of at most 64 KiB
    /// (`replication.state_bytes_max`).
    package var live: CommandConfiguration {
        var live = self
        live.openByteCountMax = min(openByteCountMax, 25 << 10)
        live.endedTime = min(endedTime, .seconds(600))
        live.endedMax = min(endedMax, 8)
        live.rightTime = .seconds(5)
        return live
    }
}
