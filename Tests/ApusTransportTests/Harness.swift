import ApusCore
import ApusTestKit
import ApusTracing
import ApusTransport
import ApusWire
import Dispatch
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// One authority for all tests of a process, and certificates of it.
enum TestPKI {
    static let cluster = ClusterID(unchecked: "test")

    static func authority() throws -> ClusterPKI.Issued { try ClusterPKI.makeAuthority(cluster: cluster) }

    static func tls(_ node: ClusterPKI.Issued, trusting authority: ClusterPKI.Issued) -> TransportTLS {
        TransportTLS(
            authority: .bytes(Array(authority.certificatePEM.utf8)),
            certificateChain: .bytes(Array(node.certificatePEM.utf8)),
            privateKey: .bytes(Array(node.privateKeyPEM.utf8)))
    }
}

/// Answers by method: 1 echo, 2 records a tell's number, 3 sleeps until cancelled, 4 fails as moved,
/// 5 answers with as many zero bytes as the payload's u32 says, 6 echo from a thread of the shared pool, 7 answers with
/// the place of the event loop in its group, 8 with the trace of the handler's task.
final class TestControl: ControlHandler {
    struct Seen: Sendable {
        var tells: [UInt32] = []
        var sleeping = 0
        var cancelled = 0
    }
    let seen = Mutex(Seen())

    func received(_ request: InboundRequest) {
        switch request.method {
        case 1: request.reply(request.payload)
        case 2:
            var payload = request.payload
            let number = payload.readInteger(as: UInt32.self) ?? .max
            seen.withLock { $0.tells.append(number) }
        case 3:
            request.run {
                self.seen.withLock { $0.sleeping += 1 }
                do {
                    try await Task.sleep(for: .seconds(60))
                } catch {
                    self.seen.withLock { $0.cancelled += 1 }
                }
                return .reply(ByteBuffer())
            }
        case 4: request.fail(ApusError(.moved), epoch: 7, owner: NodeName(unchecked: "n9"))
        case 5:
            var payload = request.payload
            let count = Int(payload.readInteger(as: UInt32.self) ?? 0)
            request.run { .reply(ByteBuffer(repeating: 0, count: count)) }
        case 6:
            DispatchQueue.global().async {
                request.reply(byteCount: request.payload.readableBytes) { $0.writeImmutableBuffer(request.payload) }
            }
        case 7:
            var reply = ByteBuffer()
            reply.writeInteger(TestLoops.index { $0.inEventLoop })
            request.reply(reply)
        case 8: request.run { .reply(ByteBuffer(string: TraceContext.current?.traceparent ?? "")) }
        default: request.fail(ApusError(.methodUnknown))
        }
    }
}

enum TestLoops {
    static let all = Array(MultiThreadedEventLoopGroup.singleton.makeIterator())

    /// The place of a loop among those of all test nodes.
    static func index(where isWanted: (any EventLoop) -> Bool) -> UInt32 {
        all.firstIndex(where: isWanted).map { UInt32($0) } ?? .max
    }
}

/// Keeps what the media lanes bring; answers requests of method 1 with their payload.
final class TestMedia: MediaLaneDelegate {
    struct Seen: Sendable {
        var open: [MediaConnection] = []
        var openedCount = 0
        var closedCount = 0
        var frames: [UInt32] = []
    }
    let seen = Mutex(Seen())

    func opened(_ connection: MediaConnection) {
        seen.withLock {
            $0.open.append(connection)
            $0.openedCount += 1
        }
    }
    func received(_ frame: LinkFrame, on connection: MediaConnection) {
        if frame.kind == .request, frame.method == 1 {
            connection.respond(to: frame, payload: frame.payload)
        } else if frame.kind == .media {
            seen.withLock { $0.frames.append(frame.correlation) }
        }
    }
    func readCompleted(_ connection: MediaConnection) { connection.flush() }
    func writabilityChanged(_ connection: MediaConnection) {}
    func closed(_ connection: MediaConnection) {
        seen.withLock {
            $0.closedCount += 1
            $0.open.removeAll { $0 === connection }
        }
    }
}

/// A transport with everything that it tells kept.
final class TestNode: Sendable {
    let id: NodeID
    let control = TestControl()
    let media = TestMedia()
    let events: Events
    let transport: Transport

    final class Events: Sendable {
        let list = Mutex<[TransportEvent]>([])
        func has(_ event: TransportEvent) -> Bool { list.withLock { $0.contains(event) } }
        func count(_ event: TransportEvent) -> Int { list.withLock { $0.filter { $0 == event }.count } }
    }

    init(
        _ name: String, incarnation: UInt64 = 1, cluster: ClusterID = TestPKI.cluster, tls: TransportTLS, port: Int = 0,
        tracer: SpanTracer? = nil, configure: (inout TransportConfiguration) -> Void = { _ in }
    ) {
        id = NodeID(name: NodeName(unchecked: name), incarnation: incarnation)
        var configuration = TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: port), tls: tls)
        configure(&configuration)
        let events = Events()
        self.events = events
        transport = Transport(
            configuration: configuration, identity: id, cluster: cluster, group: MultiThreadedEventLoopGroup.singleton,
            control: control, media: media, onEvent: { event in events.list.withLock { $0.append(event) } },
            logger: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }), tracer: tracer)
    }
}

/// Two nodes of one cluster, the first with links to the second.
struct TestPair {
    let authority: ClusterPKI.Issued
    let a: TestNode
    let b: TestNode
    let addressOfB: HostPort

    init(
        tracers: (a: SpanTracer?, b: SpanTracer?) = (nil, nil),
        configure: (inout TransportConfiguration) -> Void = { _ in }
    ) async throws {
        authority = try TestPKI.authority()
        a = TestNode("a", tls: try Self.tls("a", authority), tracer: tracers.a, configure: configure)
        b = TestNode("b", tls: try Self.tls("b", authority), tracer: tracers.b, configure: configure)
        _ = try await a.transport.start()
        addressOfB = try await b.transport.start()
        a.transport.setPeers([Peer(id: b.id, address: addressOfB)])
        try await linksAreUp()
    }

    static func tls(_ name: String, _ authority: ClusterPKI.Issued) throws -> TransportTLS {
        TestPKI.tls(try ClusterPKI.issueNode(NodeName(unchecked: name), authority: authority), trusting: authority)
    }

    func linksAreUp() async throws {
        try await eventually("all lanes are up") {
            a.events.has(.linkUp(b.id, .control)) && a.events.has(.linkUp(b.id, .media))
                && a.transport.isLinked(to: b.id.name)
        }
    }

    func ask(_ method: UInt16, _ payload: ByteBuffer = ByteBuffer(), timeout: Duration = .seconds(5)) async throws
        -> ByteBuffer
    {
        try await a.transport.ask(b.id.name, method: method, payload: payload, timeout: timeout)
    }

    func stop() async {
        await a.transport.stop()
        await b.transport.stop()
    }

    /// Runs a body with a pair and stops it in every case.
    static func with(
        tracers: (a: SpanTracer?, b: SpanTracer?) = (nil, nil),
        configure: (inout TransportConfiguration) -> Void = { _ in }, _ body: (TestPair) async throws -> Void
    ) async throws {
        let pair = try await TestPair(tracers: tracers, configure: configure)
        do {
            try await body(pair)
        } catch {
            await pair.stop()
            throw error
        }
        await pair.stop()
    }
}

/// A connection that says what a test wants, over TLS or plain, and sees when it is closed.
struct RawConnection {
    let channel: any Channel

    static func plain(to address: HostPort) async throws -> RawConnection {
        RawConnection(
            channel: try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
                .connect(host: address.host, port: address.port).get())
    }

    static func secured(
        to address: HostPort, as node: ClusterPKI.Issued, authority: ClusterPKI.Issued, serverName: String? = nil
    ) async throws -> RawConnection {
        var settings = OtherTLSHandler.Settings()
        (settings.certificate, settings.key) = (node.certificatePEM, node.privateKeyPEM)
        settings.authority = authority.certificatePEM
        settings.serverName = serverName
        settings.closeTimeout = .milliseconds(100)
        let tls = settings
        let channel = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(OtherTLSHandler(tls))
                }
            }
            .connect(host: address.host, port: address.port).get()
        return RawConnection(channel: channel)
    }

    func send(_ bytes: ByteBuffer) { channel.writeAndFlush(bytes, promise: nil) }

    func isClosedByPeer() async throws {
        let closed = Mutex(false)
        let channel = channel
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
            let timer = channel.eventLoop.scheduleTask(in: .seconds(10)) {
                if closed.withLock({
                    let was = $0; $0 = true; return !was
                }) {
                    continuation.resume(throwing: ApusError(.deadlineExceeded, "the connection was not closed"))
                }
            }
            channel.closeFuture.whenComplete { _ in
                timer.cancel()
                if closed.withLock({
                    let was = $0; $0 = true; return !was
                }) {
                    continuation.resume()
                }
            }
        }
    }

    /// A hello as a node would say it.
    static func hello(node: String, cluster: String = "test", version: UInt32 = 1, versionMin: UInt32 = 1) -> ByteBuffer
    {
        var hello = ClusterNodeHello()
        hello.cluster = cluster
        hello.node = node
        hello.incarnation = 1
        hello.version = version
        hello.versionMin = versionMin
        hello.lane = .control
        var buffer = ByteBuffer()
        let bytes: [UInt8] = (try? hello.serializedBytes()) ?? []
        LinkFrame(kind: .hello, payload: ByteBuffer(bytes: bytes)).encode(into: &buffer)
        return buffer
    }
}
