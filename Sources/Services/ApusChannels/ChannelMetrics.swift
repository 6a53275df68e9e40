package import CoreMetrics

/// What the channels of a node count.
package struct ChannelMetrics: Sendable {
    /// Viewers, edges and standbys that take frames from this node now.
    package let receivers = Meter(label: "apus_channel_receivers")
    /// Channels that this node holds, in any role.
    package let channels = Meter(label: "apus_channels")
    /// Bytes handed to receivers.
    package let bytesOut = Counter(label: "apus_channel_bytes_out_total")
    /// Frames taken from publishers and other nodes.
    package let framesIn = Counter(label: "apus_channel_frames_in_total")
    /// Frames left out for receivers that were too slow.
    package let framesSkipped = Counter(label: "apus_channel_frames_skipped_total")
    /// Frames that could not be read; the connection that sent them is closed.
    package let framesBad = Counter(label: "apus_channel_frames_bad_total")
    /// Times that this node became a channel's primary in place of another.
    package let promotions = Counter(label: "apus_channel_promotions_total")
    /// Copies at standbys that were opened.
    package let copiesOpened = Counter(label: "apus_channel_copies_opened_total")

    /// Channels that only viewers and other nodes ask for here.
    package let watched = Meter(label: "apus_channels_watched")
    /// Bytes of frames that this node's channels keep.
    package let ringBytes = Meter(label: "apus_channel_ring_bytes")
    /// Bytes of publishers' frames that wait for their turn on links to other nodes.
    package let linkWaitingBytes = Meter(label: "apus_channel_link_waiting_bytes")
    /// Channels and publishers that were refused because their account has its share, or the node its most.
    package let refused = Counter(label: "apus_channels_refused_total")
    /// Times that a channel's ring became shorter for the node's bound.
    package let ringsShortened = Counter(label: "apus_channel_rings_shortened_total")

    package init() {}
}
