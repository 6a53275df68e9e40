import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// Three nodes, of which the first has an address for the second that answers nothing, as if the path were cut.
private struct CutPath {
    static let key = ForwardingKey(clusterKey: [UInt8](repeating: 7, count: 32))

    let authority: ClusterPKI.Issued
    let a: TestNode
    let b: TestNode
    let c: TestNode
    let addressOfB: HostPort
    let addressOfC: HostPort
    private let silent: any Channel

    /// - Parameter forwardedMax: the limit of the helper.
    init(forwardedMax: Int = 64) async throws {
        authority = try TestPKI.authority()
        a = TestNode("a", tls: try TestPair.tls("a", authority)) { $0.forwardingKey = Self.key }
        b = TestNode("b", tls: try TestPair.tls("b", authority)) { $0.forwardingKey = Self.key }
        c = TestNode("c", tls: try TestPair.tls("c", authority)) {
            $0.forwardingKey = Self.key
            $0.forwardedMax = forwardedMax
        }
        silent = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .childChannelOption(.autoRead, value: false)
            .bind(host: "127.0.0.1", port: 0).get()
        _ = try await a.transport.start()
        addressOfB = try await b.transport.start()
        addressOfC = try await c.transport.start()
        c.transport.setPeers([Peer(id: b.id, address: addressOfB)])
        let unreachable = HostPort(host: "127.0.0.1", port: silent.localAddress?.port ?? 0)
        a.transport.setPeers([Peer(id: b.id, address: unreachable), Peer(id: c.id, address: addressOfC)])
        try await eventually("the helper is linked") { [a, b, c] in
            a.transport.isLinked(to: c.id.name) && c.transport.isLinked(to: b.id.name)
        }
    }

    func stop() async {
        for node in [a, b, c] { await node.transport.stop() }
        try? await silent.close()
    }

    static func with(forwardedMax: Int = 64, _ body: (CutPath) async throws -> Void) async throws {
        let path = try await CutPath(forwardedMax: forwardedMax)
        do {
            try await body(path)
        } catch {
            await path.stop()
            throw error
        }
        await path.stop()
    }

    func echo(_ text: String) async throws -> String {
        let reply = try await a.transport.ask(
            b.id.name, method: 1, payload: ByteBuffer(string: text), timeout: .seconds(5))
        return String(buffer: reply)
    }
}

@Suite("Connections through a third node (D4)", .timeLimit(.minutes(2)))
struct ForwardingTests {
    @Test("A peer whose path is cut is reached through a helper, on all lanes, and knows who calls")
    func forwarded() async throws {
        try await CutPath.with { path in
            try await Task.sleep(for: .milliseconds(300))
            #expect(!path.a.transport.isLinked(to: path.b.id.name))
            path.a.transport.setPath(to: path.b.id.name, via: path.c.id.name)
            try await eventually("all lanes are up") {
                path.a.events.has(.linkUp(path.b.id, .media)) && path.a.transport.isLinked(to: path.b.id.name)
            }
            #expect(try await path.echo("through c") == "through c")
            #expect(path.b.media.seen.withLock { $0.open.contains { $0.peer == path.a.id } })
            #expect(path.a.transport.linkedAddress(of: path.b.id) == nil)
        }
    }

    @Test("Much in both directions arrives whole and in order")
    func much() async throws {
        try await CutPath.with { path in
            path.a.transport.setPath(to: path.b.id.name, via: path.c.id.name)
            try await eventually("the lanes are up") { path.a.transport.isLinked(to: path.b.id.name) }
            for number in UInt32(0)..<5_000 {
                try path.a.transport.tell(path.b.id.name, method: 2, payload: ByteBuffer(integer: number))
            }
            let reply = try await path.a.transport.ask(
                path.b.id.name, method: 5, payload: ByteBuffer(integer: UInt32(6 << 20)), timeout: .seconds(20))
            #expect(reply.readableBytes == 6 << 20)
            #expect(path.b.control.seen.withLock { $0.tells } == Array(0..<5_000))
        }
    }

    @Test("A link changes its path within a second, in both directions of the change, again and again")
    func changes() async throws {
        try await CutPath.with { path in
            path.a.transport.setPeers([
                Peer(id: path.b.id, address: path.addressOfB), Peer(id: path.c.id, address: path.addressOfC),
            ])
            for round in 0..<6 {
                try await eventually("the links are up") { path.a.transport.isLinked(to: path.b.id.name) }
                #expect(try await path.echo("\(round)") == "\(round)")
                // A link that was up for less is dialled after a wait.
                try await Task.sleep(for: DialStateMachine.flapTime)
                let losses = path.a.events.count(.linkLost(path.b.id, .control))
                let began = MonotonicTime.now()
                path.a.transport.setPath(to: path.b.id.name, via: round.isMultiple(of: 2) ? path.c.id.name : nil)
                try await eventually("the link was replaced") {
                    path.a.events.count(.linkLost(path.b.id, .control)) > losses
                        && path.a.transport.isLinked(to: path.b.id.name)
                }
                #expect(MonotonicTime.now() - began < .seconds(1))
            }
        }
    }

    @Test("The end of the peer's process ends the forwarded links, and the helper's refusal is no proof of it")
    func peerEnds() async throws {
        try await CutPath.with { path in
            path.a.transport.setPath(to: path.b.id.name, via: path.c.id.name)
            try await eventually("the lanes are up") { path.a.transport.isLinked(to: path.b.id.name) }
            await path.b.transport.stop()
            try await eventually("the link ended") { path.a.events.has(.linkLost(path.b.id, .control)) }
            await path.c.transport.stop()
            try await Task.sleep(for: .milliseconds(300))
            #expect(!path.a.events.has(.connectRefused(path.b.id)))
        }
    }

    @Test(
        "A connection to forward is closed without a valid tag, and to a node that is no peer",
        arguments: ["lane-0.0000000000000000.b", "lane-0..b", "media.zz.b", "lane-0.0000000000000000.nobody"])
    func invalid(serverName: String) async throws {
        try await CutPath.with { path in
            let node = try ClusterPKI.issueNode(path.a.id.name, authority: path.authority)
            let raw = try await RawConnection.secured(
                to: path.addressOfC, as: node, authority: path.authority, serverName: serverName)
            try await raw.isClosedByPeer()
            #expect(path.c.events.has(.rejected(.refused)))
            #expect(path.b.control.seen.withLock { $0.tells.isEmpty })
        }
    }

    @Test("Connections beyond the helper's limit are closed, and its own links stay up")
    func limit() async throws {
        try await CutPath.with(forwardedMax: 1) { path in
            path.a.transport.setPath(to: path.b.id.name, via: path.c.id.name)
            try await eventually("one lane was refused") { path.c.events.has(.rejected(.crowded)) }
            #expect(!path.a.transport.isLinked(to: path.b.id.name))
            #expect(path.a.transport.isLinked(to: path.c.id.name))
        }
    }

    @Test("A helper that reaches the peer only through others does not forward")
    func oneHop() async throws {
        try await CutPath.with { path in
            path.c.transport.setPeers([
                Peer(id: path.b.id, address: path.addressOfB),
                Peer(id: node("d"), address: HostPort(host: "127.0.0.1", port: 1)),
            ])
            path.c.transport.setPath(to: path.b.id.name, via: node("d").name)
            path.a.transport.setPath(to: path.b.id.name, via: path.c.id.name)
            try await eventually("the helper refused") { path.c.events.has(.rejected(.refused)) }
            #expect(!path.a.transport.isLinked(to: path.b.id.name))
        }
    }

    private func node(_ name: String) -> NodeID { NodeID(name: NodeName(unchecked: name), incarnation: 1) }
}
