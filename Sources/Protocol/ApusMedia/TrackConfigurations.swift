/// The newest configuration of each track of a stream, as the frames that carry them.
///
/// A configuration names the number of its publisher's tracks. Those beyond it have ended: a camera that restarts
/// without sound has one track less.
///
/// Pure value: at most ``TrackConfiguration/trackCountMax`` frames.
public struct TrackConfigurations: Sendable {
    private var frames: [UInt8: MediaFrame] = [:]

    public init() {}

    /// In the order of the tracks.
    public var all: [MediaFrame] { frames.sorted { $0.key < $1.key }.map(\.value) }

    /// Takes a frame with ``MediaFlags/configuration``; any other has no effect.
    ///
    /// - Returns: true if the track's format, or the number of tracks, is another one than before.
    @discardableResult
    public mutating func put(_ frame: MediaFrame) -> Bool {
        let track = frame.header.track
        guard frame.header.flags.contains(.configuration), track < TrackConfiguration.trackCountMax else {
            return false
        }
        let known = frames.updateValue(frame, forKey: track)
        guard let configuration = try? TrackConfiguration(decoding: frame.payload) else { return true }
        let ended = frames.keys.filter { Self.hasEnded($0, after: configuration, of: track) }
        for track in ended { frames[track] = nil }
        let before = known.flatMap { try? TrackConfiguration(decoding: $0.payload) }
        return !ended.isEmpty || before?.hasSameFormat(as: configuration) != true
    }

    /// True if a track has ended, as another one's newest configuration says.
    static func hasEnded(_ track: UInt8, after configuration: TrackConfiguration, of other: UInt8) -> Bool {
        track != other && track >= max(configuration.trackCount, 1)
    }
}
