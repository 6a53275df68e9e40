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

@Suite("A node's channels, shared by accounts (D13)", .serialized, .timeLimit(.minutes(1)))
struct ChannelTableTests {
    private let attacker = AccountID(unchecked: "attacker")
    private let good = AccountID(unchecked: "good")
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)

    private func service(
        hasOwner: Bool = true, _ configure: (inout ChannelConfiguration) -> Void = { _ in }
    ) throws -> ChannelService {
        let node = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
        let anywhere = HostPort(host: "127.0.0.1", port: 1)
        let addresses = NodeAddresses(transport: anywhere, clients: anywhere, http: anywhere)
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        if hasOwner { map = try map.applying(.join(node, addresses: addresses, weight: 1)) ?? map }
        var configuration = ChannelConfiguration()
        configure(&configuration)
        return try ChannelService(
            configuration: configuration, view: ClusterView(local: node, map: map), group: group,
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
    }

    private func channel(_ device: String, _ source: Int = 0) -> ChannelID {
        ChannelID(device: DeviceID(unchecked: device), source: UInt16(source))
    }

    /// Who plays; nil where it was refused.
    private func play(
        _ channel: ChannelID, of account: AccountID, _ service: ChannelService, _ viewer: TestViewer
    ) async throws -> Receipt? {
        try await viewer.eventLoop.flatSubmit {
            let promise = viewer.eventLoop.makePromise(of: Receipt?.self)
            service.play(channel, of: account, sink: viewer, after: nil) { result in
                let receipt = try? result.get()
                receipt?.open()
                promise.succeed(receipt)
            }
            return promise.futureResult
        }.get()
    }

    @Test("A client of one device has at most so many of its sources")
    func sources() async throws {
        let service = try service()
        var takenCount = 0
        for source in 0..<1_000 {
            let viewer = TestViewer(group.next())
            if try await play(channel("theirs", source), of: attacker, service, viewer) != nil { takenCount += 1 }
        }
        #expect(takenCount == 256)
        let viewer = TestViewer(group.next())
        #expect(try await play(channel("another"), of: attacker, service, viewer) != nil)
        let camera = TestCamera(group.next())
        camera.open(channel("theirs", 5), of: attacker, at: service)
        try await eventually("a source that is watched can be published") { camera.isOpen }
        try await group.shutdownGracefully()
    }

    @Test("Apps of one account that ask for 10,000 unpublished channels take nothing that another account needs")
    func unpublished() async throws {
        let service = try service()
        var receipts: [(TestViewer, Receipt)] = []
        for number in 0..<10_000 {
            let viewer = TestViewer(group.next())
            let asked = channel("theirs\(number / 100)", number % 100)
            if let receipt = try await play(asked, of: attacker, service, viewer) {
                receipts.append((viewer, receipt))
            }
        }
        #expect(receipts.count == 8_888)
        // Another account's camera and viewer, who comes first, as ever.
        let viewer = TestViewer(group.next())
        #expect(try await play(channel("ours"), of: good, service, viewer) != nil)
        let camera = TestCamera(group.next())
        camera.open(channel("ours"), of: good, at: service, frameCount: 20)
        try await eventually("the viewer that came first sees the camera") { viewer.last == 19 }
        // What only viewers asked for goes with them, and not after a time.
        for (viewer, receipt) in receipts { viewer.eventLoop.execute { receipt.close() } }
        try await eventually("every channel without a publisher is gone") { service.homeCount == 1 }
        try await group.shutdownGracefully()
    }

    @Test("One that publishes more than its share is answered with 10007, and another account still publishes")
    func published() async throws {
        let service = try service { $0.channelsMax = 90 }
        let theirs = (0..<100).map { source in
            let camera = TestCamera(group.next())
            camera.open(channel("theirs", source), of: attacker, at: service)
            return camera
        }
        try await eventually("every publish is answered") { theirs.allSatisfy { $0.isOpen || $0.failure != nil } }
        #expect(theirs.count { $0.isOpen } == 80)
        #expect(theirs.compactMap(\.failure).allSatisfy { $0.code == .overloaded })
        let ours = TestCamera(group.next())
        ours.open(channel("ours"), of: good, at: service)
        try await eventually("another account's camera publishes") { ours.isOpen }
        try await group.shutdownGracefully()
    }

    @Test("A publisher whose channel has no primary is answered with 10010 in time")
    func answered() async throws {
        let service = try service(hasOwner: false) { $0.publishTimeout = .milliseconds(200) }
        let camera = TestCamera(group.next())
        camera.open(channel("ours"), of: good, at: service)
        try await eventually("the publish is answered") { camera.failure?.code == .noRoute }
        try await group.shutdownGracefully()
    }

    @Test("The bytes that all channels keep stay within the node's bound; another account's ring stays long")
    func bytes() async throws {
        let bound = 4 << 20
        let service = try service { configuration in
            configuration.ringByteCountTotalMax = bound
            configuration.machine.ring.byteCountMax = 1 << 20
        }
        let theirs = (0..<32).map { _ in TestCamera(group.next()) }
        for (source, camera) in theirs.enumerated() {
            camera.open(channel("theirs", source), of: attacker, at: service, frameCount: 3)
        }
        let ours = TestCamera(group.next())
        ours.open(channel("ours"), of: good, at: service, frameCount: 3)
        try await eventually("all publish") { (theirs + [ours]).allSatisfy(\.isOpen) }
        for round in UInt64(0)..<200 {
            for camera in theirs { camera.send([LargeFrame.make(3 + round)]) }
            if round % 8 == 0 { ours.send([LargeFrame.make(3 + round / 8)]) }
        }
        try await eventually("everything arrived") {
            let status = await service.status()
            return status.count == 33
                && status.allSatisfy { $0.last?.sequence == ($0.channel.device?.rawValue == "ours" ? 27 : 202) }
        }
        #expect(service.ringByteCount < bound)
        // The good account's whole 400 KiB, from its first frame on.
        let viewer = TestViewer(group.next())
        let receipt = try await viewer.eventLoop.flatSubmit { [good] in
            let promise = viewer.eventLoop.makePromise(of: Receipt.self)
            service.play(
                channel("ours"), of: good, sink: viewer, after: FramePosition(epoch: 1, sequence: 2)
            ) { result in
                if case .success(let receipt) = result { receipt.open() }
                promise.completeWith(result.mapError { $0 as any Error })
            }
            return promise.futureResult
        }.get()
        try await eventually("the viewer has everything") { viewer.last == 27 }
        #expect(viewer.sequences.filter { $0 > 2 } == Array(3...27))
        viewer.eventLoop.execute { receipt.close() }
        try await group.shutdownGracefully()
    }
}

private enum LargeFrame {
    /// 16 KiB of video, a key frame.
    static func make(_ sequence: UInt64) -> RelayFrame {
        let header = MediaHeader(
            position: FramePosition(epoch: 1, sequence: sequence), ptsMicroseconds: Int64(sequence) * 20_000,
            flags: .key)
        var encoded = ByteBuffer()
        SimulatedFrames.header(MediaHeader.byteCount + (16 << 10), &encoded)
        MediaFrame(header: header, payload: ByteBuffer(repeating: 7, count: 16 << 10)).encode(into: &encoded)
        return RelayFrame(header: header, encoded: encoded)
    }
}
