public import ApusClient
public import ApusContract
public import ApusCore
import ApusMedia
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

/// Spoken dialogs of a device (VA-7, docs/voice.md): the cluster hears what a person says to it, and speaks the reply.
///
/// The device publishes its microphone only while it listens. No other client can play what the microphone and the
/// reply's channel carry.
///
/// Concurrency model: may be used from any task; one utterance at a time, and a further one ends the previous one.
/// `onReply` is called on the session's event loop.
public final class SpokenDialog: Sendable {
    /// What arrives of a spoken reply.
    public enum ReplyEvent: Sendable {
        /// A reply begins, with this number of samples a second.
        case began(sampleRate: Int)
        case sound([Int16])
        /// Nothing follows of this reply.
        case ended
    }

    private typealias First = CheckedContinuation<FramePosition?, Never>
    private typealias Asking = Task<Result<ClientListenResponse, ApusError>, Never>

    private struct State {
        /// Grows with each utterance: sound of an earlier one is not sent.
        var utterance = 0
        /// Resumed with the position of the utterance's first sound.
        var first: First?
        /// The request of the utterance. It is cancelled by the next one, by the end, and if the microphone fails.
        var asking: Asking?
        /// Why the utterance's microphone has failed.
        var failure: ApusError?
        var hasEnded = false
        var sampleRate = 0
        /// The utterance that was stopped last. Sound is dropped until a reply to a later one begins.
        var stopped: Int?
        /// True once a reply to the utterance has begun; before that, one to an earlier utterance may continue.
        var hasReply = false
        /// Samples of the reply that have arrived.
        var played = 0
        /// What the cluster was asked to leave out at the beginning of the reply, in milliseconds.
        var skippedMs = 0
        /// The time of the next sample of the microphone, in microseconds.
        var time: Int64 = 0
        /// Of the utterance's first sample.
        var start: Int64 = 0
    }

    /// The microphone's sound: 16,000 samples a second, not compressed.
    public static let sampleRate = 16_000
    private static let frameMicroseconds: Int64 = 20_000
    /// How long the first sound of a microphone may take to be numbered by the cluster.
    private static let startTimeout = Duration.seconds(5)

    private let session: ClientSession
    private let device: DeviceID
    private let state: Box
    private let publisher: Publisher
    private let player: Player

    private final class Box: Sendable {
        let state = Mutex(State())
    }

    /// - Parameter device: the session's device.
    public init(
        session: ClientSession, device: DeviceID, onReply: @escaping @Sendable (ReplyEvent) -> Void = { _ in }
    ) {
        let box = Box()
        (self.session, self.device, state) = (session, device, box)
        publisher = Publisher(
            session: session, source: ClientPublishRequest.microphoneSource,
            onNumbered: { frame in
                guard !frame.header.flags.contains(.configuration) else { return }
                box.state.withLock { state -> First? in
                    // A frame of the utterance before may be numbered late.
                    guard frame.header.ptsMicroseconds >= state.start else { return nil }
                    defer { state.first = nil }
                    return state.first
                }?.resume(returning: frame.header.position)
            })
        player = Player(
            session: session, device: device, source: ClientPlayRequest.replySource, call: "",
            hooks: Player.Hooks(onEndOfRun: { _ in
                if box.state.withLock({ $0.stopped }) == nil { onReply(.ended) }
            }),
            onFrame: { frame in
                if let event = Self.event(frame, box) { onReply(event) }
            }, onEvent: { _ in })
    }

    /// Opens the channels of the microphone and of the reply. Nothing is sent before
    /// ``ask(_:id:language:context:isSilent:timeout:)``.
    public func start() {
        player.start()
        publisher.start()
    }

    /// Closes the channels. A sentence that is being heard ends.
    public func stop() {
        _ = next()
        publisher.stop()
        player.stop()
    }

    /// Ends whatever the dialog does (VA-9): an utterance ends with 10006, and no more sound of the reply comes.
    ///
    /// - Throws: as ``ApusClient/ClientSession/stopDialog(of:)``. The device is silent also then.
    @discardableResult
    public func stopActivity() async throws(ApusError) -> ClientDialog {
        _ = next()
        state.state.withLock { $0.stopped = $0.utterance }
        return try await session.stopDialog(of: device)
    }

    /// Lets the cluster listen to a microphone until the person has ended, and waits for the reply. Its sound comes
    /// with `onReply`, beginning at about the time when this returns.
    ///
    /// - Parameters:
    ///   - microphone: is started, and stopped at the end. Where it ends earlier, silence follows.
    ///   - id: 32 hexadecimal digits: a repetition is answered with the turn that there is. Nil: a random one.
    ///   - language: such as `en` or `zh-CN`; nil: that of the home.
    ///   - context: as in ``ApusClient/ClientSession/sendCustomEvent(_:dialogRequestID:payload:context:)``.
    ///   - isSilent: no spoken reply is wanted.
    ///   - whileSpeaking: a reply is being played, and continues until words are heard. It pauses while the person
    ///     makes a sound: no samples come. If the sound has no words, the response has `replyGoesOn`. The microphone
    ///     should not hear the reply (echo cancellation).
    /// - Returns: what was heard, done and replied. Without a turn if nobody spoke or nothing was understood as words.
    /// - Throws: 21025 if no speech provider hears the language, or the microphone sends nothing; the microphone's
    ///   error if it fails, with an idle dialog (VA-14); 10006 after ``stop()`` or another utterance; 10007 if the node
    ///   listens to too many devices; otherwise as ``ApusClient/ClientSession/say(_:to:language:id:timeout:)``.
    public func ask(
        _ microphone: any AudioCapturable, id: String? = nil, language: String? = nil, context: String = "",
        isSilent: Bool = false, whileSpeaking: Bool = false, timeout: Duration = .seconds(40)
    ) async throws(ApusError) -> ClientListenResponse {
        let source = try CaptureSource(
            audio: microphone, sound: SoundEncoding(codec: .l16, sampleRate: Self.sampleRate))
        let utterance = next()
        defer { source.stop() }
        guard let position = await firstPosition(utterance, { self.begin(source, utterance) }) else {
            let (isMine, failure) = state.state.withLock { ($0.utterance == utterance, $0.failure) }
            guard isMine else { throw ApusError(.cancelled) }
            throw failure ?? ApusError(.unavailable, "the microphone sends nothing, or no node takes it")
        }
        let silence = Task { [weak self] in
            while !Task.isCancelled, let self, try await self.sendSilence(utterance) {}
        }
        defer { silence.cancel() }
        let id = id ?? UUID().uuidString.filter { $0 != "-" }.lowercased()
        let request = ClientListenRequest.with {
            ($0.id, $0.language, $0.context, $0.isSilent) = (id, language ?? "", context, isSilent)
            $0.whileSpeaking = whileSpeaking
            ($0.epoch, $0.sequence) = (position.epoch, position.sequence)
        }
        return try await ended(utterance, of: request, timeout)
    }

    /// Begins an utterance. The one before ends with 10006.
    private func next() -> Int {
        let (utterance, first, asking) = state.state.withLock { state in
            let earlier = (state.first, state.asking)
            state.utterance += 1
            (state.first, state.asking, state.failure, state.hasEnded) = (nil, nil, nil, false)
            (state.start, state.played, state.skippedMs, state.hasReply) = (state.time, 0, 0, false)
            return (state.utterance, earlier.0, earlier.1)
        }
        first?.resume(returning: nil)
        asking?.cancel()
        return utterance
    }

    /// Waits for the answer to the request of an utterance, or for the failure of its microphone.
    private func ended(
        _ utterance: Int, of request: ClientListenRequest, _ timeout: Duration
    ) async throws(ApusError) -> ClientListenResponse {
        let asking = Task { () async -> Result<ClientListenResponse, ApusError> in
            do throws(ApusError) { return .success(try await repeated(request, timeout)) } catch {
                return .failure(error)
            }
        }
        let isOver = state.state.withLock { state in
            guard state.utterance == utterance, state.failure == nil else { return true }
            state.asking = asking
            return false
        }
        if isOver { asking.cancel() }
        let result = await withTaskCancellationHandler {
            await asking.value
        } onCancel: {
            asking.cancel()
        }
        let failure = state.state.withLock { $0.utterance == utterance ? $0.failure : nil }
        guard let failure else { return try result.get() }
        _ = try? await session.stopDialog(of: device)
        throw failure
    }

    /// Asks again at another node where the node of the connection has died: the id makes that harmless. What was
    /// played of the reply is not played again.
    private func repeated(
        _ request: ClientListenRequest, _ timeout: Duration
    ) async throws(ApusError) -> ClientListenResponse {
        let deadline = MonotonicTime.now() + timeout
        var (request, pauses) = (request, Backoff(first: .milliseconds(20), longest: .milliseconds(500)))
        while true {
            let playedMs = state.state.withLock { state in
                state.skippedMs = state.hasReply ? state.played * 1000 / max(1, state.sampleRate) : 0
                return state.skippedMs
            }
            request.playedMs = UInt32(clamping: playedMs)
            do throws(ApusError) {
                return try await session.ask(request, timeout: try deadline.timeLeft())
            } catch {
                guard Self.passing.contains(error.code), (try? await Task.sleep(for: pauses.next())) != nil,
                    MonotonicTime.now() < deadline
                else { throw error }
            }
        }
    }

    /// Errors of a connection that is being replaced.
    private static let passing: [ErrorCode] = [.linkLost, .notConnected, .shuttingDown, .noRoute, .moved]

    /// Reports that the spoken reply of a sentence was played. The dialog is idle then, or listens to the answer to its
    /// question.
    ///
    /// - Throws: as ``ApusClient/ClientSession/ask(_:timeout:)``.
    @discardableResult
    public func replyPlayed(_ id: String) async throws(ApusError) -> ClientDialog {
        try await session.ask(ClientSpokenDialogRequest.with { ($0.id, $0.device) = (id, device.rawValue) })
    }

    // MARK: - Parts

    private func begin(_ source: CaptureSource, _ utterance: Int) {
        source.start { [weak self] event in self?.received(event, utterance) }
    }

    private func firstPosition(_ utterance: Int, _ begin: () -> Void) async -> FramePosition? {
        let timer = Task { [state] in
            try? await Task.sleep(for: Self.startTimeout)
            let waiting = state.state.withLock { state -> First? in
                guard state.utterance == utterance else { return nil }
                defer { state.first = nil }
                return state.first
            }
            waiting?.resume(returning: nil)
        }
        defer { timer.cancel() }
        return await withCheckedContinuation { continuation in
            state.state.withLock { state -> First? in
                defer { state.first = continuation }
                return state.first
            }?.resume(returning: nil)
            begin()
        }
    }

    private func received(_ event: SourceEvent, _ utterance: Int) {
        switch event {
        case .configuration(let track, let configuration):
            var payload = ByteBuffer()
            configuration.encode(into: &payload)
            send(track, .configuration, payload, utterance)
        case .frame(let track, _, _, _, let payload): send(track, .key, payload, utterance)
        case .ended: state.state.withLock { if $0.utterance == utterance { $0.hasEnded = true } }
        case .failed(let error):
            let (first, asking) = state.state.withLock { state in
                guard state.utterance == utterance else { return (nil as First?, nil as Asking?) }
                state.failure = error
                defer { state.first = nil }
                return (state.first, state.asking)
            }
            first?.resume(returning: nil)
            asking?.cancel()
        }
    }

    private func send(_ track: UInt8, _ flags: MediaFlags, _ payload: ByteBuffer, _ utterance: Int) {
        let time: Int64? = state.state.withLock { state in
            guard state.utterance == utterance else { return nil }
            defer {
                if flags == .key {
                    state.time += Int64(payload.readableBytes / 2) * 1_000_000 / Int64(Self.sampleRate)
                }
            }
            return state.time
        }
        guard let time else { return }
        publisher.send(track: track, ptsMicroseconds: time, dtsDeltaMicroseconds: 0, flags: flags, payload: payload)
    }

    /// Silence behind a source that has ended, so that the end of the sentence is found. False if another utterance has
    /// begun.
    private func sendSilence(_ utterance: Int) async throws -> Bool {
        try await Task.sleep(for: .microseconds(Self.frameMicroseconds))
        let (isMine, hasEnded) = state.state.withLock { ($0.utterance == utterance, $0.hasEnded) }
        guard isMine else { return false }
        let count = Self.sampleRate * Int(Self.frameMicroseconds) / 1_000_000
        if hasEnded { send(0, .key, ByteBuffer(repeating: 0, count: 2 * count), utterance) }
        return true
    }

    private static func event(_ frame: MediaFrame, _ box: Box) -> ReplyEvent? {
        box.state.withLock { state -> ReplyEvent? in
            if frame.header.flags.contains(.configuration) {
                guard !frame.header.flags.contains(.repeated),
                    let configuration = try? TrackConfiguration(decoding: frame.payload), configuration.codec == .l16
                else { return nil }
                guard state.stopped != state.utterance else { return nil }
                (state.sampleRate, state.hasReply, state.stopped) = (Int(configuration.sampleRate), true, nil)
                state.played = state.skippedMs * state.sampleRate / 1000
                return .began(sampleRate: state.sampleRate)
            }
            guard state.stopped == nil else { return nil }
            var payload = frame.payload
            var samples: [Int16] = []
            samples.reserveCapacity(payload.readableBytes / 2)
            while let sample = payload.readInteger(as: Int16.self) { samples.append(sample) }
            if state.hasReply { state.played += samples.count }
            return .sound(samples)
        }
    }
}
