public import ApusCore
public import ApusMedia
import ApusThreads
import DequeModule
import NIOCore
import Synchronization

/// Decodes what a player receives, and passes it on to what plays and shows it (IV-C10).
///
/// Its decoders are made from the stream's header (IV-C9), and made again where that changes. Frames are rendered when
/// they arrive. A renderer that is too slow loses all frames that wait, once they are more than ``queueCountMax`` or
/// have more than ``queueByteCountMax`` bytes, and goes on with the newest: video with its next key frame.
///
/// Concurrency model: every method may be called from any thread. One thread of its own decodes and renders. It ends
/// with ``finish()``, or when the renderer is released.
public final class MediaRenderer: Sendable {
    /// The most frames that wait.
    public static let queueCountMax = 512
    /// The most payload bytes that wait.
    public static let queueByteCountMax = 32 << 20
    public typealias MakeAudioDecoder =
        @Sendable (TrackConfiguration, _ sampleRate: Int) throws(ApusError) ->
        any AudioDecodable
    public typealias MakeVideoDecoder = @Sendable (TrackConfiguration) throws(ApusError) -> any VideoDecodable

    private let queue: RenderQueue
    private let thread: Mutex<OSThread?>
    private let rendersSound: Bool
    private let rendersPictures: Bool

    /// Makes a renderer and starts its thread.
    ///
    /// - Parameters:
    ///   - audio: nil: sound is ignored.
    ///   - video: nil: pictures are ignored.
    ///   - makeAudioDecoder: replaces the default decoder of sound.
    ///   - makeVideoDecoder: replaces the default decoder of pictures.
    /// - Throws: 10018 if there is no thread.
    public init(
        audio: (any AudioRenderable)?, video: (any VideoRenderable)?, makeAudioDecoder: MakeAudioDecoder? = nil,
        makeVideoDecoder: MakeVideoDecoder? = nil
    ) throws(ApusError) {
        let queue = RenderQueue()
        var (makeAudio, makeVideo): (MakeAudioDecoder, MakeVideoDecoder) = (Self.soundDecoder, Self.pictureDecoder)
        if let makeAudioDecoder { makeAudio = makeAudioDecoder }
        if let makeVideoDecoder { makeVideo = makeVideoDecoder }
        // The thread keeps the queue, not the renderer.
        let started = try OSThread(name: "apus-renderer") { [makeAudio, makeVideo] in
            var stage = RenderStage(
                audio: audio, video: video, makeAudioDecoder: makeAudio, makeVideoDecoder: makeVideo)
            stage.run(queue)
        }
        self.queue = queue
        thread = Mutex(started)
        (rendersSound, rendersPictures) = (audio != nil, video != nil)
    }

    /// Notes its steps in a player's session from now on.
    func observe(_ trace: PlayTrace) {
        trace.change { $0.renders(pictures: rendersPictures, sound: rendersSound) }
        queue.observe(RenderObserver(trace: trace))
    }

    deinit { queue.close() }

    @Sendable private static func soundDecoder(
        _ configuration: TrackConfiguration, _ sampleRate: Int
    ) throws(ApusError) -> any AudioDecodable {
        try SoundDecoder(configuration, sampleRate: sampleRate)
    }

    @Sendable private static func pictureDecoder(
        _ configuration: TrackConfiguration
    ) throws(ApusError) -> any VideoDecodable {
        try PictureDecoder(configuration)
    }

    /// Frames that were dropped because a renderer was too slow.
    public var framesDropped: UInt64 { queue.framesDropped }
    /// The error that ended the rendering: that of a renderer, or 10026 for a codec that this machine cannot decode.
    public var failure: ApusError? { queue.failure }

    /// Adds a frame from a player, including repeated configurations. Returns at once.
    public func render(_ frame: MediaFrame) { queue.append(frame) }

    /// Renders what waits, and ends. Blocks until that is done.
    ///
    /// - Throws: ``failure``, or an error of the renderers' end.
    public func finish() throws(ApusError) {
        queue.close()
        thread.withLock { $0.take() }?.join()
        if let failure { throw failure }
    }
}

/// The frames on their way to the thread of a ``MediaRenderer``.
///
/// Concurrency model: every method may be called from any thread; one takes.
private final class RenderQueue: Sendable {
    private struct State {
        var frames = Deque<MediaFrame>()
        var byteCount = 0
        var isClosed = false
        var framesDropped: UInt64 = 0
        /// Frames were dropped since the last batch.
        var isBroken = false
        var failure: ApusError?
        var observer: RenderObserver?
    }

    private let state = Mutex(State())
    private let signal = Signal()

    var framesDropped: UInt64 { state.withLock { $0.framesDropped } }
    var failure: ApusError? { state.withLock { $0.failure } }

    var observer: RenderObserver? { state.withLock { $0.observer } }
    func observe(_ observer: RenderObserver) { state.withLock { $0.observer = observer } }

    func append(_ frame: MediaFrame) {
        let bytes = frame.payload.readableBytes
        let isTaken = state.withLock { state in
            guard !state.isClosed, state.failure == nil else { return false }
            let isFull =
                state.frames.count >= MediaRenderer.queueCountMax
                || state.byteCount + bytes > MediaRenderer.queueByteCountMax
            if isFull {
                let count = state.frames.count
                state.frames.removeAll { !$0.header.flags.contains(.configuration) }
                // A stream of nothing but configurations has no use for all of them.
                if state.frames.count * 2 > MediaRenderer.queueCountMax { state.frames = [] }
                state.byteCount = state.frames.reduce(0) { $0 + $1.payload.readableBytes }
                state.framesDropped += UInt64(count - state.frames.count)
                state.isBroken = true
            }
            state.frames.append(frame)
            state.byteCount += bytes
            return true
        }
        if isTaken { signal.wake() }
    }

    func close() {
        state.withLock { $0.isClosed = true }
        signal.wake()
    }

    func fail(_ error: ApusError) {
        state.withLock { state in
            (state.failure, state.frames, state.byteCount) = (error, [], 0)
        }
    }

    /// Waits for frames, or for the end.
    func next() -> (frames: Deque<MediaFrame>, isBroken: Bool, isClosed: Bool) {
        signal.wait()
        return state.withLock { state in
            defer { (state.frames, state.byteCount, state.isBroken) = ([], 0, false) }
            return (state.frames, state.isBroken, state.isClosed)
        }
    }
}

/// The decoders and renderers of a ``MediaRenderer``. Confined to its thread.
private struct RenderStage {
    /// The first track of a kind.
    private struct Track<Decoder> {
        var number: UInt8
        /// The run of the publisher.
        var epoch: UInt32
        var configuration: TrackConfiguration
        var decoder: Decoder
    }

    let audio: (any AudioRenderable)?
    let video: (any VideoRenderable)?
    let makeAudioDecoder: MediaRenderer.MakeAudioDecoder
    let makeVideoDecoder: MediaRenderer.MakeVideoDecoder
    private var sound: Track<any AudioDecodable>?
    private var pictures: Track<any VideoDecodable>?
    /// Pictures begin with a key frame.
    private var isWaiting = true
    /// The times of the newest frames that have arrived, by their tracks.
    private var newest: [UInt8: Int64] = [:]
    /// That of the queue when the batch was taken.
    private var observer: RenderObserver?

    init(
        audio: (any AudioRenderable)?, video: (any VideoRenderable)?,
        makeAudioDecoder: @escaping MediaRenderer.MakeAudioDecoder,
        makeVideoDecoder: @escaping MediaRenderer.MakeVideoDecoder
    ) {
        (self.audio, self.video) = (audio, video)
        (self.makeAudioDecoder, self.makeVideoDecoder) = (makeAudioDecoder, makeVideoDecoder)
    }

    mutating func run(_ queue: RenderQueue) {
        var failure: ApusError?
        do throws(ApusError) {
            while try !render(take(from: queue)) {}
            try endSound()
            try endPictures()
        } catch {
            failure = error
        }
        // Each renderer ends, whatever the other one throws.
        do throws(ApusError) { try audio?.finish() } catch { failure = failure ?? error }
        do throws(ApusError) { try video?.finish() } catch { failure = failure ?? error }
        if let failure { queue.fail(failure) }
    }

    private mutating func take(
        from queue: RenderQueue
    ) -> (frames: Deque<MediaFrame>, isBroken: Bool, isClosed: Bool) {
        let batch = queue.next()
        observer = queue.observer
        if batch.isBroken { observer?.dropped(queue.framesDropped) }
        return batch
    }

    /// Returns true at the end.
    private mutating func render(
        _ batch: (frames: Deque<MediaFrame>, isBroken: Bool, isClosed: Bool)
    ) throws(ApusError) -> Bool {
        if batch.isBroken { isWaiting = true }
        if audio?.delayMaxMicroseconds != nil {
            for frame in batch.frames where !frame.header.flags.contains(.configuration) {
                newest[frame.header.track] = frame.header.ptsMicroseconds
            }
        }
        for frame in batch.frames { try render(frame) }
        return batch.isClosed
    }

    /// True for sound that is too far behind what has arrived.
    private func isLate(_ frame: MediaFrame) -> Bool {
        guard let delayMax = audio?.delayMaxMicroseconds, let newest = newest[frame.header.track] else { return false }
        let (delay, isTooLong) = newest.subtractingReportingOverflow(frame.header.ptsMicroseconds)
        return isTooLong ? newest > frame.header.ptsMicroseconds : delay > delayMax
    }

    private mutating func render(_ frame: MediaFrame) throws(ApusError) {
        guard !frame.header.flags.contains(.configuration) else { return try configure(frame) }
        if let video, let pictures, pictures.number == frame.header.track {
            if isWaiting {
                guard frame.header.flags.contains(.key) else { return }
                isWaiting = false
            }
            let shown = try noting(.decoder) { () throws(ApusError) in try pictures.decoder.decode(frame) }
            for picture in shown { try show(picture, on: video) }
        } else if let audio, let sound, sound.number == frame.header.track {
            guard !isLate(frame) else { return }
            let heard = try noting(.decoder) { () throws(ApusError) in try sound.decoder.decode(frame) }
            for samples in heard { try play(samples, on: audio) }
        }
    }

    private func show(_ picture: Picture, on video: any VideoRenderable) throws(ApusError) {
        observer?.decoded(picture.ptsMicroseconds, isPicture: true)
        try noting(.renderer) { () throws(ApusError) in try video.render(picture) }
        observer?.rendered(picture.ptsMicroseconds, isPicture: true)
    }

    private func play(_ samples: SoundSamples, on audio: any AudioRenderable) throws(ApusError) {
        observer?.decoded(samples.ptsMicroseconds, isPicture: false)
        try noting(.renderer) { () throws(ApusError) in try audio.render(samples) }
        observer?.rendered(samples.ptsMicroseconds, isPicture: false)
    }

    /// Passes the error of a part on, and notes it.
    private func noting<Value>(
        _ part: PlaySteps.Part, _ body: () throws(ApusError) -> Value
    ) throws(ApusError) -> Value {
        do throws(ApusError) {
            return try body()
        } catch {
            observer?.failed(part, error)
            throw error
        }
    }

    /// Makes a decoder, and notes whether there is one.
    private func making<Decoder>(
        _ codec: Codec, _ body: () throws(ApusError) -> Decoder
    ) throws(ApusError) -> Decoder {
        do throws(ApusError) {
            let decoder = try body()
            observer?.codecMade()
            observer?.rendererStarted()
            return decoder
        } catch {
            observer?.codecMissing(codec)
            throw error
        }
    }

    private mutating func configure(_ frame: MediaFrame) throws(ApusError) {
        guard let configuration = try? TrackConfiguration(decoding: frame.payload) else { return }
        let (number, epoch) = (frame.header.track, frame.header.position.epoch)
        // A new run of the publisher may have other tracks.
        if configuration.codec.isVideo {
            if sound?.number == number { try endSound() }
            guard video != nil, Self.isWanted(pictures, number, epoch, configuration) else { return }
            try endPictures()
            let decoder = try making(configuration.codec) { () throws(ApusError) in
                try makeVideoDecoder(configuration)
            }
            pictures = Track(number: number, epoch: epoch, configuration: configuration, decoder: decoder)
            isWaiting = true
        } else {
            if pictures?.number == number { try endPictures() }
            guard let audio, Self.isWanted(sound, number, epoch, configuration) else { return }
            try endSound()
            let decoder = try making(configuration.codec) { () throws(ApusError) in
                try makeAudioDecoder(configuration, audio.sampleRate)
            }
            sound = Track(number: number, epoch: epoch, configuration: configuration, decoder: decoder)
        }
    }

    private static func isWanted<Decoder>(
        _ track: Track<Decoder>?, _ number: UInt8, _ epoch: UInt32, _ configuration: TrackConfiguration
    ) -> Bool {
        guard let track else { return true }
        return track.number == number ? track.configuration != configuration : track.epoch != epoch
    }

    private mutating func endSound() throws(ApusError) {
        guard let decoder = sound?.decoder else { return }
        sound = nil
        for samples in try decoder.finish() { try audio?.render(samples) }
    }

    private mutating func endPictures() throws(ApusError) {
        guard let decoder = pictures?.decoder else { return }
        pictures = nil
        guard !isWaiting else { return }
        for picture in try decoder.finish() { try video?.render(picture) }
    }
}
