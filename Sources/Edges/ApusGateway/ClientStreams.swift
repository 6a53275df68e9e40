import ApusChannels
import ApusContract
import ApusCore
import ApusSessions
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf

/// A channel that a connection plays.
struct PlayedStream {
    var channel: ChannelID
    var receipt: Receipt?
    var sink: PlayedSink
    /// The session id of the call; empty for a device's channel.
    var call: String
}

/// A channel that a connection publishes.
struct PublishedStream {
    var channel: ChannelID
    var handle: PublishHandle
    var sink: PublishedSink
    /// The session id of the call; empty for the device's own channel.
    var call: String
}

/// The viewer's end of one channel at a connection. Confined to the connection's event loop.
final class PlayedSink: FrameSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let handler: ClientHandler
    private let call: UInt32
    private let channel: ChannelID
    /// The session id of the call, and the client's grant; empty for a device's channel.
    private let name: String
    private let grant: Data

    init(handler: ClientHandler, call: UInt32, channel: ChannelID, inCall name: String, grant: Data) {
        self.handler = handler
        self.call = call
        self.channel = channel
        (self.name, self.grant) = (name, grant)
    }

    var eventLoop: any EventLoop { handler.eventLoop }
    var output: FrameOutput { .bytes(handler.endpoint) }

    /// Answers the request, then accepts frames from the fan-out.
    func opened(_ receipt: Receipt) {
        guard let stream = receipt.stream, let session = handler.session else { return }
        let gateway = handler.gateway.service
        handler.send(
            .response,
            ClientPlayResponse.with {
                $0.stream = stream
                $0.endpoints = gateway.endpoints(of: channel)
                $0.grant =
                    name.isEmpty
                    ? Data(gateway.grant(of: channel, session))
                    : handler.grant(for: channel, of: name, isPublished: false, earlier: grant)
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
    /// The session id of the call, and the client's grant; empty for the device's own channel.
    private let name: String
    private let grant: Data
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

    init(handler: ClientHandler, call: UInt32, channel: ChannelID, inCall name: String, grant: Data) {
        self.handler = handler
        self.call = call
        self.channel = channel
        (self.name, self.grant) = (name, grant)
    }

    var eventLoop: any EventLoop { handler.eventLoop }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        isAnswered = true
        handler.send(
            .response,
            ClientPublishResponse.with {
                if !name.isEmpty {
                    $0.grant = handler.grant(for: channel, of: name, isPublished: true, earlier: grant)
                }
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
        handler.forgetPublished(stream)
    }
}

// MARK: - Grants

extension ChannelID {
    /// A playback of what the device has recorded (IV-C5).
    var isPlayback: Bool { source >= ClientPlayRequest.playbackSourceMin }
}

extension Gateway {
    /// What lets a viewer play the channel at another node. That of a playback is for this channel alone: a client that
    /// may only watch the device has no such grant.
    func grant(of channel: ChannelID, _ session: Session) -> [UInt8] {
        guard let device = channel.device else { return [] }
        return channel.isPlayback
            ? sessions.grant(session, call: channel, isPublished: false, peer: device)
            : sessions.grant(session, device: device)
    }

    func isGranted(_ grant: Data, _ session: Session, _ channel: ChannelID) -> Bool {
        guard let device = channel.device else { return false }
        guard channel.isPlayback else { return sessions.isGranted(Array(grant), session, device: device) }
        return session.allowedDevices?.contains(device) ?? true
            && sessions.isGranted(Array(grant), session, call: channel, isPublished: false)
    }
}
