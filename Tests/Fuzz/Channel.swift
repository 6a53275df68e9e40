import ApusChannels
import ApusCore
import ApusMedia
import NIOCore

private let nodes = ["a", "b", "c"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
private let ringByteCountMax = 64 << 10

/// D7: a channel and its fan-out take every number that a decoder lets through, in any order: nothing traps, nothing is
/// acknowledged that is not held, and what is kept stays within its bounds.
///
/// The input is a list of events, each a byte and what it needs; numbers stand in their full width.
func fuzzChannel(_ input: [UInt8]) {
    var run = ChannelRun(ByteBuffer(bytes: input))
    while run.step() {}
}

private struct ChannelRun {
    private var bytes: ByteBuffer
    private var machine: ChannelStateMachine
    private var fanOut: FanOutStateMachine
    private var receivers: [FanOutStateMachine.ReceiverID] = []
    private var now = MonotonicTime(nanoseconds: 1 << 40)
    private var lastIngest: UInt64 = 0
    private var lastSubscription: UInt64 = 0

    init(_ bytes: ByteBuffer) {
        self.bytes = bytes
        var configuration = ChannelStateMachine.Configuration()
        configuration.ring = FrameRingLimits(byteCountMax: ringByteCountMax, frameCountMax: 64)
        machine = ChannelStateMachine(
            channel: ChannelID(device: DeviceID(unchecked: "cam")), local: nodes[0], configuration: configuration)
        fanOut = FanOutStateMachine(ring: machine.ring, batchByteCountMax: 4096, lagByteCountMax: 8192)
    }

    private mutating func byte() -> UInt8 { bytes.readInteger() ?? 0 }
    private mutating func number32() -> UInt32 { bytes.readInteger() ?? 0 }
    private mutating func sequence() -> UInt64 { min(bytes.readInteger() ?? 0, WireNumber.sequenceMax) }
    private mutating func next() -> UInt64 { min(bytes.readInteger() ?? 0, WireNumber.nextMax) }
    private mutating func term() -> Epoch { min(number32(), WireNumber.termMax) }
    private mutating func node() -> NodeID { nodes[Int(byte() % 3)] }
    private mutating func optionalNode() -> NodeID? { byte() % 4 == 0 ? nil : node() }
    private mutating func position() -> FramePosition? {
        byte() % 4 == 0 ? nil : FramePosition(epoch: number32(), sequence: sequence())
    }

    /// Frames as the wire brings them; those that a decoder refuses never come so far.
    private mutating func frames() -> [RelayFrame] {
        (0..<Int(byte() % 4)).compactMap { _ in
            var header = ByteBuffer()
            let payloadByteCount = Int(byte())
            header.writeBytes(bytes.readBytes(length: min(bytes.readableBytes, MediaHeader.byteCount)) ?? [])
            guard header.readableBytes == MediaHeader.byteCount else { return nil }
            // The length and the version, which are of no interest here.
            header.setInteger(UInt32(payloadByteCount), at: 28)
            header.setInteger(MediaHeader.version, at: 39)
            if header.getInteger(at: 36, as: UInt8.self).map({ $0 & 2 != 0 }) ?? false {
                var configuration = ByteBuffer()
                TrackConfiguration(
                    codec: payloadByteCount % 2 == 0 ? .h264 : .aac, trackCount: 2, first: 1, second: 1, third: 1,
                    extraData: Array(repeating: 0, count: payloadByteCount)
                ).encode(into: &configuration)
                header.setInteger(UInt32(configuration.readableBytes), at: 28)
                header.writeBuffer(&configuration)
            } else {
                header.writeRepeatingByte(0, count: payloadByteCount)
            }
            return try? RelayFrame(copying: header) { _, head in
                head.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
            }
        }
    }

    mutating func step() -> Bool {
        guard let kind = bytes.readInteger(as: UInt8.self) else { return false }
        switch kind % 4 {
        case 0: perform(ofPrimary(byte()))
        case 1: perform(ofOthers(byte()))
        case 2: perform(ofMap(byte()))
        default: viewers(byte())
        }
        check()
        return true
    }

    private mutating func ofPrimary(_ kind: UInt8) -> [ChannelStateMachine.Action] {
        switch kind % 8 {
        case 0:
            lastIngest += 1
            let offer = PublishOffer(
                epoch: number32(), instance: UInt64(byte()), oldest: next(), resumes: byte() % 2 == 0)
            return machine.openIngest(lastIngest, offer, wallSeconds: number32(), now: now).actions
        case 1, 2: return machine.ingest(lastIngest - min(lastIngest, UInt64(byte() % 2)), frames(), now: now)
        case 3: machine.closeIngest(lastIngest)
        case 4: return machine.copyOpened(at: node(), after: position(), now: now)
        case 5: return machine.copyConfirmed(at: node(), epoch: number32(), next: next(), now: now)
        case 6: return machine.copyFailed(at: node(), now: now)
        default: return machine.setCandidate(optionalNode(), now: now)
        }
        return []
    }

    private mutating func ofOthers(_ kind: UInt8) -> [ChannelStateMachine.Action] {
        switch kind % 8 {
        case 0:
            return machine.openCopy(
                term: term(), epoch: number32(), instance: UInt64(byte()), liveFrom: position(), now: now
            ).actions
        case 1: return machine.copied(frames(), term: term())
        case 2: return machine.copyClosed(term: term(), now: now)
        case 3: machine.publisherChanged(term: term(), epoch: number32(), instance: UInt64(byte()))
        case 4: return machine.subscribed(lastSubscription, term: term(), liveFrom: position(), now: now)
        case 5, 6: return machine.received(lastSubscription, frames())
        default: return machine.subscriptionLost(lastSubscription, now: now)
        }
        return []
    }

    private mutating func ofMap(_ kind: UInt8) -> [ChannelStateMachine.Action] {
        switch kind % 8 {
        case 0:
            return machine.assign(
                ChannelStateMachine.Assignment(term: term(), owner: optionalNode(), standby: optionalNode()), now: now)
        case 1:
            now = now + .milliseconds(Int64(number32() % 10_000))
            return machine.tick(now: now)
        case 2: return machine.receiversChanged(hasReceivers: byte() % 2 == 0, now: now)
        case 3: machine.receiverWants(after: position())
        case 4: machine.receiverHas(position())
        case 5: return machine.release()
        case 6:
            let limit = Int(number32())
            machine.limitRing(byteCountMax: limit)
            fanOut.limitRing(byteCountMax: limit)
        default: _ = machine.isCopied(to: node())
        }
        return []
    }

    private mutating func viewers(_ kind: UInt8) {
        switch kind % 4 {
        case 0:
            guard receivers.count < 16 else { return }
            let kinds: [FanOutStateMachine.Kind] = [.viewer, .edge, .standby, .recorder]
            receivers.append(fanOut.add(kinds[Int(byte() % 4)], after: position()))
        case 1:
            guard !receivers.isEmpty else { return }
            fanOut.remove(receivers.remove(at: Int(byte()) % receivers.count))
        default:
            guard !receivers.isEmpty else { return }
            let batch = fanOut.nextBatch(for: receivers[Int(byte()) % receivers.count])
            precondition(batch.map { $0.bytes.readableBytes > 0 } ?? true, "a batch is empty")
        }
    }

    private mutating func perform(_ actions: [ChannelStateMachine.Action]) {
        for action in actions {
            switch action {
            case .distribute(let frames): for frame in frames { fanOut.append(frame) }
            case .adopt(let frame): fanOut.adopt(repeated: frame)
            case .beginLive(let position): fanOut.setLiveFloor(position)
            case .acknowledge(_, let epoch, let next):
                precondition(machine.ring.last?.epoch == epoch, "another epoch is acknowledged")
                precondition(next <= (machine.ring.next(in: epoch) ?? 0), "what is not held is acknowledged")
            case .subscribe(let id, _, _): lastSubscription = id
            case .resume, .endIngest, .openCopy, .closeCopy, .announcePublisher, .refuseCopy, .confirmCopy,
                .unsubscribe:
                break
            }
        }
    }

    private func check() {
        for ring in [machine.ring, fanOut.ring] {
            let frameCount = ring.endIndex - ring.firstIndex
            precondition(frameCount <= 64, "a ring holds too many frames")
            precondition(ring.heldByteCount <= ring.byteCountMax || frameCount <= 1, "a ring holds too many bytes")
            precondition(ring.byteCountMax <= ringByteCountMax)
        }
        _ = (machine.liveFrom, machine.isProtected, machine.isFed, machine.isIdle, machine.isWaiting)
    }
}
