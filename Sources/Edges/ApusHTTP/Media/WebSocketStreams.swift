import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusMediaAccess
import ApusSessions
import ApusWire
import NIOCore
import SwiftProtobuf

/// The streams of a WebSocket's client: requests and states in texts, frames in binary messages, unchanged
/// (docs/media-over-websocket.md).
///
/// Concurrency model: confined to the connection's event loop, which is one of the channels.
final class WebSocketStreams {
    /// The requests about streams, by their names.
    enum Request: String {
        case play = "streams.play"
        case stop = "streams.stop"
        case publish = "streams.publish"
        case unpublish = "streams.unpublish"
    }

    let media: HTTPMedia
    let port: WebSocketPort
    let clock: WebSocketLoop
    private let bounds: WebSocketBounds
    private let session: Session
    /// Until it is closed, the two refer to each other. A publisher may be reached a little longer.
    private let connection: WebSocketConnection
    private let answer: (UInt32, Result<ByteBuffer, ApusError>) -> Void
    private lazy var client = MediaClient(
        media.access, session, on: connection, isConfirmed: connection.isConfirmed, streamsMax: media.streamsMax,
        spawn: { [connection] in connection.spawn($0) }, onStreams: { [weak self] in self?.streamsChanged() })

    private static let requestByteCountMax = 16 << 10

    /// - Parameter answer: sends the answer to the request of this number.
    init(
        _ media: HTTPMedia, _ session: Session, on connection: WebSocketConnection, _ place: WebSocketPlace,
        answer: @escaping (UInt32, Result<ByteBuffer, ApusError>) -> Void
    ) {
        (self.media, self.session, self.connection, self.answer) = (media, session, connection, answer)
        (port, clock, bounds) = (place.port, place.loop, place.bounds)
    }

    // MARK: - Requests

    /// - Throws: 10001 for a body that is not the request's message.
    func serve(_ request: Request, _ id: UInt32, _ body: String) throws(ApusError) {
        switch request {
        case .play: play(try Self.read(body), id)
        case .publish: publish(try Self.read(body), id)
        case .stop:
            let stop: ClientStopRequest = try Self.read(body)
            client.stop(stop.stream)
            respond(id, ClientStopResponse())
        case .unpublish:
            let request: ClientUnpublishRequest = try Self.read(body)
            if !request.call.isEmpty {
                client.unpublish(.part(.call(CallID(unchecked: request.call))))
            } else if let source = UInt16(exactly: request.source) {
                client.unpublish(.source(source))
            }
            respond(id, ClientUnpublishResponse())
        }
    }

    private static func read<M: BoundedMessage>(_ body: String) throws(ApusError) -> M {
        guard body.utf8.count <= requestByteCountMax else { throw ApusError(.frameTooLarge) }
        guard let message = body.isEmpty ? M() : try? M(jsonString: body), message.isWithinBounds else {
            throw ApusError(.malformed, "the request cannot be read")
        }
        return message
    }

    private func play(_ request: ClientPlayRequest, _ id: UInt32) {
        let target: PlayAsk.Target
        if !request.call.isEmpty {
            guard request.device.isEmpty, request.source == 0 else {
                return fail(id, ApusError(.badParameter, "a stream is one of a device or one of a call"))
            }
            target = .part(.call(CallID(unchecked: request.call)))
        } else {
            guard let channel = ChannelID(device: request.device, source: request.source), let device = channel.device
            else { return fail(id, ApusError(.badParameter, "the device's id or source is not valid")) }
            target = .source(channel, of: device)
        }
        let grant = Array(request.grant)
        let after =
            request.hasAfter ? FramePosition(epoch: request.after.epoch, sequence: request.after.sequence) : nil
        let bound = NIOLoopBound(self, eventLoop: connection.eventLoop)
        client.play(
            PlayAsk(
                target, after: after, grant: grant,
                sink: { WebSocketPlayer(bound.value, id, channel: $0, grant: grant) },
                fail: { bound.value.fail(id, $0) }))
    }

    private func publish(_ request: ClientPublishRequest, _ id: UInt32) {
        let target: MediaTarget
        if !request.call.isEmpty {
            guard request.source == ClientPublishRequest.sourceOfCalls else {
                return fail(id, ApusError(.badParameter, "a side of a call has one source"))
            }
            target = .part(.call(CallID(unchecked: request.call)))
        } else {
            guard let source = UInt16(exactly: request.source) else { return fail(id, ApusError(.badParameter)) }
            target = .source(source)
        }
        let grant = Array(request.grant)
        let bound = NIOLoopBound(self, eventLoop: connection.eventLoop)
        client.publish(
            PublishAsk(
                target, epoch: request.epoch, instance: request.instance, oldest: request.oldest,
                resumes: request.resumes, grant: grant,
                sink: { WebSocketPublisher(bound.value, id, channel: $0, grant: grant) },
                fail: { bound.value.fail(id, $0) }))
    }

    private func streamsChanged() {
        port.setStreams(isStreaming: client.streamCount > 0, isPlaying: !client.played.isEmpty)
        // This stays so when the stream ends: what its client has sent before it receives that is no violation.
        if !client.published.isEmpty { bounds.binaryByteCountMax = media.messageByteCountMax }
        media.count(played: client.played.count, published: client.published.count, &counted)
    }
    private var counted = (played: 0, published: 0)

    // MARK: - Frames of the client

    /// - Throws: 10001 for a message that is not whole media frames, 10002 for a frame that is too long.
    func received(_ bytes: ByteBuffer) throws(ApusError) {
        var decoder = LinkFrameDecoder(lengthMax: media.messageByteCountMax)
        decoder.append(bytes)
        var batches: [(stream: StreamNumber, frames: [RelayFrame])] = []
        while let frame = try decoder.next() {
            guard frame.kind == .media else { throw ApusError(.malformed, "a binary message has media frames alone") }
            // It ended, or was never one of this client.
            guard client.published[frame.correlation] != nil else { continue }
            let relayed = try RelayFrame(copying: frame.payload) { byteCount, buffer in
                LinkFrame.encodeHeader(
                    kind: .media, correlation: frame.correlation, payloadByteCount: byteCount, into: &buffer)
            }
            guard !relayed.flags.contains(.repeated) else {
                throw ApusError(.malformed, "a publisher must not mark a frame as repeated")
            }
            if let last = batches.indices.last, batches[last].stream == frame.correlation {
                batches[last].frames.append(relayed)
            } else {
                batches.append((frame.correlation, [relayed]))
            }
        }
        guard decoder.bufferedByteCount == 0 else {
            throw ApusError(.malformed, "a binary message ends at the end of a frame")
        }
        for batch in batches { client.published[batch.stream]?.handle.send(batch.frames) }
    }

    // MARK: - The connection

    var eventLoop: any EventLoop { connection.eventLoop }

    func becameWritable() { client.becameWritable() }

    func sessionConfirmed() { client.sessionConfirmed() }

    func closed() {
        client.closed()
        media.count(played: 0, published: 0, &counted)
    }

    func forget(_ stream: StreamNumber) { client.forget(stream) }

    func grant(for channel: ChannelID, isPublished: Bool, earlier: [UInt8]) -> [UInt8] {
        client.grant(for: channel, isPublished: isPublished, earlier: earlier)
    }

    // MARK: - Texts

    func respond(_ id: UInt32, _ message: some Message) {
        do {
            answer(id, .success(ByteBuffer(bytes: try message.jsonUTF8Bytes(options: clientJSON) as [UInt8])))
        } catch {
            fail(id, ApusError(.internalFailure, "an answer cannot be encoded"))
        }
    }

    func fail(_ id: UInt32, _ error: ApusError) { answer(id, .failure(error)) }

    /// Sends a message without an answer, under its name.
    func tell(_ name: String, _ message: some Message) {
        guard let text = try? message.jsonString(options: clientJSON) else { return }
        connection.write("{\"\(name)\":\(text)}")
    }
}
