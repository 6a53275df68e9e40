import ApusCore

/// The bounds of a node's channels, each with its key under `channels.` (D13).
package struct ChannelConfiguration: Sendable {
    /// The machine's own: ring limits, protection and retries.
    package var machine = ChannelStateMachine.Configuration()
    /// The most bytes written to one receiver in one go. Key `channels.batch_bytes_max`.
    package var batchByteCountMax = 512 << 10
    /// How far a viewer may lag before it goes on at the last key frame, in bytes. Key `channels.lag_bytes_max`.
    package var lagByteCountMax = 4 << 20
    /// How long audio waits for the next video frame to ride with; longer than a frame of 25 a second lasts,
    /// else every second wait ends in a write of its own. A publisher's other messages may wait for
    /// as long, see `ReceivePacing`. Key `channels.audio_hold`.
    package var audioHold: Duration = .milliseconds(50)
    /// How often what is waited for is looked at again. Key `channels.tick`.
    package var tick: Duration = .milliseconds(10)
    /// How often a node's channels are looked at that wait for nothing: well below the 200 ms after which a channel
    /// takes its own node for late. Key `channels.idle_tick`.
    package var idleTick: Duration = .milliseconds(100)
    /// How long a channel without publisher and viewers is remembered. Key `channels.idle_timeout`.
    package var idleTimeout: Duration = .seconds(60)
    /// The most channels of a node; one more is refused with 10007. Key `channels.channels_max`.
    package var channelsMax = 10_000
    /// How long another node may take to answer on the media lane. Key `channels.answer_timeout`.
    package var answerTimeout: Duration = .milliseconds(500)

    package init() {}
}
