import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusSessions
import ApusWire
import Foundation
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
            case .play: play(try ClientPlayRequest(bounded: frame.payload), call)
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

    var hasRoomForStream: Bool {
        played.count + published.count < gateway.configuration.streamsPerConnectionMax
    }

    private func respond(_ call: UInt32, _ message: some Message) { send(.response, message, correlation: call) }

    // MARK: - Devices

    private func publish(_ request: ClientPublishRequest, _ call: UInt32) {
        guard request.call.isEmpty else { return publishInCall(request, call) }
        guard let session, let device = session.device else {
            return fail(call, ApusError(.notAllowed, "only a device publishes, and who takes part in a call"))
        }
        guard let source = UInt16(exactly: request.source) else { return fail(call, ApusError(.badParameter)) }
        guard hasRoomForStream else { return fail(call, ApusError(.tooManyStreams)) }
        let channel = ChannelID(device: device, source: source)
        // A resumed session may have been superseded. Until the owner of its identity answers, it continues only the
        // run that it already has, so a failover from a dead node needs no request to the owner. Anything new waits.
        guard isConfirmed || (request.resumes && request.epoch != 0) else { return hold(request, call) }
        publish(channel, of: session.account, request, call, isConfirmed: isConfirmed)
    }

    /// Opens the stream of a client that may publish the channel.
    ///
    /// - Parameter isConfirmed: it may start a new run. Otherwise it continues only the one that it has.
    func publish(
        _ channel: ChannelID, of account: AccountID, _ request: ClientPublishRequest, _ call: UInt32, isConfirmed: Bool
    ) {
        let offer = PublishOffer(
            epoch: request.epoch, instance: request.instance, oldest: request.oldest, resumes: request.resumes,
            isConfirmed: isConfirmed)
        let sink = PublishedSink(
            handler: self, call: call, channel: channel, inCall: request.call, grant: request.grant)
        gateway.service.channels.publish(channel, of: account, offer: offer, sink: sink) { [self] result in
            switch result {
            case .failure where !offer.isConfirmed && request.call.isEmpty: hold(request, call)
            case .failure(let error): fail(call, error)
            case .success(let handle):
                guard session != nil else { return handle.close() }
                let stream = PublishedStream(channel: channel, handle: handle, sink: sink, call: request.call)
                if !offer.isConfirmed, isPublishingConfirmed(request.call) { handle.confirm() }
                published.updateValue(stream, forKey: handle.stream)?.handle.close()
                streamsChanged()
                checkCall(request.call)
            }
        }
    }

    /// Keeps the request until the session is confirmed.
    func hold(_ request: ClientPublishRequest, _ call: UInt32) {
        guard session != nil else { return }
        guard !isConfirmed else { return publish(request, call) }
        guard held.count < gateway.configuration.streamsPerConnectionMax else {
            return fail(call, ApusError(.overloaded, "this connection has too many requests in progress"))
        }
        held.append((request, call))
    }

    /// Notes that the owner of the identity has confirmed this session as the newest, and resumes what waited for that.
    func ownerConfirmed() {
        guard !isConfirmed else { return }
        isConfirmed = true
        for stream in published.values where isPublishingConfirmed(stream.call) { stream.handle.confirm() }
        let waiting = held
        held = []
        for (request, call) in waiting { publish(request, call) }
    }

    private func unpublish(_ request: ClientUnpublishRequest, _ call: UInt32) {
        for (stream, entry) in published where entry.call == request.call {
            if !request.call.isEmpty || UInt32(entry.channel.source) == request.source { forgetPublished(stream) }
        }
        let given = held.filter { $0.0.source == request.source && $0.0.call == request.call }
        held.removeAll { $0.0.source == request.source && $0.0.call == request.call }
        for (_, waiting) in given { fail(waiting, ApusError(.cancelled)) }
        respond(call, ClientUnpublishResponse())
    }

    func streamsChanged() {
        machine.streamsChanged(count: played.count + published.count, now: .now())
        gateway.streamsChanged(self)
        if !published.isEmpty { allowLongFrames() }
        countStreams()
        paceReceiving()
    }

    /// Updates the stream metrics of this connection.
    func countStreams() {
        let now = (played: played.count, published: published.count)
        gateway.service.metrics.streamsChanged(from: counted, to: now)
        counted = now
    }

    func forgetPublished(_ stream: StreamNumber) {
        published.removeValue(forKey: stream)?.handle.close()
        streamsChanged()
    }

    // MARK: - Apps

    private func play(_ request: ClientPlayRequest, _ call: UInt32) {
        guard request.call.isEmpty else { return playInCall(request, call) }
        guard let session, let channel = ChannelID(device: request.device, source: request.source),
            let device = channel.device
        else { return fail(call, ApusError(.badParameter, "the device's id or source is not valid")) }
        guard hasRoomForStream else { return fail(call, ApusError(.tooManyStreams)) }
        let after = request.position
        // A viewer that lost its node presents the grant that it received there, and does not wait for the owner.
        if !request.grant.isEmpty, gateway.service.isGranted(request.grant, session, channel) {
            return start(channel, after: after, call)
        }
        guard openingCount < gateway.configuration.streamsPerConnectionMax else {
            return fail(call, ApusError(.overloaded, "this connection has too many requests in progress"))
        }
        openingCount += 1
        gateway.run { [self] in
            // Recordings show more than the present.
            let result = await gateway.service.sessions.inspect(
                device, for: session, subscribe: false, control: channel.isPlayback)
            eventLoop.execute { [self] in
                openingCount -= 1
                switch result {
                case .failure(let error): fail(call, error)
                case .success: start(channel, after: after, call)
                }
            }
        }
    }

    func start(
        _ channel: ChannelID, after: FramePosition?, _ call: UInt32, inCall name: String = "", grant: Data = Data()
    ) {
        guard let account = session?.account else { return }
        guard !played.values.contains(where: { $0.channel == channel }) else {
            return fail(call, ApusError(.connectionExists, "this connection already plays that channel"))
        }
        // The answer is sent before the first frame: the sink accepts no frame until it is opened.
        let sink = PlayedSink(handler: self, call: call, channel: channel, inCall: name, grant: grant)
        gateway.service.channels.play(channel, of: account, sink: sink, after: after) { [self] result in
            switch result {
            case .failure(let error): fail(call, error)
            case .success(let receipt):
                sink.opened(receipt)
                guard session != nil, let stream = receipt.stream else { return receipt.close() }
                let new = PlayedStream(channel: channel, receipt: receipt, sink: sink, call: name)
                played.updateValue(new, forKey: stream)?.receipt?.close()
                streamsChanged()
                checkCall(name)
            }
        }
    }

    private func stop(_ request: ClientStopRequest, _ call: UInt32) {
        played.removeValue(forKey: request.stream)?.receipt?.close()
        streamsChanged()
        respond(call, ClientStopResponse())
    }
}
