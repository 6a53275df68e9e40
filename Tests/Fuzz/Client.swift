import ApusContract
import ApusCore
import ApusGateway
import ApusWire
import NIOCore

/// D6: whatever a client sends, before its hello and after, its connection answers, serves or closes; after the close
/// nothing more is served; and a request that is served is read or refused.
///
/// The input is a list of frames, each behind a byte that says what happens before it: time, and whether the hello that
/// is being checked is admitted.
func fuzzClient(_ input: [UInt8]) {
    let second = Duration.seconds(1)
    var now = MonotonicTime(nanoseconds: 1 << 40)
    var machine = ClientConnectionStateMachine(
        timing: .init(
            handshakeTimeout: second, keepalive: second, streamKeepalive: .milliseconds(80), idleTimeout: second * 20,
            slowReaderTimeout: second * 10), now: now)
    var decoder = LinkFrameDecoder(lengthMax: 1024)
    var bytes = ByteBuffer(bytes: input)
    var isClosed = false
    while let what = bytes.readInteger(as: UInt8.self) {
        now = now + .milliseconds(Int64(what & 0x3f) * 10)
        if what & 0x80 != 0 { machine.admitted(now: now) }
        if what & 0x40 != 0 {
            machine.streamsChanged(count: Int(what & 3), now: now)
            machine.writabilityChanged(isWritable: what & 1 == 0, now: now)
        }
        if case .close = machine.tick(now: now, lastSent: now) {
            machine.closed()
            isClosed = true
        }
        guard let part = bytes.readSlice(length: min(bytes.readableBytes, Int(what) + 1)) else { return }
        decoder.append(part)
        do {
            // While the hello is checked, what follows stays in the decoder.
            while !machine.isAuthenticating, let frame = try decoder.next() {
                switch machine.received(frame.kind, now: now) {
                case .serve:
                    precondition(!isClosed && machine.isOpen, "a frame is served where none may be")
                    serve(frame)
                case .authenticate:
                    precondition(!isClosed, "a closed connection is authenticated")
                    _ = try? ClientHello(bounded: frame.payload)
                case .pong, .ignore: break
                case .close:
                    machine.closed()
                    isClosed = true
                }
            }
        } catch {
            return machine.closed()
        }
    }
}

private func serve(_ frame: LinkFrame) {
    guard frame.kind == .request else { return }
    switch ClientMethod(rawValue: frame.method) {
    case .publish:
        guard let request = try? ClientPublishRequest(bounded: frame.payload) else { return }
        precondition(UInt16(exactly: request.source) != nil && request.oldest <= WireNumber.nextMax)
    case .play:
        guard let request = try? ClientPlayRequest(bounded: frame.payload) else { return }
        precondition(UInt16(exactly: request.source) != nil && request.after.sequence <= WireNumber.sequenceMax)
    case .unpublish: _ = try? ClientUnpublishRequest(bounded: frame.payload)
    case .stop: _ = try? ClientStopRequest(bounded: frame.payload)
    case .event, .publishAck, .publishResume, .streamState, .endpointsChanged, nil: request(frame)
    }
}

/// What the services of a node read.
private func request(_ frame: LinkFrame) {
    var frame = frame
    guard (try? frame.takeTimeLeft()) != nil || !frame.flags.contains(.timed) else { return }
    switch frame.method {
    case ClientSubscribeRequest.info.number: _ = try? ClientSubscribeRequest(bounded: frame.payload)
    case ClientListDevicesRequest.info.number: _ = try? ClientListDevicesRequest(bounded: frame.payload)
    case ClientIssueTokenRequest.info.number:
        guard let request = try? ClientIssueTokenRequest(bounded: frame.payload) else { return }
        precondition((0...999_999_999).contains(request.lifetimeSeconds))
    case ClientRevokeTokensRequest.info.number: _ = try? ClientRevokeTokensRequest(bounded: frame.payload)
    default: return
    }
}
