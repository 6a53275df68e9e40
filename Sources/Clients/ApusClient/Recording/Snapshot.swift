public import ApusCore
public import ApusMedia
import Glibc
import NIOCore
import Synchronization

/// Keeps the frames with which a picture of the latest video frame can be made at any time.
///
/// It holds the frames since the latest key frame, by reference, and decodes only on request. Bounded by
/// ``frameCountMax`` and ``byteCountMax``. Beyond them the later frames of that group are dropped, and a picture shows
/// the moment before them.
///
/// Concurrency model: every method may be called from any thread. ``png()`` and ``save(to:)`` decode on the caller's
/// thread and take tens of milliseconds: never call them on an event loop.
public final class Snapshot: Sendable {
    public static let frameCountMax = 3000
    public static let byteCountMax = 64 << 20

    private struct State {
        /// The first video track's number and configuration.
        var track: UInt8?
        var configuration: TrackConfiguration?
        /// The configuration of the held frames.
        var configurationOfFrames: TrackConfiguration?
        var frames: [MediaFrame] = []
        var byteCount = 0
    }
    private let state = Mutex(State())

    public init() {}

    /// Adds a frame from a player. Everything except the first video track is ignored.
    public func write(_ frame: MediaFrame) {
        state.withLock { state in
            if frame.header.flags.contains(.configuration) {
                guard let configuration = try? TrackConfiguration(decoding: frame.payload), configuration.codec.isVideo,
                    state.track == nil || state.track == frame.header.track
                else { return }
                state.track = frame.header.track
                state.configuration = configuration
                return
            }
            guard frame.header.track == state.track else { return }
            if frame.header.flags.contains(.key) {
                state.frames.removeAll(keepingCapacity: true)
                state.byteCount = 0
                state.configurationOfFrames = state.configuration
            } else if state.frames.isEmpty {
                return
            }
            guard state.frames.count < Self.frameCountMax, state.byteCount < Self.byteCountMax else { return }
            state.frames.append(frame)
            state.byteCount += frame.payload.readableBytes
        }
    }

    /// The latest picture as the bytes of a PNG file.
    ///
    /// - Throws: 10026 if no key frame has arrived yet, or it cannot be decoded.
    public func png() throws(ApusError) -> [UInt8] {
        let (configuration, frames) = state.withLock { ($0.configurationOfFrames, $0.frames) }
        guard let configuration, !frames.isEmpty else {
            throw ApusError(.mediaUnreadable, "no key frame has arrived yet; wait for the first picture")
        }
        let decoder = try VideoDecoder(configuration: configuration)
        for frame in frames { try decoder.decode(frame.payload, pts: frame.header.ptsMicroseconds) }
        try decoder.finish()
        return try decoder.png()
    }

    /// Writes the latest picture as a PNG file.
    ///
    /// - Throws: 10026 as ``png()``; 10021 if the file cannot be written.
    public func save(to path: String) throws(ApusError) {
        let bytes = try png()
        let file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o644)
        guard file >= 0 else {
            throw ApusError(
                .storageFailed, "the snapshot \(path) cannot be written: \(String(cString: strerror(errno)))")
        }
        defer { close(file) }
        if let number = writeAll(file, bytes) {
            throw ApusError(
                .storageFailed, "the snapshot \(path) cannot be written: \(String(cString: strerror(number)))")
        }
    }
}
