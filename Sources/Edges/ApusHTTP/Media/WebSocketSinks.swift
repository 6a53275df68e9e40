import ApusChannels
import ApusContract
import ApusCore
import ApusMediaAccess
import ApusTransport
import Foundation
import NIOCore
import SwiftProtobuf

/// The viewer's end of one channel at a WebSocket. Confined to the connection's event loop.
final class WebSocketPlayer: PlayerSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    /// Until the stream ends, the two refer to each other.
    private let streams: WebSocketStreams
    private let request: UInt32
    private let channel: ChannelID
    /// The grant that the client has presented.
    private let grant: [UInt8]

    init(_ streams: WebSocketStreams, _ request: UInt32, channel: ChannelID, grant: [UInt8]) {
        (self.streams, self.request, self.channel, self.grant) = (streams, request, channel, grant)
    }

    var eventLoop: any EventLoop { streams.eventLoop }
    var output: FrameOutput { .bytes(streams.port) }

    func opened(_ receipt: Receipt) {
        guard let stream = receipt.stream else { return }
        streams.respond(
            request,
            ClientPlayResponse.with {
                $0.stream = stream
                $0.endpoints = streams.media.endpoints(of: channel)
                $0.grant = Data(streams.grant(for: channel, isPublished: false, earlier: grant))
            })
        receipt.open()
    }

    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {
        streams.tell("streamState", ClientStreamState(stream, state))
    }
}

/// The publisher's end of one channel at a WebSocket. Confined to the connection's event loop.
final class WebSocketPublisher: PublisherSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let streams: WebSocketStreams
    private let request: UInt32
    private let channel: ChannelID
    private let grant: [UInt8]
    private var isAnswered = false
    private lazy var acknowledgements = AcknowledgementHold(streams.clock.clock) { [unowned self] in
        streams.tell("publishAck", $0)
    }

    init(_ streams: WebSocketStreams, _ request: UInt32, channel: ChannelID, grant: [UInt8]) {
        (self.streams, self.request, self.channel, self.grant) = (streams, request, channel, grant)
    }

    var eventLoop: any EventLoop { streams.eventLoop }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        isAnswered = true
        streams.respond(
            request,
            ClientPublishResponse.with {
                ($0.stream, $0.next, $0.epoch, $0.protected) = (stream, next, epoch, isProtected)
                $0.grant = Data(streams.grant(for: channel, isPublished: true, earlier: grant))
            })
    }

    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        acknowledgements.acknowledged(stream, epoch: epoch, next: next)
    }

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        acknowledgements.clear()
        streams.tell(
            "publishResume", ClientPublishResume.with { ($0.stream, $0.next, $0.epoch) = (stream, next, epoch) })
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        acknowledgements.clear()
        if isAnswered {
            streams.tell("streamState", ClientStreamState(stream, .ended(error)))
        } else {
            isAnswered = true
            streams.fail(request, error)
        }
        streams.forget(stream)
    }
}
