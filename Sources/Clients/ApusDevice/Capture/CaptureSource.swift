import ApusClient
public import ApusCore
public import ApusMedia
import DequeModule
import Synchronization

/// Captured sound and pictures, encoded: a camera, a microphone, or an app's own (IV-C7, IV-C8, IV-C10).
///
/// Sound is AAC unless `sound` says otherwise, pictures are H.264. Either can be left out, and the encoders can be
/// replaced. Sound before the first picture is not sent, because the header of the stream says the size of the
/// pictures.
///
/// Concurrency model: see ``MediaSource``. Each capture encodes on its own thread. Events are delivered one at a time,
/// by whichever of the two threads is first, and no lock is held meanwhile.
public final class CaptureSource: MediaSource {
    public typealias MakeAudioEncoder = @Sendable () throws(ApusError) -> any AudioEncodable
    /// Receives the first picture.
    public typealias MakeVideoEncoder = @Sendable (Picture) throws(ApusError) -> any VideoEncodable

    /// The most events that wait while `deliver` blocks. One more ends the source with 10007.
    public static let queueCountMax = 1_024

    private struct State {
        var deliver: (@Sendable (SourceEvent) -> Void)?
        var queue = Deque<SourceEvent>()
        /// True while a thread delivers.
        var isDelivering = false
        var isStarted = false
        /// Captures that have not ended.
        var running = 0
        var start = MonotonicTime.now()
        /// The header of the sound.
        var audio: TrackConfiguration?
        /// The number of the sound's track, once every configuration was delivered.
        var audioTrack: UInt8?
    }

    /// What one capture's thread uses.
    private struct Side<Encoder> {
        var encoder: Encoder?
        /// The time of the capture's start on the source's line, in microseconds; nil before its first event.
        var offset: Int64?
    }

    private let video: (any VideoCapturable)?
    private let audio: (any AudioCapturable)?
    private let sound: SoundEncoding
    private let makeAudioEncoder: MakeAudioEncoder?
    private let makeVideoEncoder: MakeVideoEncoder?
    private let state = Mutex(State())
    private let pictures = Confined(Side<any VideoEncodable>())
    private let sounds = Confined(Side<any AudioEncodable>())

    /// - Parameters:
    ///   - video: nil for sound alone.
    ///   - audio: nil for pictures alone.
    ///   - sound: how sound is encoded by the default encoder.
    ///   - makeAudioEncoder: nil for ``SoundEncoder``.
    ///   - makeVideoEncoder: nil for ``PictureEncoder`` with the picture's size and 25 pictures a second.
    /// - Throws: 10022 if both are nil.
    public init(
        video: (any VideoCapturable)? = nil, audio: (any AudioCapturable)? = nil, sound: SoundEncoding = .standard,
        makeAudioEncoder: MakeAudioEncoder? = nil, makeVideoEncoder: MakeVideoEncoder? = nil
    ) throws(ApusError) {
        guard video != nil || audio != nil else {
            throw ApusError(.configurationInvalid, "a source needs a capture of pictures or of sound")
        }
        (self.video, self.audio) = (video, audio)
        self.sound = sound
        (self.makeAudioEncoder, self.makeVideoEncoder) = (makeAudioEncoder, makeVideoEncoder)
    }

    public func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void) {
        let isFirst = state.withLock { state in
            guard !state.isStarted else { return false }
            (state.isStarted, state.deliver, state.start) = (true, deliver, .now())
            state.running = (video == nil ? 0 : 1) + (audio == nil ? 0 : 1)
            return true
        }
        guard isFirst else { return }
        LibAV.prepare()
        do throws(ApusError) {
            if audio != nil {
                let encoder = try audioEncoder()
                sounds.value.encoder = encoder
                state.withLock { $0.audio = encoder.configuration }
            }
        } catch {
            return fail(error)
        }
        if video == nil { configure(nil) }
        video?.start { [self] event in
            switch event {
            case .media(let picture): captured(picture)
            case .ended: pictureEnded()
            case .failed(let error): fail(error)
            }
        }
        audio?.start { [self] event in
            switch event {
            case .media(let samples): captured(samples)
            case .ended: soundEnded()
            case .failed(let error): fail(error)
            }
        }
    }

    private func audioEncoder() throws(ApusError) -> any AudioEncodable {
        if let makeAudioEncoder { return try makeAudioEncoder() }
        return try SoundEncoder(sound)
    }

    private func videoEncoder(_ picture: Picture) throws(ApusError) -> any VideoEncodable {
        if let makeVideoEncoder { return try makeVideoEncoder(picture) }
        return try PictureEncoder(PictureEncoding(width: picture.width, height: picture.height))
    }

    public func stop() {
        video?.stop()
        audio?.stop()
    }

    // MARK: - Captures

    private func captured(_ picture: Picture) {
        var picture = picture
        do throws(ApusError) {
            try MediaTime.check(picture.ptsMicroseconds)
            if pictures.value.encoder == nil {
                // An encoder's own start takes time.
                let offset = offset(of: picture.ptsMicroseconds)
                let encoder = try videoEncoder(picture)
                pictures.value = Side(encoder: encoder, offset: offset)
                configure(encoder.configuration)
            }
            picture.ptsMicroseconds += pictures.value.offset ?? 0
            try send(pictures.value.encoder?.encode(picture) ?? [], track: 0)
        } catch {
            fail(error)
        }
    }

    private func captured(_ sound: SoundSamples) {
        var sound = sound
        do throws(ApusError) {
            try MediaTime.check(sound.ptsMicroseconds)
            // A capture delivers samples when it has the last of them.
            let offset = sounds.value.offset ?? offset(of: sound.endMicroseconds)
            sounds.value.offset = offset
            guard let track = state.withLock({ $0.audioTrack }) else { return }
            sound.ptsMicroseconds += offset
            try send(sounds.value.encoder?.encode(sound) ?? [], track: track)
        } catch {
            fail(error)
        }
    }

    /// What is added to a capture's times, so that those of both captures are from one moment: they do not begin at the
    /// same time.
    private func offset(of ptsMicroseconds: Int64) -> Int64 {
        let start = state.withLock { $0.start }
        return max(0, (MonotonicTime.now() - start).nanoseconds / 1000 - ptsMicroseconds)
    }

    private func pictureEnded() {
        do throws(ApusError) {
            try send(pictures.value.encoder?.finish() ?? [], track: 0)
        } catch {
            return fail(error)
        }
        // Sound waits for no picture any more.
        if pictures.value.encoder == nil { configure(nil) }
        ended()
    }

    private func soundEnded() {
        do throws(ApusError) {
            if let track = state.withLock({ $0.audioTrack }) {
                try send(sounds.value.encoder?.finish() ?? [], track: track)
            }
        } catch {
            return fail(error)
        }
        ended()
    }

    // MARK: - Events

    private func configure(_ video: TrackConfiguration?) {
        emit { state in
            guard state.running > 0, state.audioTrack == nil else { return [] }
            let configurations = [video, state.audio].compactMap(\.self)
            state.audioTrack = video == nil ? 0 : 1
            return configurations.enumerated().map { track, configuration in
                var configuration = configuration
                configuration.trackCount = UInt8(configurations.count)
                return .configuration(track: UInt8(track), configuration)
            }
        }
    }

    private func send(_ frames: [EncodedFrame], track: UInt8) {
        guard !frames.isEmpty else { return }
        let isFull = emit { state in
            // Nothing follows the end.
            guard state.running > 0 else { return [] }
            // Where there are no pictures, a receiver can begin with any sound.
            let isStart = state.audioTrack == 0
            return frames.map { frame in
                .frame(
                    track: track, ptsMicroseconds: frame.ptsMicroseconds, dtsDeltaMicroseconds: 0,
                    flags: frame.isKey || isStart ? [.key] : [], payload: frame.payload)
            }
        }
        if isFull { fail(ApusError(.overloaded, "what is captured is not taken in time")) }
    }

    private func ended() {
        emit { state in
            guard state.running > 0 else { return [] }
            state.running -= 1
            return state.running == 0 ? [.ended] : []
        }
    }

    private func fail(_ error: ApusError) {
        emit { state in
            guard state.running > 0 else { return [] }
            state.running = 0
            return [.failed(error)]
        }
        stop()
    }

    /// Delivers events behind those that wait. A thread that finds another one delivering leaves them to it.
    ///
    /// - Returns: true if too many events wait.
    @discardableResult
    private func emit(_ make: (inout State) -> [SourceEvent]) -> Bool {
        let (isMine, isFull) = state.withLock { state in
            let events = make(&state)
            state.queue.append(contentsOf: events)
            defer { state.isDelivering = true }
            return (!state.isDelivering, state.queue.count > Self.queueCountMax)
        }
        guard isMine else { return isFull }
        while true {
            let next = state.withLock { state -> (event: SourceEvent, deliver: @Sendable (SourceEvent) -> Void)? in
                guard let event = state.queue.popFirst(), let deliver = state.deliver else {
                    state.isDelivering = false
                    return nil
                }
                switch event {
                // A capture may keep this source.
                case .ended, .failed: (state.deliver, state.queue) = (nil, [])
                case .configuration, .frame: break
                }
                return (event, deliver)
            }
            guard let next else { return false }
            next.deliver(next.event)
        }
    }
}

/// A value that one thread uses at a time.
private final class Confined<Value>: @unchecked Sendable {  // SAFETY: one thread at a time, by the capture's rule.
    var value: Value

    init(_ value: Value) { self.value = value }
}
