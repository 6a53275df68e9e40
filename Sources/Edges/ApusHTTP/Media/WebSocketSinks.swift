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
    private var lastAcknowledged = MonotonicTime.zero
    private var held: ClientPublishAck?
    private lazy var holdEnd = streams.clock.clock.deadline { [weak self] in
        if let ack = self?.held { self?.acknowledge(ack) }
    }
    /// As at the native edge: an acknowledgement covers all before it, and a frame of audio does not justify one.
    private static let acknowledgeInterval = Duration.milliseconds(30)
    private static let holdMax = Duration.milliseconds(60)

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
        let ack = ClientPublishAck.with { ($0.stream, $0.epoch, $0.next) = (stream, epoch, next) }
        guard MonotonicTime.now() - lastAcknowledged < Self.acknowledgeInterval else { return acknowledge(ack) }
        if held == nil { holdEnd.set(.now() + Self.holdMax) }
        held = ack
    }

    private func acknowledge(_ ack: ClientPublishAck) {
        forgetHeld()
        lastAcknowledged = .now()
        streams.tell("publishAck", ack)
    }

    private func forgetHeld() {
        holdEnd.clear()
        held = nil
    }

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        forgetHeld()
        streams.tell(
            "publishResume", ClientPublishResume.with { ($0.stream, $0.next, $0.epoch) = (stream, next, epoch) })
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        forgetHeld()
        if isAnswered {
            streams.tell("streamState", ClientStreamState(stream, .ended(error)))
        } else {
            isAnswered = true
            streams.fail(request, error)
        }
        streams.forget(stream)
    }
}

extension ClientStreamState {
    fileprivate init(_ stream: StreamNumber, _ phase: StreamPhase) {
        self.init()
        self.stream = stream
        switch phase {
        case .live: state = .live
        case .waiting: state = .waiting
        case .skipped(let count): (state, skipped) = (.skipped, count)
        case .ended(let error): (state, failure) = (.ended, ClientFailure(error))
        }
    }
}
