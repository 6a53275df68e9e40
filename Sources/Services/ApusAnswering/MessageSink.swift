import ApusChannels
import ApusCore
import ApusMedia
import ApusWire
import NIOCore
import Synchronization

/// The recorder's end of a caller's channel: it keeps the frames until the recorder takes them.
///
/// It keeps at most ``AnsweringConfiguration/waitingByteCountMax`` bytes, and takes no more until then, like a viewer
/// whose socket is full.
///
/// Concurrency model: confined to the event loop, except ``take()``; a `Mutex` guards what both use.
final class MessageSink: FrameSink, FramePort, @unchecked Sendable {  // SAFETY: see the concurrency model.
    let eventLoop: any EventLoop
    private var decoder = LinkFrameDecoder(lengthMax: MediaFrame.payloadByteCountMax + MediaHeader.byteCount + 64)
    private let state = Mutex(ReceivedFrames())
    /// Called once, with the first frame.
    private var onFirst: (@Sendable (any EventLoop) -> Void)?

    init(_ eventLoop: any EventLoop, onFirst: @escaping @Sendable (any EventLoop) -> Void) {
        (self.eventLoop, self.onFirst) = (eventLoop, onFirst)
    }

    /// Takes what has come in since the last time.
    func take() -> ReceivedFrames {
        state.withLock { frames in
            defer { frames = ReceivedFrames() }
            return frames
        }
    }

    var isWritable: Bool {
        state.withLock { $0.bytes.readableBytes < AnsweringConfiguration.waitingByteCountMax }
    }

    func send(_ bytes: ByteBuffer, now: MonotonicTime) {
        decoder.append(bytes)
        while let frame = try? decoder.next() {
            guard frame.kind == .media, let media = try? MediaFrame(decoding: frame.payload) else { continue }
            state.withLock { $0.add(media.header, frame.payload) }
            onFirst?(eventLoop)
            onFirst = nil
        }
    }

    func streamChanged(_ stream: StreamNumber, to phase: StreamPhase) {
        state.withLock { frames in
            switch phase {
            case .live, .waiting: break
            case .skipped(let count): frames.lost += count
            case .ended: frames.isEnded = true
            }
        }
    }
}
