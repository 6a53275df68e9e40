import ApusCore
import ApusMedia

/// When the newest frames of a channel came to its primary, for the diagnosis of a picture that does not come (IV-G9).
/// A hub notes them with each batch: one look at the flags of each frame.
struct FrameArrivals: Sendable {
    private(set) var epoch: UInt32 = 0
    private(set) var frame: MonotonicTime?
    private(set) var key: MonotonicTime?
    private(set) var configuration: MonotonicTime?

    /// - Parameter ring: that of the channel, with these frames.
    mutating func note(_ frames: [RelayFrame], in ring: borrowing FrameRing, now: MonotonicTime) {
        for frame in frames {
            // A new run has its own configurations and key frames.
            if frame.position.epoch != epoch { self = FrameArrivals(epoch: frame.position.epoch) }
            if frame.flags.contains(.endOfEpoch) { continue }
            if frame.flags.contains(.configuration) {
                configuration = now
            } else {
                self.frame = now
                if frame.flags.contains(.key), ring.isStart(frame) { key = now }
            }
        }
    }
}

extension FrameArrivals {
    fileprivate init(epoch: UInt32) {
        self.init()
        self.epoch = epoch
    }
}
