import ApusClient
public import ApusCore
public import ApusMedia
import NIOCore
import Synchronization

extension MediaSource {
    /// All configurations and frames of a source that ends by itself, such as a file that is neither looped nor paced.
    ///
    /// - Parameter byteCountMax: the most bytes of all frames.
    /// - Throws: 10026 as the source; 10002 if it has more bytes; 10006 if the task is cancelled.
    public func allFrames(byteCountMax: Int) async throws(ApusError) -> [MediaFrame] {
        let (events, feed) = AsyncStream<SourceEvent>.makeStream()
        start { feed.yield($0) }
        defer { stop() }
        var (frames, byteCount) = ([MediaFrame](), 0)
        for await event in events {
            var payload = ByteBuffer()
            var header = MediaHeader(
                position: FramePosition(epoch: 0, sequence: UInt64(frames.count)), ptsMicroseconds: 0)
            switch event {
            case .configuration(let track, let configuration):
                configuration.encode(into: &payload)
                (header.track, header.flags) = (track, .configuration)
            case .frame(let track, let pts, let dtsDelta, let flags, let bytes):
                (header.track, header.flags, payload) = (track, flags, bytes)
                (header.ptsMicroseconds, header.dtsDeltaMicroseconds) = (pts, dtsDelta)
            case .ended: return frames
            case .failed(let error): throw error
            }
            byteCount += MediaHeader.byteCount + payload.readableBytes
            guard byteCount <= byteCountMax else {
                throw ApusError(.frameTooLarge, "the media have more than \(byteCountMax) bytes")
            }
            frames.append(MediaFrame(header: header, payload: payload))
        }
        throw ApusError(.cancelled)
    }
}
