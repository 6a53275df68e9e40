import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusCrypto
import ApusGateway
import ApusMediaAccess
import ApusSessions
import ApusStorage
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// The client endpoint of a node that owns everything, with the sessions and channels behind it.
///
/// Clients sign in with tickets that the test seals. Their sessions stay unconfirmed until ``confirm()``.
final class MediaEdge: Sendable {
    static let camera = DeviceID(unchecked: "cam")
    private static let cluster = ClusterID(unchecked: "home")
    private static let local = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
    private static let anywhere = HostPort(host: "127.0.0.1", port: 1)

    let sealer = TicketSealer(clusterKey: [UInt8](repeating: 7, count: 32))
    let calls = TestCalls()
    let channels: ChannelService
    let media: MediaAccess
    private let sessions: SessionService
    private let gateway: Gateway
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let pki: TestPKI
    private let port = Mutex(0)
    private let records = MemoryRecordStore()
    private let revocations: RevocationWatch
    private let confirming = AsyncStream<Void>.makeStream()

    /// Runs the body with an endpoint that works meanwhile.
    static func with(
        hasCalls: Bool = true, streamsMax: Int = 8, _ body: (MediaEdge) async throws -> Void
    ) async throws {
        let edge = try MediaEdge(hasCalls: hasCalls, streamsMax: streamsMax)
        try await edge.open()
        try await withThrowingTaskGroup(of: Void.self) { tasks in
            tasks.addTask { try await edge.gateway.run() }
            tasks.addTask {
                for await _ in edge.confirming.stream { return try await edge.sessions.run() }
            }
            do {
                try await body(edge)
            } catch {
                tasks.cancelAll()
                throw error
            }
            edge.gateway.stop()
            tasks.cancelAll()
        }
        try await edge.group.shutdownGracefully()
    }

    private init(hasCalls: Bool, streamsMax: Int) throws {
        let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let dispatcher = NodeDispatcher()
        let none = TransportTLS(authority: .bytes([]), certificateChain: .bytes([]), privateKey: .bytes([]))
        let view = ClusterView(local: Self.local, map: Self.map)
        channels = try ChannelService(configuration: ChannelConfiguration(), view: view, group: group, log: log)
        let transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: none),
            identity: Self.local, cluster: Self.cluster, group: group, control: dispatcher, media: channels,
            onEvent: { _ in }, logger: log)
        let entities = EntityRegistry(view: view, transport: transport, logger: log)
        dispatcher.connect(entities)
        revocations = RevocationWatch(records: records, log: log)
        let key = P256.Signing.PrivateKey()
        sessions = SessionService(
            configuration: SessionConfiguration(), view: view, entities: entities, transport: transport,
            verifier: try TokenVerifier(publicKeyPEM: key.publicKey.pemRepresentation, cluster: Self.cluster),
            sealer: sealer, revocations: revocations, log: log)
        sessions.register(with: dispatcher, records: records)
        pki = try TestPKI()
        var configuration = GatewayConfiguration(
            bind: HostPort(host: "127.0.0.1", port: 0), advertised: Self.anywhere, certificateFile: pki.certificate,
            keyFile: pki.key)
        configuration.streamsPerConnectionMax = streamsMax
        media = MediaAccess(sessions: sessions, channels: channels)
        if hasCalls { media.register(calls, for: .call) }
        gateway = Gateway(
            configuration: configuration,
            media: media,
            clients: ClientServices(
                ClientAPI(), topics: nil, configuration: ClientAPIConfiguration(), audit: AuditLog(log)),
            view: view, group: group, ticketKeys: nil, log: log, limited: LogLimiter(log))
    }

    private static var map: ClusterMap {
        var map = ClusterMap(cluster: cluster)
        map.revision = 1
        map.members = [
            Member(
                id: local, state: .up, addresses: NodeAddresses(transport: anywhere, clients: anywhere, http: anywhere))
        ]
        map.shards = Array(
            repeating: ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: 1), count: ShardID.count)
        return map
    }

    /// The camera is the account `owner`'s, and is shared with `viewer` and `helper`. `former` has lost its right.
    private func open() async throws {
        let rights = SessionRecords(records)
        _ = try await rights.bind(DeviceRecord(device: Self.camera, account: AccountID(unchecked: "owner"), epoch: 1))
        let shares = [("viewer", false), ("helper", true), ("former", true)].map {
            DeviceShare(account: AccountID(unchecked: $0.0), control: $0.1)
        }
        let changes = shares.map { DeviceRelationChange.share($0) } + [.unshare(AccountID(unchecked: "former"))]
        for change in changes {
            _ = try await rights.relate(
                Self.camera, epoch: 1, change, by: .operator, now: Self.now, keepSeconds: 600)
        }
        try await revocations.load(wallSeconds: Self.now)
        let address = try await gateway.start()
        port.withLock { $0 = address.port }
    }

    static var now: Int64 { Int64(Date().timeIntervalSince1970) }

    /// The owners of identities answer from now on.
    func confirm() { confirming.continuation.yield() }

    /// The channels that clients publish or play now.
    func openChannels() async -> [String] { await channels.status().map { "\($0.channel)" } }

    /// Publishes a channel and leaves it. Returns the number of the run.
    func publish(_ channel: ChannelID, instance: UInt64) async throws -> UInt32 {
        let publisher = TestPublisher(group.next())
        publisher.eventLoop.execute { [channels] in
            let offer = PublishOffer(epoch: 0, instance: instance, oldest: 0)
            channels.publish(channel, of: AccountID(unchecked: "owner"), offer: offer, sink: publisher) { result in
                if case .success(let handle) = result { publisher.handle.withLock { $0 = handle } }
            }
        }
        try await eventually("the channel is published") { publisher.epoch.withLock { $0 } != nil }
        publisher.handle.withLock { $0 }?.close()
        return publisher.epoch.withLock { $0 } ?? 0
    }

    // MARK: - Clients

    static func app(of account: String, only devices: [DeviceID]? = nil, access: String? = nil) -> Session {
        session(.app, access ?? "app-\(account)", account, nil, only: devices)
    }

    static func device(_ id: DeviceID = camera, account: String = "owner", instance: UInt64 = 1) -> Session {
        session(.device, "device-\(id)", account, id, instance: instance)
    }

    private static func session(
        _ role: Session.Role, _ access: String, _ account: String, _ device: DeviceID?, only: [DeviceID]? = nil,
        instance: UInt64 = 1
    ) -> Session {
        Session(
            id: "s-\(access)-\(instance)", role: role, access: AccessID(unchecked: access),
            account: AccountID(unchecked: account), device: device, allowedDevices: only,
            sinceMilliseconds: now * 1000, instance: instance,
            token: TokenMark(tag: 1, issuedAt: now, expires: now + 600))
    }

    /// Signs in with a ticket of the session.
    func connect(_ session: Session) async throws -> NativeClient {
        let (channel, seen) = try await ResumingClient(pki).connect(port: port.withLock { $0 })
        try await eventually("the handshake is done") { seen.value.withLock { $0.isShakenHands } }
        let client = NativeClient(channel: channel, seen: seen)
        let ticket = try sealer.seal(session, expiresAt: Self.now + 600)
        client.send(
            .hello, 0,
            ClientHello.with {
                ($0.version, $0.instance, $0.ticket) = (1, session.instance, Data(ticket))
                $0.role = session.role == .device ? .device : .app
            })
        try await eventually("the client is welcome") { client.frames.contains { $0.kind == .welcome } }
        return client
    }
}

private final class TestPublisher: PublisherSink {
    let eventLoop: any EventLoop
    let epoch = Mutex<UInt32?>(nil)
    let handle = Mutex<PublishHandle?>(nil)

    init(_ eventLoop: any EventLoop) { self.eventLoop = eventLoop }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        self.epoch.withLock { $0 = epoch }
    }
    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {}
}

/// A client of the native protocol that says what a test wants, and collects what comes.
final class NativeClient: Sendable {
    private let channel: any Channel
    private let seen: Collector
    private let lastCall = Mutex<UInt32>(0)

    init(channel: any Channel, seen: Collector) { (self.channel, self.seen) = (channel, seen) }

    var frames: [LinkFrame] {
        var decoder = LinkFrameDecoder(lengthMax: 4 << 20)
        decoder.append(seen.value.withLock { $0.received })
        var frames: [LinkFrame] = []
        while let frame = try? decoder.next() { frames.append(frame) }
        return frames
    }

    func send(_ kind: FrameKind, _ method: UInt16, _ message: some Message, call: UInt32 = 0) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        var buffer = ByteBuffer()
        LinkFrame(kind: kind, method: method, correlation: call, payload: ByteBuffer(bytes: bytes))
            .encode(into: &buffer)
        channel.writeAndFlush(buffer, promise: nil)
    }

    /// Sends a request. Returns the number of its answer.
    func ask(_ method: ClientMethod, _ message: some Message) -> UInt32 {
        let call = lastCall.withLock { last in
            last += 1
            return last
        }
        send(.request, method.rawValue, message, call: call)
        return call
    }

    func publish(_ request: ClientPublishRequest) -> UInt32 { ask(.publish, request) }
    func play(_ request: ClientPlayRequest) -> UInt32 { ask(.play, request) }

    /// The answer to a request, if there is one yet.
    func answered(_ call: UInt32) -> LinkFrame? { frames.first { $0.kind == .response && $0.correlation == call } }

    /// The answer's payload. Throws the error that the node answers with.
    func answer<Reply: Message>(_ call: UInt32, as type: Reply.Type) async throws -> Reply {
        try await eventually("request \(call) is answered") { answered(call) != nil }
        guard let frame = answered(call) else { throw ApusError(.internalFailure) }
        guard !frame.flags.contains(.failure) else {
            let failure = try ClientFailure(serializedBytes: Array(frame.payload.readableBytesView))
            throw ApusError(ErrorCode(number: failure.code), failure.message)
        }
        return try Reply(serializedBytes: Array(frame.payload.readableBytesView))
    }

    /// The error with which a stream has ended.
    func end(of stream: UInt32) -> ErrorCode? {
        for frame in frames where frame.kind == .tell && frame.method == ClientMethod.streamState.rawValue {
            let state = try? ClientStreamState(serializedBytes: Array(frame.payload.readableBytesView))
            if let state, state.stream == stream, state.state == .ended {
                return ErrorCode(number: state.failure.code)
            }
        }
        return nil
    }

    func close() async throws { try await channel.close() }
}

/// A call between the clients of access `caller` and `callee`, whose other clients have no part in it.
final class TestCalls: ChannelAuthority {
    static let id = "0ab-0123456789abcdef0123456789abcdef"

    private struct State {
        var onChange: [ObjectIdentifier: @Sendable (MediaChange) -> Void] = [:]
        var resumedCount = 0
    }
    private let state = Mutex(State())

    /// The clients that came with a grant.
    var resumedCount: Int { state.withLock { $0.resumedCount } }
    var endedError: ApusError { ApusError(.callUnknown) }

    func channels(of owner: ChannelOwner) -> [ChannelID] {
        guard case .call(let call) = owner else { return [] }
        return ChannelSide.allCases.map { ChannelID(call: call, side: $0) }
    }

    func open(
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) async throws(ApusError) -> MediaRight {
        let call = CallID(unchecked: Self.id)
        guard owner == .call(call) else { throw ApusError(.callUnknown) }
        let right: MediaRight
        switch session.access.rawValue {
        case "caller": right = Self.right(call, .caller, [MediaEdge.camera])
        case "callee": right = Self.right(call, .winner, [])
        default: throw ApusError(.illegalRelation)
        }
        state.withLock { $0.onChange[ObjectIdentifier(connection)] = onChange }
        return right
    }

    private static func right(_ call: CallID, _ side: ChannelSide, _ devices: [DeviceID]) -> MediaRight {
        MediaRight(
            publishes: ChannelID(call: call, side: side), plays: [ChannelID(call: call, side: side.other)],
            devices: devices)
    }

    func resume(
        _ owner: ChannelOwner, for session: Session, on connection: any ClientConnection,
        onChange: @escaping @Sendable (MediaChange) -> Void
    ) {
        state.withLock {
            $0.resumedCount += 1
            $0.onChange[ObjectIdentifier(connection)] = onChange
        }
    }

    func isOpen(_ owner: ChannelOwner, on connection: any ClientConnection) -> Bool {
        state.withLock { $0.onChange[ObjectIdentifier(connection)] != nil }
    }

    func closed(_ connection: any ClientConnection) {
        state.withLock { $0.onChange[ObjectIdentifier(connection)] = nil }
    }

    /// The call has ended for all of its clients.
    func end(_ error: ApusError) {
        let clients = state.withLock { state in
            defer { state.onChange = [:] }
            return Array(state.onChange.values)
        }
        for onChange in clients { onChange(.ended(error)) }
    }
}
