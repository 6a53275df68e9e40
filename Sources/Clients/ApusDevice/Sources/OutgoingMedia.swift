package import ApusMedia

/// What a publisher sends of its source: tracks can be muted, and the source replaced by another one, while the stream
/// goes on (IV-C7, IV-C8).
///
/// A muted track sends nothing. A video track goes on with a key frame. The time line of a new source goes on behind
/// that of the one before.
///
/// Pure value.
package struct OutgoingMedia: Sendable {
    /// The time between the last frame of a source and the first of the next one, in microseconds.
    private static let pause: Int64 = 40_000

    private var isVideo: [UInt8: Bool] = [:]
    private var muted: Set<MediaKind> = []
    /// Video tracks that wait for a key frame.
    private var waiting: Set<UInt8> = []
    /// What is added to the times of the source; nil before its first frame.
    private var offset: Int64? = 0
    private var last: Int64 = 0

    package init() {}

    /// The track has this configuration from now on.
    package mutating func configured(_ track: UInt8, _ configuration: TrackConfiguration) {
        isVideo[track] = configuration.codec.isVideo
    }

    package mutating func setMuted(_ kind: MediaKind, _ isMuted: Bool) {
        if isMuted {
            muted.insert(kind)
        } else if muted.remove(kind) != nil, kind == .video {
            for (track, isVideo) in isVideo where isVideo { waiting.insert(track) }
        }
    }

    /// Another source follows.
    package mutating func sourceChanged() {
        (isVideo, waiting, offset) = ([:], [], nil)
    }

    /// The time with which the frame is sent; nil if it is not.
    package mutating func time(of track: UInt8, ptsMicroseconds: Int64, flags: MediaFlags) -> Int64? {
        let offset = offset ?? last + Self.pause - ptsMicroseconds
        self.offset = offset
        guard !muted.contains(isVideo[track] ?? false ? .video : .audio) else { return nil }
        if waiting.contains(track) {
            guard flags.contains(.key) else { return nil }
            waiting.remove(track)
        }
        last = max(last, ptsMicroseconds + offset)
        return ptsMicroseconds + offset
    }
}

/// The kind of a track.
public enum MediaKind: String, Sendable, Hashable, CaseIterable {
    case audio
    case video
}
