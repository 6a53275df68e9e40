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
    /// The most channels of a node that are published here or copied here; one more is refused with 10007. Key
    /// `channels.channels_max`. An account has at most eight ninths of what the others leave (``AccountShares``).
    package var channelsMax = 10_000
    /// The most channels of a node that only viewers and other nodes ask for, published or not, by the same shares.
    /// Key `channels.watched_max`.
    package var watchedMax = 10_000
    /// The most sources of one device in each of these tables. Key `channels.sources_max`.
    package var sourcesMax = 256
    /// The most bytes of frames that all channels of a node keep. Near it the rings of the accounts with the most
    /// become shorter. Key `channels.ring_bytes_total_max`.
    package var ringByteCountTotalMax = 2 << 30
    /// The most bytes of publishers' frames that wait for their turn on a link to another node; what is beyond it is
    /// asked of the publishers again. An account has at most eight ninths of what the others leave. Key
    /// `channels.link_waiting_bytes_max`.
    package var linkWaitingByteCountMax = 16 << 20
    /// Bytes of frames on their way to another node that has not worked them off. More wait where accounts have turns.
    /// Key `channels.link_window`.
    package var linkWindowByteCount = 4 << 20
    /// How long a publisher waits for the answer of the channel's primary before it is refused with 10010. Key
    /// `channels.publish_timeout`.
    package var publishTimeout: Duration = .seconds(5)
    /// How long another node may take to answer on the media lane. Key `channels.answer_timeout`.
    package var answerTimeout: Duration = .milliseconds(500)

    package init() {}
}
