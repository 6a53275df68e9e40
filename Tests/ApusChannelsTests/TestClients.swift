import ApusChannels
import ApusCore
import ApusMedia
import NIOCore
import Synchronization

/// A device's connection that publishes one channel of a real service.
final class TestCamera: PublisherSink {
    let eventLoop: any EventLoop
    private struct State {
        var handle: PublishHandle?
        var isOpen = false
        var acknowledged: UInt64 = 0
        var failure: ApusError?
        var frameCount: UInt64 = 1
    }
    private let state = Mutex(State())

    init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }

    var acknowledgedMax: UInt64 { state.withLock { $0.acknowledged } }
    var isOpen: Bool { state.withLock { $0.isOpen } }
    var failure: ApusError? { state.withLock { $0.failure } }

    /// Opens the stream; sends its first frames as soon as that is accepted.
    func open(_ channel: ChannelID, of account: AccountID? = nil, at service: ChannelService, frameCount: UInt64 = 1) {
        state.withLock { $0.frameCount = frameCount }
        eventLoop.execute { [self] in
            let offer = PublishOffer(epoch: 1, instance: 9, oldest: 0)
            service.publish(channel, of: account, offer: offer, sink: self) { [self] in
                switch $0 {
                case .success(let handle): state.withLock { $0.handle = handle }
                case .failure(let error): state.withLock { $0.failure = error }
                }
            }
        }
    }

    func send(_ frames: [RelayFrame]) { state.withLock { $0.handle }?.send(frames) }
    func close() { state.withLock { $0.handle }?.close() }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        let count = state.withLock {
            $0.isOpen = true
            return $0.frameCount
        }
        send(
            (0..<count).map {
                SimulatedFrames.frame(
                    FramePosition(epoch: epoch, sequence: $0), isKey: $0 == 2, isVideo: true, content: $0)
            })
    }
    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        state.withLock { $0.acknowledged = max($0.acknowledged, next) }
    }
    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
    func publishFailed(_ stream: StreamNumber, _ error: ApusError) { state.withLock { $0.failure = error } }
}

/// An app's connection that watches one channel of a real service.
final class TestViewer: FrameSink, FramePort {
    let eventLoop: any EventLoop
    private let received = Mutex<[UInt64]>([])

    init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }

    var sequences: [UInt64] { received.withLock { $0 } }
    var last: UInt64? { received.withLock { $0.last } }
    var isWritable: Bool { true }
    func send(_ bytes: ByteBuffer, now: MonotonicTime) {
        let sequences = SimulatedFrames.decode(bytes).map(\.position.sequence)
        received.withLock { $0 += sequences }
    }
    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {}
}
