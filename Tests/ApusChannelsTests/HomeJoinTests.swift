import ApusChannels
import ApusCluster
import ApusCore
import ApusMedia
import ApusTestKit
import Logging
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("Joining a channel on its home loop (D7)", .timeLimit(.minutes(1)))
struct HomeJoinTests {
    private final class Viewer: FrameSink, FramePort {
        let eventLoop: any EventLoop
        let received = Mutex<[UInt64]>([])
        init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }
        var isWritable: Bool { true }
        func send(_ bytes: ByteBuffer, now: MonotonicTime) {
            let sequences = SimulatedFrames.decode(bytes).map(\.position.sequence)
            received.withLock { $0 += sequences }
        }
        func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {}
    }

    private final class Camera: PublisherSink {
        let eventLoop: any EventLoop
        let isOpen = Mutex(false)
        init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }
        func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
            isOpen.withLock { $0 = true }
        }
        func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
        func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
        func publishFailed(_ stream: StreamNumber, _ error: ApusError) {}
    }

    private func frame(_ sequence: UInt64) -> RelayFrame {
        SimulatedFrames.frame(
            FramePosition(epoch: 1, sequence: sequence), isKey: sequence == 2, isVideo: true, content: sequence)
    }

    @Test("A frame that comes between a viewer's asking and its joining is not lost to it")
    func frameBetween() async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let loop = group.next()
        let node = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
        let anywhere = HostPort(host: "127.0.0.1", port: 1)
        let alone = try #require(
            try ClusterMap(cluster: ClusterID(unchecked: "test")).applying(
                .join(
                    node, addresses: NodeAddresses(transport: anywhere, clients: anywhere, http: anywhere), weight: 1)))
        let service = try ChannelService(
            configuration: ChannelConfiguration(), view: ClusterView(local: node, map: alone), group: group,
            log: Logger(label: "test"))
        let channel = ChannelID(device: DeviceID(unchecked: "camera"))
        let camera = Camera(loop)
        let offer = PublishOffer(epoch: 1, instance: 1, oldest: 0)
        let handle = try await loop.flatSubmit {
            let promise = loop.makePromise(of: PublishHandle.self)
            service.publish(channel, offer: offer, sink: camera) { result in
                promise.completeWith(result.mapError { $0 as any Error })
            }
            return promise.futureResult
        }.get()
        try await eventually("the stream is open") { camera.isOpen.withLock { $0 } }
        let viewer = Viewer(loop)
        loop.execute {
            handle.send((0..<3).map(self.frame))
            service.play(channel, sink: viewer, after: FramePosition(epoch: 1, sequence: 0)) { try? $0.get().open() }
            loop.execute { handle.send([self.frame(3)]) }
            loop.execute { loop.execute { handle.send([self.frame(4)]) } }
        }
        try await eventually("the viewer has the last frame") { viewer.received.withLock { $0.last == 4 } }
        #expect(viewer.received.withLock { $0.filter { $0 > 1 } } == [2, 3, 4])
        try await group.shutdownGracefully()
    }
}
