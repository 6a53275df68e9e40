package import CoreMetrics

/// The metrics of a node's channels.
package struct ChannelMetrics: Sendable {
    /// Viewers, edges and standbys that receive frames from this node.
    package let receivers = Meter(label: "apus_channel_receivers")
    /// Channels that are published here or copied to this node.
    package let channels = Meter(label: "apus_channels")
    /// Bytes sent to receivers.
    package let bytesOut = Counter(label: "apus_channel_bytes_out_total")
    /// Frames accepted from publishers and other nodes.
    package let framesIn = Counter(label: "apus_channel_frames_in_total")
    /// Frames that receivers lost because they were too slow.
    package let framesSkipped = Counter(label: "apus_channel_frames_skipped_total")
    /// Frames that could not be decoded. The connection that sent them is closed.
    package let framesBad = Counter(label: "apus_channel_frames_bad_total")
    /// The number of times that this node became a channel's primary in place of another.
    package let promotions = Counter(label: "apus_channel_promotions_total")
    /// Copies that this node opened at standbys and candidates.
    package let copiesOpened = Counter(label: "apus_channel_copies_opened_total")

    /// Channels that only viewers and other nodes request from this node.
    package let watched = Meter(label: "apus_channels_watched")
    /// Frame bytes that this node's channels hold.
    package let ringBytes = Meter(label: "apus_channel_ring_bytes")
    /// Bytes of publishers' frames that wait for links to other nodes.
    package let linkWaitingBytes = Meter(label: "apus_channel_link_waiting_bytes")
    /// Channels and publishers that were refused at their account's share, or at the node's limit.
    package let refused = Counter(label: "apus_channels_refused_total")
    /// The number of times that a channel's ring was shortened because of the node's limit.
    package let ringsShortened = Counter(label: "apus_channel_rings_shortened_total")

    package init() {}
}
