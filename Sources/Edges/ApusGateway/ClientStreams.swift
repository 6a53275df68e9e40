import ApusChannels
import ApusContract
import ApusCore
import ApusMediaAccess
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

    init(handler: ClientHandler, call: UInt32, channel: ChannelID, grant: [UInt8]) {
        self.handler = handler
        self.call = call
        self.channel = channel
        self.grant = grant
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
        receipt.open()
    }

    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {
        handler.send(
            .tell,
            ClientStreamState.with {
                $0.stream = stream
                switch state {
                case .live: $0.state = .live
                case .waiting: $0.state = .waiting
                case .skipped(let count):
                    $0.state = .skipped
                    $0.skipped = count
                case .ended(let error):
                    $0.state = .ended
                    $0.failure = ClientFailure(error)
                }
            }, method: ClientMethod.streamState.rawValue)
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
    private var lastAcknowledged = MonotonicTime.zero
    /// The acknowledgement that is held back for the next one.
    private var held: ClientPublishAck?
    /// The time at which the held acknowledgement is sent anyway.
    private lazy var holdEnd = handler.gateway.clock.deadline { [weak self] in
        if let ack = self?.held { self?.acknowledge(ack) }
    }
    /// The shortest interval between acknowledgements. Each one covers all before it, and a frame of audio does not
    /// justify one.
    private static let acknowledgeInterval = Duration.milliseconds(30)
    /// How long an acknowledgement is held. Longer than the interval of video frames, so that the next one replaces it.
    private static let holdMax = Duration.milliseconds(60)

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
        let ack = ClientPublishAck.with {
            $0.stream = stream
            $0.epoch = epoch
            $0.next = next
        }
        guard MonotonicTime.now() - lastAcknowledged < Self.acknowledgeInterval else { return acknowledge(ack) }
        if held == nil { holdEnd.set(.now() + Self.holdMax) }
        held = ack
    }

    private func acknowledge(_ ack: ClientPublishAck) {
        forgetHeld()
        lastAcknowledged = .now()
        handler.send(.tell, ack, method: ClientMethod.publishAck.rawValue)
    }

    private func forgetHeld() {
        holdEnd.clear()
        held = nil
    }

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        forgetHeld()
        handler.send(
            .tell,
            ClientPublishResume.with {
                $0.stream = stream
                $0.next = next
                $0.epoch = epoch
            }, method: ClientMethod.publishResume.rawValue)
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        forgetHeld()
        if isAnswered {
            handler.send(
                .tell,
                ClientStreamState.with {
                    $0.stream = stream
                    $0.state = .ended
                    $0.failure = ClientFailure(error)
                }, method: ClientMethod.streamState.rawValue)
        } else {
            isAnswered = true
            handler.fail(call, error)
        }
        handler.media?.forget(stream)
    }
}
