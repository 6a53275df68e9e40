import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMedia
import ApusSessions
import ApusWire
import Foundation
import NIOCore

/// Streams of calls (CALL-13): a client publishes its side, and plays the other.
extension ClientHandler {
    func publishInCall(_ request: ClientPublishRequest, _ call: UInt32) {
        guard let session else { return }
        guard hasRoomForStream else { return fail(call, ApusError(.tooManyStreams)) }
        guard request.source == ClientPublishRequest.sourceOfCalls else {
            return fail(call, ApusError(.badParameter, "a side of a call has one source"))
        }
        let name = request.call
        if request.resumes, request.epoch != 0,
            let channel = granted(request.grant, name, isPublished: true), let media = callMedia
        {
            media.resume(name, for: session, on: self, onChange: onChange(of: name))
            return publish(
                channel, of: session.account, request, call, isConfirmed: isPublishingConfirmed(name))
        }
        // A session that was superseded publishes nothing new.
        guard isConfirmed else { return hold(request, call) }
        open(name, call) { [self] right in
            publish(
                ChannelID(call: CallID(unchecked: name), side: right.side), of: session.account, request, call,
                isConfirmed: true)
        }
    }

    func playInCall(_ request: ClientPlayRequest, _ call: UInt32) {
        guard let session else { return }
        guard request.device.isEmpty, request.source == 0 else {
            return fail(call, ApusError(.badParameter, "a stream is one of a device or one of a call"))
        }
        guard hasRoomForStream else { return fail(call, ApusError(.tooManyStreams)) }
        let (name, after) = (request.call, request.position)
        if let channel = granted(request.grant, name, isPublished: false), let media = callMedia {
            media.resume(name, for: session, on: self, onChange: onChange(of: name))
            return start(channel, after: after, call, inCall: name, grant: request.grant)
        }
        open(name, call) { [self] right in
            start(ChannelID(call: CallID(unchecked: name), side: right.side.other), after: after, call, inCall: name)
        }
    }

    /// Ends streams that were opened while the call ended.
    func checkCall(_ name: String) {
        guard !name.isEmpty, !(callMedia?.isOpen(name, on: self) ?? false) else { return }
        changed(name, .ended(ApusError(.callUnknown)))
    }

    /// The grant of a stream of a call: a new one once the call has answered, and until then the one that it has.
    func grant(for channel: ChannelID, of name: String, isPublished: Bool, earlier: Data) -> Data {
        guard let right = callsWithMedia[name], let session else { return earlier }
        return Data(
            gateway.service.sessions.grant(session, call: channel, isPublished: isPublished, peer: right.peer))
    }

    /// True if a stream may start a new run.
    func isPublishingConfirmed(_ name: String) -> Bool {
        isConfirmed && (name.isEmpty || callsWithMedia[name] != nil)
    }

    private var callMedia: (any CallMedia)? { gateway.service.clients.callMedia }

    /// Asks the call, and opens the stream if it permits that.
    private func open(_ name: String, _ call: UInt32, _ body: @escaping (CallMediaRight) -> Void) {
        guard let session, let media = callMedia else {
            return fail(call, ApusError(.notAllowed, "this node has no calls"))
        }
        guard openingCount < gateway.configuration.streamsPerConnectionMax else {
            return fail(call, ApusError(.overloaded, "this connection has too many requests in progress"))
        }
        openingCount += 1
        let body = NIOLoopBound(body, eventLoop: eventLoop)
        gateway.run { [self] in
            let result: Result<CallMediaRight, ApusError>
            do throws(ApusError) {
                result = .success(try await media.open(name, for: session, on: self, onChange: onChange(of: name)))
            } catch {
                result = .failure(error)
            }
            eventLoop.execute { [self] in
                openingCount -= 1
                switch result {
                case .failure(let error): fail(call, error)
                case .success(let right):
                    guard self.session != nil else { return }
                    guard media.isOpen(name, on: self) else { return fail(call, ApusError(.callUnknown)) }
                    callsWithMedia[name] = right
                    body.value(right)
                }
            }
        }
    }

    /// The channel of the call that the grant permits to publish, or to play; nil if it permits none.
    private func granted(_ grant: Data, _ name: String, isPublished: Bool) -> ChannelID? {
        guard let session, !grant.isEmpty else { return nil }
        return ChannelSide.allCases.lazy.map { ChannelID(call: CallID(unchecked: name), side: $0) }.first { channel in
            gateway.service.sessions.isGranted(Array(grant), session, call: channel, isPublished: isPublished)
        }
    }

    private func onChange(of name: String) -> @Sendable (CallMediaChange) -> Void {
        { [weak self, eventLoop] change in
            eventLoop.execute { [weak self] in self?.changed(name, change) }
        }
    }

    private func changed(_ name: String, _ change: CallMediaChange) {
        guard session != nil else { return }
        switch change {
        case .confirmed(let right):
            guard callMedia?.isOpen(name, on: self) ?? false else { return }
            callsWithMedia[name] = right
            for stream in published.values where stream.call == name && isPublishingConfirmed(name) {
                stream.handle.confirm()
            }
        case .ended(let error):
            callsWithMedia[name] = nil
            for (number, stream) in published where stream.call == name { stream.sink.publishFailed(number, error) }
            for (number, stream) in played where stream.call == name {
                played.removeValue(forKey: number)?.receipt?.close()
                stream.sink.streamChanged(number, to: .ended(error))
            }
            streamsChanged()
        }
    }
}

extension ClientPlayRequest {
    /// The position after which to resume; nil for the live picture.
    var position: FramePosition? {
        hasAfter ? FramePosition(epoch: after.epoch, sequence: after.sequence) : nil
    }
}
