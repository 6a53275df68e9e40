import ApusChannels
import ApusCluster
import ApusCore
import ApusMedia
import ApusTestKit
import Logging
import NIOCore
import NIOPosix
import Testing

@Suite("Receivers and publishers of frames within a node (D7)", .timeLimit(.minutes(1)))
struct FrameTapTests {
    private static let local = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
    private static let other = NodeID(name: NodeName(unchecked: "n2"), incarnation: 1)
    private static let channel = ChannelID(call: CallID(unchecked: "greeting"), side: .winner)

    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let view: ClusterView
    private let service: ChannelService

    init() throws {
        view = ClusterView(local: Self.local, map: Self.map(owner: 0, epoch: 1))
        service = try ChannelService(
            configuration: ChannelConfiguration(), view: view, group: group, log: Logger(label: "test"))
    }

    /// This node is the owner of all shards (0), or stands by for another that it cannot reach (1).
    private static func map(owner: UInt16, epoch: Epoch) -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = UInt64(epoch)
        let anywhere = HostPort(host: "127.0.0.1", port: 1)
        map.members = [local, other].map {
            Member(
                id: $0, state: .up, addresses: NodeAddresses(transport: anywhere, clients: anywhere, http: anywhere))
        }
        let standby: MemberSlot = owner == 0 ? .none : MemberSlot(rawValue: 0)
        map.shards = Array(
            repeating: ShardAssignment(owner: MemberSlot(rawValue: owner), standby: standby, epoch: epoch),
            count: ShardID.count)
        return map
    }

    /// A configuration, then packets of sound, one every 10 ms.
    private static func frames(_ count: Int) -> [MediaFrame] {
        (0..<count).map { index in
            var payload = ByteBuffer(repeating: UInt8(truncatingIfNeeded: index), count: 100 + index)
            if index == 0 {
                payload.clear()
                TrackConfiguration(codec: .opus, trackCount: 1, first: 48_000, second: 1, third: 960, extraData: [])
                    .encode(into: &payload)
            }
            return MediaFrame(
                header: MediaHeader(
                    position: FramePosition(epoch: 0, sequence: 0), ptsMicroseconds: Int64(index) * 10_000,
                    dtsDeltaMicroseconds: -7, captureMilliseconds: 9, flags: index == 0 ? .configuration : .key),
                payload: payload)
        }
    }

    private func play(_ frames: [MediaFrame], elapsed: Duration = .zero) -> FramePlayer {
        let player = FramePlayer(frames, to: Self.channel, of: nil, at: service, on: group.next())
        player.start(elapsed: elapsed)
        return player
    }

    private func tap(byteCountMax: Int = 1 << 20) async throws -> FrameTap {
        try await service.tap(
            Self.channel, after: FramePosition(epoch: 0, sequence: 0), on: group.next(), byteCountMax: byteCountMax)
    }

    /// Takes from the tap until it has had a number of frames, without those that are repeated.
    private func take(_ count: Int, from tap: FrameTap, _ taken: inout [RelayFrame]) async throws {
        var new: [RelayFrame] = []
        let had = taken.count
        try await eventually("\(count) frames") {
            let frames = tap.take()
            #expect(frames.lostCount == 0)
            #expect(frames.byteCount == frames.frames.reduce(0) { $0 + $1.encoded.readableBytes })
            new += frames.frames.filter { !$0.flags.contains(.repeated) }
            return had + new.count >= count
        }
        taken += new
    }

    private func expect(_ taken: [RelayFrame], are frames: [MediaFrame]) throws {
        #expect(taken.map(\.position.sequence) == (0..<UInt64(frames.count)).map { $0 })
        for (relayed, frame) in zip(taken, frames) {
            #expect(relayed.payload == frame.payload)
            let whole = try MediaFrame(decoding: relayed.content)
            #expect(whole.payload == frame.payload && whole.header.ptsMicroseconds == frame.header.ptsMicroseconds)
            #expect(whole.header.dtsDeltaMicroseconds == -7 && whole.header.captureMilliseconds == 9)
            #expect(whole.header.flags == frame.header.flags && whole.header.position == relayed.position)
        }
    }

    @Test("A tap has every frame of a player, with its header, once and in order")
    func all() async throws {
        let (frames, tap) = (Self.frames(40), try await self.tap())
        let player = play(frames)
        var taken: [RelayFrame] = []
        try await take(40, from: tap, &taken)
        try expect(taken, are: frames)
        // It is a receiver as a client is, until it leaves.
        #expect(await service.status().map(\.viewers) == [1])
        tap.close()
        player.stop()
        try await eventually("nobody watches") { await service.status().allSatisfy { $0.viewers == 0 } }
        try await group.shutdownGracefully()
    }

    @Test("A player that is paused sends nothing, and goes on with the frame before which it was paused")
    func paused() async throws {
        let (frames, tap) = (Self.frames(40), try await self.tap())
        let player = play(frames)
        var taken: [RelayFrame] = []
        try await take(5, from: tap, &taken)
        player.pause()
        // What was on its way arrives.
        try await player.eventLoop.submit {}.get()
        try await Task.sleep(for: .milliseconds(60))
        taken += tap.take().frames.filter { !$0.flags.contains(.repeated) }
        try await Task.sleep(for: .milliseconds(400))
        #expect(tap.take().frames.isEmpty && taken.count < 40)
        let count = taken.count
        let resumed = MonotonicTime.now()
        player.resume()
        player.resume()
        try await take(count + 1, from: tap, &taken)
        // What was missed does not come at once: a frame is due every 10 ms, and a tick has two.
        let due = Int((MonotonicTime.now() - resumed).milliseconds) / 10 + 4
        #expect(taken.count - count <= due, "\(taken.count - count) of \(due)")
        try await take(40, from: tap, &taken)
        try expect(taken, are: frames)
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }

    @Test("Frames that come while a player plays follow the others, and what it waited for is not played faster")
    func appended() async throws {
        let (frames, tap) = (Self.frames(60), try await self.tap())
        let player = FramePlayer(
            Array(frames[..<20]), isComplete: false, to: Self.channel, of: nil, at: service, on: group.next())
        player.start(elapsed: .zero)
        // More come in time.
        player.append(Array(frames[20..<30]), isLast: false)
        var taken: [RelayFrame] = []
        try await take(30, from: tap, &taken)
        // It has nothing to play for some time, and does not end.
        try await Task.sleep(for: .milliseconds(300))
        #expect(tap.take().frames.filter { !$0.flags.contains(.repeated) }.isEmpty)
        let appended = MonotonicTime.now()
        player.append(Array(frames[30...]), isLast: true)
        try await take(31, from: tap, &taken)
        let due = Int((MonotonicTime.now() - appended).milliseconds) / 10 + 4
        #expect(taken.count - 30 <= due, "\(taken.count - 30) of \(due)")
        try await take(60, from: tap, &taken)
        try expect(taken, are: frames)
        // Nothing follows the last ones.
        player.append(frames, isLast: true)
        try await player.eventLoop.submit {}.get()
        try await Task.sleep(for: .milliseconds(60))
        #expect(tap.take().frames.filter { !$0.flags.contains(.repeated) }.isEmpty)
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }

    @Test("Frames that come in a pause wait for its end")
    func appendedInPause() async throws {
        let (frames, tap) = (Self.frames(40), try await self.tap())
        let player = FramePlayer(
            Array(frames[..<10]), isComplete: false, to: Self.channel, of: nil, at: service, on: group.next())
        player.start(elapsed: .zero)
        var taken: [RelayFrame] = []
        try await take(10, from: tap, &taken)
        player.pause()
        player.append(Array(frames[10...]), isLast: true)
        try await Task.sleep(for: .milliseconds(200))
        #expect(tap.take().frames.filter { !$0.flags.contains(.repeated) }.isEmpty)
        player.resume()
        try await take(40, from: tap, &taken)
        try expect(taken, are: frames)
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }

    @Test("A tap that is full takes no more until its frames are taken, and loses none")
    func full() async throws {
        let (frames, tap) = (Self.frames(40), try await self.tap(byteCountMax: 300))
        let player = play(frames)
        try await eventually("the tap is full") { !tap.isWritable }
        try await Task.sleep(for: .milliseconds(100))
        let first = tap.take()
        #expect(first.byteCount < 1200)
        var taken = first.frames.filter { !$0.flags.contains(.repeated) }
        try await take(40, from: tap, &taken)
        try expect(taken, are: frames)
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }

    @Test("A tap and a player stay where their node loses the channel and gets it back")
    func roles() async throws {
        let (frames, tap) = (Self.frames(80), try await self.tap())
        let player = play(frames)
        var taken: [RelayFrame] = []
        try await take(10, from: tap, &taken)
        view.update(Self.map(owner: 1, epoch: 2))
        try await eventually("this node stands by") { await service.status().map(\.role) == [.standby] }
        try await Task.sleep(for: .milliseconds(100))
        view.update(Self.map(owner: 0, epoch: 3))
        try await take(80, from: tap, &taken)
        try expect(taken, are: frames)
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }

    @Test("A player that starts late leaves out what is over, except the configurations")
    func late() async throws {
        let (frames, tap) = (Self.frames(40), try await self.tap())
        let player = play(frames, elapsed: .milliseconds(205))
        var taken: [RelayFrame] = []
        try await take(19, from: tap, &taken)
        // The first packet's time is 0, so the one of 210 ms is the 22nd frame after the configuration.
        #expect(taken.map(\.payload) == ([frames[0]] + frames[22...]).map(\.payload))
        tap.close()
        player.stop()
        try await group.shutdownGracefully()
    }
}
