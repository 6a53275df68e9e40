import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusMediaAccess
import ApusSessions
import ApusTracing
import ApusWire
import NIOCore
import SwiftProtobuf

extension ClientHandler {
    /// Answers a request. This protocol answers requests about streams; the services answer all others
    /// (``ApusClientAPI/ClientAPI``).
    func serve(_ frame: LinkFrame) {
        let call = frame.correlation
        var frame = frame
        do throws(ApusError) {
            let trace = try frame.takeTrace()
            let timeLeft = try frame.takeTimeLeft()
            switch ClientMethod(rawValue: frame.method) {
            case .publish: publish(try ClientPublishRequest(bounded: frame.payload), call)
            case .unpublish: unpublish(try ClientUnpublishRequest(bounded: frame.payload), call)
            case .play: play(try ClientPlayRequest(bounded: frame.payload), call, trace)
            case .stop: stop(try ClientStopRequest(bounded: frame.payload), call)
            case .event, .publishAck, .publishResume, .streamState, .endpointsChanged, nil:
                try ask(frame, call, timeLeft, trace)
            }
        } catch {
            fail(call, error)
        }
    }

    private func ask(
        _ frame: LinkFrame, _ call: UInt32, _ timeLeft: Duration?, _ trace: TraceContext?
    ) throws(ApusError) {
        guard let session else { return }
        let clients = gateway.service.clients
        let operation = try clients.api.operation(number: frame.method)
        calls.received(
            call, operation, frame.payload, .binary,
            ClientCall(
                session: session, deadline: clients.deadline(asked: timeLeft), connection: self, trace: trace,
                topics: clients.api.topics))
    }

    /// Sends the answer of ``ClientCalls``.
    func answer(_ call: UInt32, _ result: Result<ByteBuffer, ApusError>) {
        switch result {
        case .success(let payload): write(LinkFrame(kind: .response, correlation: call, payload: payload))
        case .failure(let error): fail(call, error)
        }
    }

    private func respond(_ call: UInt32, _ message: some Message) { send(.response, message, correlation: call) }

    // MARK: - Publishing

    private func publish(_ request: ClientPublishRequest, _ call: UInt32) {
        let target: MediaTarget
        if !request.call.isEmpty {
            guard request.source == ClientPublishRequest.sourceOfCalls else {
                return fail(call, ApusError(.badParameter, "a side of a call has one source"))
            }
            target = .part(.call(CallID(unchecked: request.call)))
        } else {
            guard let source = UInt16(exactly: request.source) else { return fail(call, ApusError(.badParameter)) }
            target = .source(source)
        }
        let grant = Array(request.grant)
        media?.publish(
            PublishAsk(
                target, epoch: request.epoch, instance: request.instance, oldest: request.oldest,
                resumes: request.resumes, grant: grant,
                sink: { [self] in PublishedSink(handler: self, call: call, channel: $0, grant: grant) },
                fail: { [self] in fail(call, $0) }))
    }

    private func unpublish(_ request: ClientUnpublishRequest, _ call: UInt32) {
        if !request.call.isEmpty {
            media?.unpublish(.part(.call(CallID(unchecked: request.call))))
        } else if let source = UInt16(exactly: request.source) {
            media?.unpublish(.source(source))
        }
        respond(call, ClientUnpublishResponse())
    }

    func streamsChanged() {
        machine.streamsChanged(count: media?.streamCount ?? 0, now: .now())
        gateway.streamsChanged(self)
        if media?.published.isEmpty == false { allowLongFrames() }
        countStreams()
        paceReceiving()
    }

    /// Updates the stream metrics of this connection.
    func countStreams() {
        let now = (played: media?.played.count ?? 0, published: media?.published.count ?? 0)
        gateway.service.metrics.streamsChanged(from: counted, to: now)
        counted = now
    }

    // MARK: - Playing

    /// - Parameter trace: a play session of an app is its trace, so that the spans of nodes are found by its id.
    private func play(_ request: ClientPlayRequest, _ call: UInt32, _ trace: TraceContext?) {
        let target: PlayAsk.Target
        if !request.call.isEmpty {
            guard request.device.isEmpty, request.source == 0 else {
                return fail(call, ApusError(.badParameter, "a stream is one of a device or one of a call"))
            }
            target = .part(.call(CallID(unchecked: request.call)))
        } else {
            guard let channel = ChannelID(device: request.device, source: request.source), let device = channel.device
            else { return fail(call, ApusError(.badParameter, "the device's id or source is not valid")) }
            target = .source(channel, of: device)
        }
        let grant = Array(request.grant)
        let span = trace.flatMap {
            gateway.service.clients.tracer?.request("channels.play", of: $0, [LogKey.device: request.device])
        }
        media?.play(
            PlayAsk(
                target, after: request.position, grant: grant,
                sink: { [self] in PlayedSink(handler: self, call: call, channel: $0, grant: grant, span: span) },
                fail: { [self] error in
                    span?.fail(error.code)
                    span?.end()
                    fail(call, error)
                }))
    }

    private func stop(_ request: ClientStopRequest, _ call: UInt32) {
        media?.stop(request.stream)
        respond(call, ClientStopResponse())
    }
}

extension ClientPlayRequest {
    /// The position after which to resume; nil for the live picture.
    fileprivate var position: FramePosition? {
        hasAfter ? FramePosition(epoch: after.epoch, sequence: after.sequence) : nil
    }
}
