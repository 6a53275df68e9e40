import ApusMedia

/// A channel that is to be sealed.
struct RecordingSeal: Sendable {
    var channel: RecordedChannel
    /// Nil: only whole segments. Otherwise all frames, and why the last segment ends.
    var end: SegmentEnd?
    /// Only what fills gaps, and what the log may forget.
    var isRelease = false
}
