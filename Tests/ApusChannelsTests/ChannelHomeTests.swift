import ApusChannels
import ApusCluster
import ApusCore
import ApusTestKit
import Logging
import NIOCore
import NIOPosix
import Testing

@Suite("A channel's home among the node's loops (D7)", .timeLimit(.minutes(1)))
struct ChannelHomeTests {
    private final class Viewer: FrameSink, FramePort {
        let eventLoop: any EventLoop
        init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }
        var isWritable: Bool { true }
        func send(_ bytes: ByteBuffer, now: MonotonicTime) {}
        func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {}
    }

    private static let channels = (0..<4).map { ChannelID(device: DeviceID(unchecked: "camera\($0)")) }

    private func service(on group: any EventLoopGroup) throws -> ChannelService {
        var configuration = ChannelConfiguration()
        configuration.tick = .milliseconds(1)
        configuration.idleTick = .milliseconds(2)
        configuration.idleTimeout = .milliseconds(4)
        // One number that is not given back, or one hub too many, and a viewer is refused.
        configuration.watchedMax = Self.channels.count + 1
        let node = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
        let view = ClusterView(local: node, map: ClusterMap(cluster: ClusterID(unchecked: "test")))
        return try ChannelService(configuration: configuration, view: view, group: group, log: Logger(label: "test"))
    }

    private func play(_ channel: ChannelID, on loop: any EventLoop, _ service: ChannelService) async throws -> Receipt {
        try await loop.flatSubmit {
            let promise = loop.makePromise(of: Receipt.self)
            service.play(channel, sink: Viewer(loop), after: nil) { result in
                promise.completeWith(result.mapError { $0 as any Error })
            }
            return promise.futureResult
        }.get()
    }

    @Test("However many loops ask at once, a channel has one home while it is watched and none when it is forgotten")
    func oneHome() async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 4)
        let loops = Array(group.makeIterator())
        let service = try service(on: group)
        for round in 0..<100 {
            let receipts = try await withThrowingTaskGroup(of: (any EventLoop, Receipt).self) { tasks in
                for loop in loops {
                    for channel in Self.channels {
                        tasks.addTask { (loop, try await self.play(channel, on: loop, service)) }
                    }
                }
                return try await tasks.reduce(into: []) { $0.append($1) }
            }
            let status = await service.status()
            #expect(status.map(\.channel) == Self.channels)
            #expect(status.allSatisfy { $0.viewers == loops.count })
            #expect(service.homeCount == Self.channels.count)
            for (loop, receipt) in receipts { loop.execute { receipt.close() } }
            // Some rounds begin while channels are being forgotten.
            try await Task.sleep(for: .milliseconds(round % 12))
        }
        try await eventually("every channel is forgotten") {
            let status = await service.status()
            return status.isEmpty && service.homeCount == 0
        }
        // The clock stood still meanwhile; it starts again.
        let receipt = try await play(Self.channels[0], on: loops[3], service)
        loops[3].execute { receipt.close() }
        try await eventually("the channel is forgotten again") { service.homeCount == 0 }
        try await group.shutdownGracefully()
    }
}
