import ApusChannels
import ApusClientAPI
import ApusCore
import ApusMedia
import ApusMediaAccess
import ApusSessions
import NIOCore
import Synchronization

/// The sound of one EVS connection: its sentences go to the microphone's channel, and the replies to ``EVSReplies``.
///
/// Concurrency model: confined to the WebSocket's event loop. The channels are on another one, that of ``EVSStreams``.
final class EVSSound {
    private let streams: EVSStreams
    private let replies: EVSReplies
    private let account: AccountID
    /// The reply that is expected or arrives.
    private var reply = EVSReply()

    init(_ streams: EVSStreams, replies: EVSReplies, of account: AccountID) {
        (self.streams, self.replies, self.account) = (streams, replies, account)
    }

    /// A sentence begins.
    func begin(_ sentence: Int) {
        let reply = EVSReply()
        self.reply = reply
        streams.run { $0.begin(sentence, reply) }
    }

    func add(_ sound: ByteBuffer) { streams.run { $0.add(sound) } }

    /// Silence follows, until ``end()``.
    func addSilence() { streams.run { $0.addSilence() } }

    /// The sentence is over.
    func end() { streams.run { $0.end() } }

    /// The address of the reply that an answer announces, behind the node's own.
    func address(milliseconds: Int) -> String {
        reply.announce(milliseconds: milliseconds)
        return EVSReplies.path + replies.keep(reply, of: account)
    }

    func sessionConfirmed() { streams.run { $0.sessionConfirmed() } }

    /// The connection is closed.
    func closed() { streams.run { $0.closed() } }
}

/// The two channels of an EVS connection, through ``ApusMediaAccess/MediaClient`` as at every edge: the device's
/// microphone is published, and the channel of the replies is played.
///
/// Channels are used on the node's event loops, and the HTTP listener has others. So this is the connection that the
/// media sees.
///
/// Concurrency model: confined to `eventLoop`, except ``run(_:)`` and `isClosed`.
final class EVSStreams: ClientConnection, @unchecked Sendable {  // SAFETY: confined to the event loop.
    /// The microphone, and the replies.
    private static let streamsMax = 2

    let eventLoop: any EventLoop
    private let device: DeviceID
    private let onBegin: @Sendable (Int, FramePosition) -> Void
    private let onFailure: @Sendable (ApusError) -> Void
    private var media: MediaClient?
    private var microphone: EVSMicrophone?
    private var reply = EVSReply()
    private var silence: RepeatedTask?
    private var isPublishing = false
    private var isPlaying = false
    private let hasEnded = Atomic(false)

    /// - Parameters:
    ///   - eventLoop: one of the node's channels.
    ///   - isConfirmed: as of ``ApusMediaAccess/MediaClient``.
    ///   - spawn: runs work that waits for other nodes.
    ///   - onBegin: the first sound of a sentence has its position.
    ///   - onFailure: the microphone's channel is not open any more.
    init(
        _ access: MediaAccess, _ session: Session, of device: DeviceID, on eventLoop: any EventLoop, isConfirmed: Bool,
        spawn: @escaping @Sendable (@escaping @Sendable () async -> Void) -> Void,
        onBegin: @escaping @Sendable (Int, FramePosition) -> Void, onFailure: @escaping @Sendable (ApusError) -> Void
    ) {
        (self.eventLoop, self.device) = (eventLoop, device)
        (self.onBegin, self.onFailure) = (onBegin, onFailure)
        run { streams in
            streams.media = MediaClient(
                access, session, on: streams, isConfirmed: isConfirmed, streamsMax: Self.streamsMax, spawn: spawn,
                onStreams: { [weak streams] in streams?.streamsChanged() })
        }
    }

    /// Does something on the event loop, in order.
    func run(_ body: @escaping @Sendable (EVSStreams) -> Void) { eventLoop.execute { [self] in body(self) } }

    // MARK: - The microphone

    func begin(_ sentence: Int, _ reply: EVSReply) {
        end()
        self.reply = reply
        if !isPlaying { play() }
        if !isPublishing { publish() }
        microphone?.begin(sentence)
    }

    func add(_ sound: ByteBuffer) { microphone?.add(sound) }

    func addSilence() {
        guard silence == nil, media != nil else { return }
        let bound = NIOLoopBound(self, eventLoop: eventLoop)
        let interval = TimeAmount.microseconds(Int64(EVSMicrophone.frameMicroseconds))
        silence = eventLoop.scheduleRepeatedTask(initialDelay: interval, delay: interval) { _ in
            bound.value.microphone?.addSilence()
        }
    }

    func end() {
        silence?.cancel()
        silence = nil
    }

    private func publish() {
        let microphone = EVSMicrophone(on: eventLoop, onBegin: onBegin) { [weak self] stream, error in
            self?.media?.forget(stream)
            self?.failed(error)
        }
        (self.microphone, isPublishing) = (microphone, true)
        media?.publish(
            PublishAsk(
                .source(ChannelID(microphoneOf: device).source), epoch: 0, instance: .random(in: 1 ... .max), oldest: 0,
                resumes: false, grant: [], sink: { _ in microphone }, fail: { [weak self] in self?.failed($0) }))
    }

    private func failed(_ error: ApusError) {
        (microphone, isPublishing) = (nil, false)
        end()
        onFailure(error)
    }

    private func streamsChanged() {
        guard let microphone, let published = media?.published.values.first else { return }
        microphone.opened(published.handle)
    }

    // MARK: - The replies

    private func play() {
        isPlaying = true
        let channel = ChannelID(replyTo: device)
        let sink = Player(eventLoop) { [weak self] frame in
            self?.received(frame)
        } onEnd: { [weak self] in
            self?.isPlaying = false
        }
        media?.play(
            PlayAsk(
                .source(channel, of: device), after: nil, grant: [], sink: { _ in sink },
                fail: { [weak self] _ in self?.isPlaying = false }))
    }

    private func received(_ frame: RelayFrame) {
        if frame.flags.contains(.configuration) {
            // A repeated one is of a reply that has begun already.
            guard !frame.flags.contains(.repeated), let track = try? TrackConfiguration(decoding: frame.payload),
                track.codec == .l16
            else { return }
            return reply.began(rate: Int(track.sampleRate))
        }
        if frame.payload.readableBytes > 0 { reply.add(frame.payload) }
        if frame.flags.contains(.endOfEpoch) { reply.end() }
    }

    /// Receives the frames of the replies.
    private final class Player: PlayerSink, FrameReceiver, @unchecked Sendable {  // SAFETY: as its owner.
        let eventLoop: any EventLoop
        private let onFrame: (RelayFrame) -> Void
        private let onEnd: () -> Void

        init(_ eventLoop: any EventLoop, onFrame: @escaping (RelayFrame) -> Void, onEnd: @escaping () -> Void) {
            (self.eventLoop, self.onFrame, self.onEnd) = (eventLoop, onFrame, onEnd)
        }

        var need: ReceiverNeed { .recorder }
        var isWritable: Bool { true }

        func opened(_ receipt: Receipt) { receipt.open() }

        func receive(_ batch: FanOutStateMachine.FrameBatch, now: MonotonicTime) {
            for frame in batch.frames { onFrame(frame) }
        }

        func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {
            if case .ended = state { onEnd() }
        }
    }

    // MARK: - The session

    func sessionConfirmed() { media?.sessionConfirmed() }

    func closed() {
        end()
        media?.closed()
        (media, microphone) = (nil, nil)
        hasEnded.store(true, ordering: .releasing)
    }

    // MARK: - ClientConnection: the WebSocket has the events

    var protocolName: String { "evs" }
    var isClosed: Bool { hasEnded.load(ordering: .acquiring) }
    func received(_ event: ClientEventFrame) {}
    func begin(_ topic: String, at position: TopicPosition?) {}
}
