import ApusChannels
import ApusCore
import ApusMedia
import NIOCore

/// The microphone of an EVS device as a channel: cuts the sound of its sentences into frames, and numbers them.
///
/// Bounded: it keeps the newest ``keptMax`` frames, for a new primary of the channel.
///
/// Concurrency model: confined to the event loop of ``EVSStreams``.
final class EVSMicrophone: PublisherSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    static let sampleRate = 16_000
    static let frameMicroseconds = 20_000
    private static let frameByteCount = 2 * sampleRate * frameMicroseconds / 1_000_000
    /// 25 s: longer than the sound of one sentence.
    private static let keptMax = 1250

    let eventLoop: any EventLoop
    /// The position of the first sound of the sentence with this number.
    private let onBegin: @Sendable (Int, FramePosition) -> Void
    private let onFailure: (StreamNumber, ApusError) -> Void
    /// Nil until the cluster has opened the stream.
    private var run: (epoch: UInt32, first: UInt64)?
    private var handle: PublishHandle?
    private var frames: [MediaFrame] = []
    /// Frames that are not kept any more.
    private var forgottenCount = 0
    /// Frames that were sent.
    private var sentCount = 0
    /// The sentence whose first sound has no position yet, and that sound's index.
    private var beginning: (sentence: Int, index: Int?)?
    private var time: Int64 = 0
    /// Less than a frame.
    private var rest = ByteBuffer()

    init(
        on eventLoop: any EventLoop, onBegin: @escaping @Sendable (Int, FramePosition) -> Void,
        onFailure: @escaping (StreamNumber, ApusError) -> Void
    ) {
        (self.eventLoop, self.onBegin, self.onFailure) = (eventLoop, onBegin, onFailure)
    }

    // MARK: - Sound

    /// A sentence begins.
    func begin(_ sentence: Int) {
        rest = ByteBuffer()
        var configuration = ByteBuffer()
        TrackConfiguration(
            codec: .l16, trackCount: 1, first: UInt32(Self.sampleRate), second: 1,
            third: UInt32(Self.frameByteCount / 2), extraData: []
        ).encode(into: &configuration)
        add([.configuration], configuration)
        beginning = (sentence, nil)
    }

    /// - Parameter sound: little endian, as EVS has it. Frames of the cluster are big endian.
    func add(_ sound: ByteBuffer) {
        rest.writeImmutableBuffer(sound)
        while rest.readableBytes >= Self.frameByteCount {
            var payload = ByteBuffer()
            payload.reserveCapacity(Self.frameByteCount)
            for _ in 0..<Self.frameByteCount / 2 {
                payload.writeInteger(rest.readInteger(endianness: .little, as: Int16.self) ?? 0)
            }
            add([.key], payload)
        }
        rest.discardReadBytes()
    }

    /// A frame of silence.
    func addSilence() { add(ByteBuffer(repeating: 0, count: Self.frameByteCount)) }

    private func add(_ flags: MediaFlags, _ payload: ByteBuffer) {
        let header = MediaHeader(
            position: FramePosition(epoch: 0, sequence: 0), ptsMicroseconds: time, flags: flags)
        if flags.contains(.key) {
            if case (let sentence, nil)? = beginning { beginning = (sentence, forgottenCount + frames.count) }
            time += Int64(Self.frameMicroseconds)
        }
        frames.append(MediaFrame(header: header, payload: payload))
        if frames.count > Self.keptMax {
            frames.removeFirst()
            forgottenCount += 1
        }
        send()
    }

    // MARK: - The channel

    /// The stream is open.
    func opened(_ handle: PublishHandle) {
        self.handle = handle
        send()
    }

    /// Sends what was not sent, once the stream is numbered.
    private func send() {
        guard let run, let handle else { return }
        sentCount = max(sentCount, forgottenCount)
        let new = frames.dropFirst(sentCount - forgottenCount).enumerated().map { offset, frame in
            var frame = frame
            frame.header.position = position(sentCount + offset, run)
            return frame
        }
        sentCount += new.count
        if !new.isEmpty { handle.send(new) }
        if case (let sentence, let index?)? = beginning {
            beginning = nil
            onBegin(sentence, position(index, run))
        }
    }

    private func position(_ index: Int, _ run: (epoch: UInt32, first: UInt64)) -> FramePosition {
        FramePosition(epoch: run.epoch, sequence: run.first + UInt64(index))
    }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        run = (epoch, next)
        send()
    }

    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        guard let run else { return }
        self.run = (epoch, run.first)
        sentCount = Int(clamping: next > run.first ? next - run.first : 0)
        send()
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) { onFailure(stream, error) }
}
