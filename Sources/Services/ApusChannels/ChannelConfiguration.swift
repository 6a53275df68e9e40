import ApusCore

/// The limits of a node's channels, each with its key under `channels.` (D13).
package struct ChannelConfiguration: Sendable {
    /// The state machine's configuration: ring limits, protection and retries.
    package var machine = ChannelStateMachine.Configuration()
    /// The most bytes of one write to a receiver. Key `channels.batch_bytes_max`.
    package var batchByteCountMax = 512 << 10
    /// How far a viewer may lag before it continues at the last key frame, in bytes. Key `channels.lag_bytes_max`.
    package var lagByteCountMax = 4 << 20
    /// How long audio waits for the next video frame, to be sent in the same write. It must be longer than the interval
    /// of frames at 25 per second; otherwise every second wait ends in a separate write. A publisher's other messages
    /// may wait as long, see `ReceivePacing`. Key `channels.audio_hold`.
    package var audioHold: Duration = .milliseconds(50)
    /// The poll interval of channels that wait for something. Key `channels.tick`.
    package var tick: Duration = .milliseconds(10)
    /// The poll interval of channels that wait for nothing. It must be well below the 200 ms after which a channel
    /// considers its own node late. Key `channels.idle_tick`.
    package var idleTick: Duration = .milliseconds(100)
    /// How long a channel without a publisher and viewers is kept. Key `channels.idle_timeout`.
    package var idleTimeout: Duration = .seconds(60)
    /// The most channels of a node that are published or copied here. Another one is refused with 10007. An account may
    /// have at most eight ninths of what other accounts leave (``AccountShares``). Key `channels.channels_max`.
    package var channelsMax = 10_000
    /// The most channels of a node that only viewers and other nodes request, published or not, with the same shares.
    /// Key `channels.watched_max`.
    package var watchedMax = 10_000
    /// The most sources of one device in each of these tables. Key `channels.sources_max`.
    package var sourcesMax = 256
    /// The most frame bytes that all channels of a node hold. Near this limit, the rings of the largest accounts are
    /// shortened. Key `channels.ring_bytes_total_max`.
    package var ringByteCountTotalMax = 2 << 30
    /// The most bytes of publishers' frames that wait for a link to another node. Frames beyond it are requested from
    /// the publishers again. An account may have at most eight ninths of what other accounts leave. Key
    /// `channels.link_waiting_bytes_max`.
    package var linkWaitingByteCountMax = 16 << 20
    /// Frame bytes in flight to another node that it has not processed. Further frames wait in their accounts' turns.
    /// Key `channels.link_window`.
    package var linkWindowByteCount = 4 << 20
    /// How long a publisher waits for the channel's primary before it is refused with 10010. Key
    /// `channels.publish_timeout`.
    package var publishTimeout: Duration = .seconds(5)
    /// The time-out of another node's answer on the media lane. Key `channels.answer_timeout`.
    package var answerTimeout: Duration = .milliseconds(500)

    package init() {}
}
