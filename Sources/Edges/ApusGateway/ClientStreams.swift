import ApusChannels
import ApusContract
import ApusCore
import ApusMediaAccess
import ApusTracing
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf

/// The viewer's end of one channel at a connection. Confined to the connection's event loop.
final class PlayedSink: PlayerSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let handler: ClientHandler
    private let call: UInt32
    private let channel: ChannelID
    /// The grant that the client has presented.
    private let grant: [UInt8]

    /// That of the request; nil if it is not traced.
    private let span: TraceSpan?

    init(handler: ClientHandler, call: UInt32, channel: ChannelID, grant: [UInt8], span: TraceSpan?) {
        self.handler = handler
        self.call = call
        self.channel = channel
        self.grant = grant
        self.span = span
    }

    var eventLoop: any EventLoop { handler.eventLoop }
    var output: FrameOutput { .bytes(handler.endpoint) }

    /// Answers the request, then accepts frames from the fan-out.
    func opened(_ receipt: Receipt) {
        guard let stream = receipt.stream else { return }
        handler.send(
            .response,
            ClientPlayResponse.with {
                $0.stream = stream
                $0.endpoints = handler.gateway.service.endpoints(of: channel)
                $0.grant = handler.grant(for: channel, isPublished: false, earlier: grant)
            }, correlation: call)
        span?.end()
        receipt.open()
    }

    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {
        handler.send(
            .tell, ClientStreamState(stream, state), method: ClientMethod.streamState.rawValue)
    }
}

/// The publisher's end of one channel at a connection. Confined to the connection's event loop.
final class PublishedSink: PublisherSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let handler: ClientHandler
    private let call: UInt32
    private let channel: ChannelID
    /// The grant that the client has presented.
    private let grant: [UInt8]
    private var isAnswered = false
    private lazy var acknowledgements = AcknowledgementHold(handler.gateway.clock) { [unowned self] in
        handler.send(.tell, $0, method: ClientMethod.publishAck.rawValue)
    }

    init(handler: ClientHandler, call: UInt32, channel: ChannelID, grant: [UInt8]) {
        self.handler = handler
        self.call = call
        self.channel = channel
        self.grant = grant
    }

    var eventLoop: any EventLoop { handler.eventLoop }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        isAnswered = true
        handler.send(
            .response,
            ClientPublishResponse.with {
                $0.grant = handler.grant(for: channel, isPublished: true, earlier: grant)
                $0.stream = stream
                $0.next = next
                $0.protected = isProtected
                $0.epoch = epoch
            }, correlation: call)
    }

    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        acknowledgements.acknowledged(stream, epoch: epoch, next: next)
    }

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        acknowledgements.clear()
        handler.send(
            .tell,
            ClientPublishResume.with {
                $0.stream = stream
                $0.next = next
                $0.epoch = epoch
            }, method: ClientMethod.publishResume.rawValue)
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        acknowledgements.clear()
        if isAnswered {
            handler.send(
                .tell, ClientStreamState(stream, .ended(error)), method: ClientMethod.streamState.rawValue)
        } else {
            isAnswered = true
            handler.fail(call, error)
        }
        handler.media?.forget(stream)
    }
}
