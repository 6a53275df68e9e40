import ApusChannels
import ApusCluster
import ApusCore
import ApusMedia
import ApusTestKit
import ApusTransport
import ApusWire
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

/// A node whose peer is of the cluster, has a valid certificate, and says impossible numbers (D3, D7).
@Suite("Numbers from another node (D7)", .timeLimit(.minutes(2)))
struct HostileNodeTests {
    @Test("No number in any message of the media lane ends the node, or acknowledges a frame that nobody sent")
    func mediaLane() async throws {
        let pair = try await HostilePair()
        let cameras = try pair.publish(on: pair.owned, count: HostileNode.variantCount(.replicate))
        let edges = try pair.publish(on: pair.foreign, count: HostileNode.variantCount(.ingest))
        let viewers = try pair.play(on: pair.foreign, count: HostileNode.variantCount(.subscribe))
        try await eventually("every message was answered with every variant") {
            pair.hostile.answered(.replicate) >= cameras.count && pair.hostile.answered(.ingest) >= edges.count
                && pair.hostile.answered(.subscribe) >= viewers.count
        }
        try await pair.askEverything()
        // The answers' tells follow them a little later.
        try await eventually("every tell was sent") { pair.hostile.isQuiet }
        try await pair.goodPicture()
        for camera in cameras { #expect(camera.acknowledgedMax <= 1) }
        try await pair.stop()
    }
}

@Suite("The names of channels in messages between nodes (D3, CALL-13)", .timeLimit(.minutes(1)))
struct ChannelNameTests {
    @Test("A side of a call is asked for, published and copied under the name that it has in earlier releases")
    func calls() async throws {
        let pair = try await HostilePair()
        func call(_ rest: Int) throws -> CallID {
            let ids = (100..<200).map { "\($0)-0123456789abcdef0123456789abcdef" }
            let id = ids.first { Int(ShardID(key: "call.\($0)").rawValue) % 2 == rest }
            return CallID(unchecked: try #require(id))
        }
        let (own, foreign) = (try call(0), try call(1))
        // Field 1, the name, then field 2, the number of the source.
        func head(_ call: CallID, source: [UInt8]) -> [UInt8] {
            [0x0A, 41] + Array("call.\(call)".utf8) + source
        }
        let viewer = TestViewer(pair.group.next())
        viewer.eventLoop.execute {
            pair.service.play(ChannelID(call: foreign, side: .winner), sink: viewer, after: nil) {
                try? $0.get().open()
            }
        }
        TestCamera(pair.group.next()).open(ChannelID(call: foreign, side: .caller), at: pair.service)
        TestCamera(pair.group.next()).open(ChannelID(call: own, side: .winner), at: pair.service)
        let expected: [(MediaMethod, [UInt8])] = [
            (.subscribe, head(foreign, source: [0x10, 1])), (.ingest, head(foreign, source: [])),
            (.replicate, head(own, source: [0x10, 1])),
        ]
        for (method, head) in expected {
            try await eventually("\(method) names the call") {
                pair.hostile.requests(method).contains { $0.starts(with: head) }
            }
        }
        try await pair.stop()
    }
}

/// A node with channels, and a hostile one beside it that owns half of the shards.
private struct HostilePair {
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    let service: ChannelService
    let hostile = HostileNode()
    let transports: [Transport]
    /// A device whose shard the good node owns, and one whose shard the hostile node owns.
    let owned: DeviceID
    let foreign: DeviceID

    init() async throws {
        let cluster = ClusterID(unchecked: "test")
        let ids = ["a", "b"].map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
        let anywhere = HostPort(host: "127.0.0.1", port: 1)
        var map = ClusterMap(cluster: cluster)
        map.revision = 1
        map.members = ids.map {
            Member(
                id: $0, state: .up,
                addresses: NodeAddresses(transport: anywhere, clients: anywhere, http: anywhere))
        }
        for index in map.shards.indices {
            let owner = UInt16(index % 2)
            map.shards[index] = ShardAssignment(
                owner: MemberSlot(rawValue: owner), standby: MemberSlot(rawValue: 1 - owner), epoch: 1)
        }
        func device(_ rest: Int) throws -> DeviceID {
            let ids = (0..<100).lazy.map { DeviceID(unchecked: "camera\($0)") }
            return try #require(ids.first { Int(ShardID(of: $0).rawValue) % 2 == rest })
        }
        (owned, foreign) = (try device(0), try device(1))
        var configuration = ChannelConfiguration()
        configuration.machine.retryDelay = .milliseconds(5)
        let log = Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() })
        service = try ChannelService(
            configuration: configuration, view: ClusterView(local: ids[0], map: map), group: group, log: log)
        let authority = try ClusterPKI.makeAuthority(cluster: cluster)
        var made: [Transport] = []
        for (id, media) in [(ids[0], service as any MediaLaneDelegate), (ids[1], hostile)] {
            let node = try ClusterPKI.issueNode(id.name, authority: authority)
            let tls = TransportTLS(
                authority: .bytes(Array(authority.certificatePEM.utf8)),
                certificateChain: .bytes(Array(node.certificatePEM.utf8)),
                privateKey: .bytes(Array(node.privateKeyPEM.utf8)))
            made.append(
                Transport(
                    configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls),
                    identity: id, cluster: cluster, group: group, control: NodeDispatcher(), media: media,
                    onEvent: { _ in }, logger: log))
        }
        transports = made
        _ = try await made[0].start()
        made[0].setPeers([Peer(id: ids[1], address: try await made[1].start())])
        let hostile = hostile
        try await eventually("the media lane is up") { hostile.connection != nil }
    }

    func stop() async throws {
        for transport in transports { await transport.stop() }
        try await group.shutdownGracefully()
    }

    /// Cameras at sources from 0, each of which sends one frame.
    func publish(on device: DeviceID, count: Int) throws -> [TestCamera] {
        (0..<count).map { source in
            let camera = TestCamera(group.next())
            camera.open(ChannelID(device: device, source: UInt16(source)), at: service)
            return camera
        }
    }

    func play(on device: DeviceID, count: Int) throws -> [TestViewer] {
        // Sources of their own: a node with a publisher of a channel has no reason to subscribe to it twice.
        (0..<count).map { index in
            let viewer = TestViewer(group.next())
            let channel = ChannelID(device: device, source: UInt16(1000 + index))
            viewer.eventLoop.execute {
                service.play(channel, sink: viewer, after: nil) { try? $0.get().open() }
            }
            return viewer
        }
    }

    /// Every request of the media lane with every variant of its numbers, about channels of both nodes.
    func askEverything() async throws {
        let connection = try #require(hostile.connection)
        let answers = Mutex(0)
        var count = 0
        for (method, sample) in HostileNode.requests(about: [owned, foreign]) {
            for bytes in WireExtremes.variants(of: sample) {
                count += 1
                connection.eventLoop.execute {
                    connection.request(
                        method: method, payload: ByteBuffer(bytes: bytes), deadline: .seconds(10)
                    ) { _ in answers.withLock { $0 += 1 } }
                    connection.flush()
                }
            }
        }
        let asked = count
        try await eventually("every request was answered") { answers.withLock { $0 } == asked }
    }

    /// A camera and a viewer of the good node see each other, as before.
    func goodPicture() async throws {
        let (camera, viewer) = (TestCamera(group.next()), TestViewer(group.next()))
        let channel = ChannelID(device: owned, source: 60_000)
        camera.open(channel, at: service, frameCount: 10)
        let service = service
        viewer.eventLoop.execute {
            service.play(
                channel, sink: viewer, after: FramePosition(epoch: 1, sequence: 0)
            ) { try? $0.get().open() }
        }
        try await eventually("the good viewer sees the good camera") { viewer.last == 9 }
    }
}

/// Answers every request with extreme numbers, and sends such tells behind.
private final class HostileNode: MediaLaneDelegate {
    private struct State {
        var connection: MediaConnection?
        var answered: [MediaMethod: Set<UInt32>] = [:]
        var requests: [MediaMethod: [[UInt8]]] = [:]
        var tellsPending = 0
    }
    private let state = Mutex(State())

    var connection: MediaConnection? { state.withLock { $0.connection } }
    var isQuiet: Bool { state.withLock { $0.tellsPending == 0 } }
    func requests(_ method: MediaMethod) -> [[UInt8]] { state.withLock { $0.requests[method] ?? [] } }
    func answered(_ method: MediaMethod) -> Int { state.withLock { $0.answered[method]?.count ?? 0 } }

    static func variantCount(_ method: MediaMethod) -> Int {
        WireExtremes.variants(of: answer(method, epoch: 1, stream: 1)).count
    }

    static func bytes(_ message: some Message) -> [UInt8] { (try? message.serializedBytes()) ?? [] }

    static func answer(_ method: MediaMethod, epoch: UInt32, stream: UInt32) -> [UInt8] {
        let position = ChannelPosition.with {
            $0.epoch = epoch
            $0.sequence = 5
        }
        switch method {
        case .subscribe:
            return bytes(
                ChannelSubscribed.with {
                    $0.stream = stream
                    $0.term = 1
                    $0.liveFrom = position
                })
        case .ingest:
            return bytes(
                ChannelIngesting.with {
                    $0.next = 5
                    $0.protected = true
                    $0.term = 1
                    $0.epoch = epoch
                })
        default: return bytes(ChannelReplicating.with { $0.after = position })
        }
    }

    static func requests(about devices: [DeviceID]) -> [(UInt16, [UInt8])] {
        devices.flatMap { device in
            let position = ChannelPosition.with {
                $0.epoch = 1
                $0.sequence = 5
            }
            let subscribe = ChannelSubscribe.with {
                $0.device = device.rawValue
                $0.source = 3
                $0.epoch = 1
                $0.after = position
            }
            let ingest = ChannelIngest.with {
                $0.device = device.rawValue
                $0.source = 4
                $0.epoch = 1
                $0.instance = 9
                $0.oldest = 3
                $0.stream = 7
                $0.resumes = true
            }
            let replicate = ChannelReplicate.with {
                $0.device = device.rawValue
                $0.source = 2000
                $0.term = 1
                $0.epoch = 1
                $0.instance = 9
                $0.stream = 8
                $0.liveFrom = position
            }
            return [
                (MediaMethod.subscribe.rawValue, bytes(subscribe)), (MediaMethod.ingest.rawValue, bytes(ingest)),
                (MediaMethod.replicate.rawValue, bytes(replicate)),
            ]
        }
    }

    static func tells(after method: MediaMethod, epoch: UInt32, stream: UInt32) -> [(MediaMethod, [UInt8])] {
        switch method {
        case .replicate:
            let replicated = ChannelReplicated.with {
                $0.stream = stream
                $0.epoch = epoch
                $0.next = 1
            }
            let refused = ChannelCopyRefused.with {
                $0.stream = stream
                $0.term = 1
            }
            return [(.replicated, bytes(replicated)), (.copyRefused, bytes(refused))]
        case .ingest:
            let acknowledged = ChannelAcknowledged.with {
                $0.stream = stream
                $0.epoch = epoch
                $0.next = 1
            }
            let resume = ChannelResume.with {
                $0.stream = stream
                $0.next = 1
            }
            let ended = ChannelIngestEnded.with {
                $0.stream = stream
                $0.failure.code = 10_009
            }
            return [(.acknowledged, bytes(acknowledged)), (.resume, bytes(resume)), (.ingestEnded, bytes(ended))]
        default:
            let changed = ChannelPublisherChanged.with {
                $0.stream = stream
                $0.epoch = 1
                $0.instance = 9
            }
            return [
                (.publisherChanged, bytes(changed)),
                (.unsubscribe, bytes(ChannelUnsubscribe.with { $0.stream = stream })),
                (.endIngest, bytes(ChannelEndIngest.with { $0.stream = stream })),
            ]
        }
    }

    func opened(_ connection: MediaConnection) { state.withLock { $0.connection = connection } }

    func received(_ frame: LinkFrame, on connection: MediaConnection) {
        guard frame.kind == .request, let method = MediaMethod(rawValue: frame.method) else { return }
        let request = Array(frame.payload.readableBytesView)
        state.withLock { $0.requests[method, default: []].append(request) }
        let (source, epoch, stream) = Self.read(request, of: method)
        guard source < 50_000 else {
            connection.fail(frame, ApusError(.overloaded))
            return connection.flush()
        }
        let variants = WireExtremes.variants(of: Self.answer(method, epoch: epoch, stream: stream))
        connection.respond(to: frame, payload: ByteBuffer(bytes: variants[Int(source % 1000) % variants.count]))
        connection.flush()
        let isFirst = state.withLock { state in
            let isFirst = state.answered[method, default: []].insert(source).inserted
            if isFirst { state.tellsPending += 1 }
            return isFirst
        }
        guard isFirst else { return }
        connection.eventLoop.assumeIsolated().scheduleTask(in: .milliseconds(100)) { [self] in
            for (tell, sample) in Self.tells(after: method, epoch: epoch, stream: stream) {
                for bytes in WireExtremes.variants(of: sample) {
                    connection.tell(method: tell.rawValue, payload: ByteBuffer(bytes: bytes))
                }
            }
            connection.flush()
            state.withLock { $0.tellsPending -= 1 }
        }
    }

    private static func read(
        _ bytes: [UInt8], of method: MediaMethod
    ) -> (source: UInt32, epoch: UInt32, stream: UInt32) {
        switch method {
        case .replicate:
            guard let request = try? ChannelReplicate(serializedBytes: bytes) else { break }
            return (request.source, request.epoch, request.stream)
        case .ingest:
            guard let request = try? ChannelIngest(serializedBytes: bytes) else { break }
            return (request.source, request.epoch, request.stream)
        default:
            guard let request = try? ChannelSubscribe(serializedBytes: bytes) else { break }
            return (request.source, 1, 5000 + request.source)
        }
        return (0, 0, 0)
    }

    func readCompleted(_ connection: MediaConnection) { connection.flush() }
    func writabilityChanged(_ connection: MediaConnection) {}
    func closed(_ connection: MediaConnection) {
        state.withLock { if $0.connection === connection { $0.connection = nil } }
    }
}
