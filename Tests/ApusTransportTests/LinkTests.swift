import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

@Suite("Links come, go and refuse (D3, D4)", .timeLimit(.minutes(2)))
struct LinkTests {
    @Test("A peer that stops is seen at once, is found refusing, and is linked again when it is back")
    func restart() async throws {
        let pair = try await TestPair()
        let waiting = Task { await code { _ = try await pair.ask(3, timeout: .seconds(30)) } }
        try await eventually("the handler runs") { pair.b.control.seen.withLock { $0.sleeping } == 1 }
        try await Task.sleep(for: DialStateMachine.flapTime)
        await pair.b.transport.stop()
        #expect(await waiting.value == .linkLost)
        try await eventually("the loss of both lanes and the refusal are told") {
            pair.a.events.has(.linkLost(pair.b.id, .control)) && pair.a.events.has(.linkLost(pair.b.id, .media))
                && pair.a.events.has(.connectRefused(pair.b.id))
        }
        #expect(await code { _ = try await pair.ask(1) } == .noRoute)
        let again = TestNode("b", tls: try TestPair.tls("b", pair.authority), port: pair.addressOfB.port)
        _ = try await again.transport.start()
        try await eventually("the links are up again") { pair.a.events.count(.linkUp(pair.b.id, .control)) == 2 }
        #expect(await code { _ = try await pair.ask(1) } == nil)
        await again.transport.stop()
        await pair.stop()
    }

    @Test("Another life at the address proves that the old one is gone; as a new peer it is linked")
    func reincarnation() async throws {
        let pair = try await TestPair()
        await pair.b.transport.stop()
        let reborn = TestNode(
            "b", incarnation: 2, tls: try TestPair.tls("b", pair.authority), port: pair.addressOfB.port)
        _ = try await reborn.transport.start()
        try await eventually("the new life was met, and proves the end of the old one") {
            pair.a.events.has(.rejected(.incarnation)) && pair.a.events.has(.connectRefused(pair.b.id))
        }
        pair.a.transport.setPeers([Peer(id: reborn.id, address: pair.addressOfB)])
        try await eventually("the new life is linked") { pair.a.events.has(.linkUp(reborn.id, .control)) }
        #expect(await code { _ = try await pair.ask(1) } == nil)
        await reborn.transport.stop()
        await pair.stop()
    }

    @Test("A peer that is dropped from the list is neither linked nor dialled any longer")
    func dropped() async throws {
        try await TestPair.with { pair in
            pair.a.transport.setPeers([])
            try await eventually("the other side saw the lanes end") {
                pair.b.media.seen.withLock { $0.closedCount } == 1
            }
            #expect(await code { _ = try await pair.ask(1) } == .noRoute)
            #expect(!pair.a.events.has(.linkLost(pair.b.id, .media)))
        }
    }

    @Test("Nothing is received from an incarnation that has ended, on its present connections or on new ones")
    func ended() async throws {
        try await TestPair.with { pair in
            let (a, b) = (pair.a, pair.b)
            // Where nobody listens: only the connections of `a` count.
            let peer = Peer(id: a.id, address: HostPort(host: "127.0.0.1", port: 1))
            b.transport.setPeers([peer])
            #expect(await code { _ = try await pair.ask(1) } == nil)
            b.transport.setPeers([])
            try await eventually("the input of its lanes is refused") { b.events.count(.rejected(.incarnation)) >= 2 }
            let count = b.control.seen.withLock { $0.tells.count }
            try? a.transport.tell(b.id.name, method: 2, payload: ByteBuffer(integer: UInt32(7)))
            try await eventually("its connections are closed") { a.events.has(.linkLost(b.id, .control)) }
            try await eventually("its new connections are refused") {
                b.events.count(.rejected(.incarnation)) >= 5 && a.events.has(.rejected(.refused))
            }
            #expect(b.control.seen.withLock { $0.tells.count } == count)
            let ups = a.events.count(.linkUp(b.id, .control))
            b.transport.setPeers([peer])
            try await eventually("a member again, it is linked") { a.events.count(.linkUp(b.id, .control)) > ups }
            let next = NodeID(name: a.id.name, incarnation: a.id.incarnation + 1)
            b.transport.setPeers([Peer(id: next, address: peer.address)])
            try await eventually("its next incarnation ends it") { a.events.count(.linkLost(b.id, .control)) > 1 }
        }
    }

    @Test("Both nodes hear each other")
    func heard() async throws {
        try await TestPair.with { pair in
            _ = try await pair.ask(1)
            try await eventually("both were heard") {
                pair.a.events.has(.heard(pair.b.id)) && pair.b.events.has(.heard(pair.a.id))
            }
        }
    }

    @Test("An idle link is kept alive by pings")
    func pings() async throws {
        try await TestPair.with(configure: { $0.pingInterval = .milliseconds(300) }) { pair in
            try await Task.sleep(for: .milliseconds(1500))
            #expect(await code { _ = try await pair.ask(1) } == nil)
            #expect(pair.a.events.count(.linkUp(pair.b.id, .control)) == 1)
            #expect(!pair.b.events.has(.rejected(.silent)))
        }
    }

    @Test("A port in use is refused with 10019 and the address")
    func portInUse() async throws {
        try await TestPair.with { pair in
            let second = TestNode("c", tls: try TestPair.tls("c", pair.authority), port: pair.addressOfB.port)
            do throws(ApusError) {
                _ = try await second.transport.start()
                Issue.record("the address was bound twice")
            } catch {
                #expect(error.code == .addressInUse)
                #expect(error.message.contains("\(pair.addressOfB)"))
            }
        }
    }

    @Test("A listener that closes by itself is opened again at its port")
    func listenerReopens() async throws {
        try await TestPair.with { pair in
            let socket = try #require(Self.listener(port: pair.addressOfB.port))
            shutdown(socket, CInt(SHUT_RDWR))
            try await eventually("the end and the new listener are told") {
                pair.b.events.has(.listening(false)) && pair.b.events.has(.listening(true))
            }
            let late = TestNode("c", tls: try TestPair.tls("c", pair.authority))
            _ = try await late.transport.start()
            late.transport.setPeers([Peer(id: pair.b.id, address: pair.addressOfB)])
            try await eventually("another node is linked") { late.events.has(.linkUp(pair.b.id, .control)) }
            await late.transport.stop()
        }
    }

    /// The descriptor of this process's listener at a TCP port of 127.0.0.1.
    private static func listener(port: Int) -> CInt? {
        (3..<65_536).first { descriptor in
            var (listens, length) = (CInt(0), socklen_t(MemoryLayout<CInt>.size))
            guard getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0, listens == 1
            else { return false }
            var address = sockaddr_in()
            var size = socklen_t(MemoryLayout<sockaddr_in>.size)
            let result = withUnsafeMutablePointer(to: &address) {
                $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &size) }
            }
            return result == 0 && Int(UInt16(bigEndian: address.sin_port)) == port
        }
    }

    @Test("A certificate that cannot be read is refused with 10022 and the path")
    func missingCertificate() async throws {
        let node = TestNode(
            "a",
            tls: TransportTLS(
                authority: .file("/nonexistent/ca.pem"), certificateChain: .file("/nonexistent/n.pem"),
                privateKey: .file("/nonexistent/n.key")))
        do throws(ApusError) {
            _ = try await node.transport.start()
            Issue.record("the transport started without certificates")
        } catch {
            #expect(error.code == .configurationInvalid)
            #expect(error.message.contains("/nonexistent/ca.pem"))
        }
    }

    @Test("Keys are written for the owner's eyes only, and read back")
    func keyFiles() throws {
        let directory = FileManager.default.temporaryDirectory.appendingPathComponent("apus-pki-\(UUID())").path
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let authority = try TestPKI.authority()
        try ClusterPKI.write(authority, certificate: directory + "/ca.pem", key: directory + "/ca.key")
        let mode = try FileManager.default.attributesOfItem(atPath: directory + "/ca.key")[.posixPermissions] as? Int
        #expect(mode == 0o600)
        let read = try ClusterPKI.read(certificate: directory + "/ca.pem", key: directory + "/ca.key")
        #expect(read.certificatePEM == authority.certificatePEM)
        _ = try ClusterPKI.issueNode(
            NodeName(unchecked: "a"), hosts: ["10.0.0.1", "fd00::1", "cam.example"], authority: read)
    }
}

@Suite("Media lanes (D7)", .timeLimit(.minutes(2)))
struct MediaLaneTests {
    private func connection(_ node: TestNode) async throws -> MediaConnection {
        try await eventually("the media lane is open") { node.media.seen.withLock { !$0.open.isEmpty } }
        return try #require(node.media.seen.withLock { $0.open.first })
    }

    @Test("Frames arrive in order, in both directions of the one connection")
    func frames() async throws {
        try await TestPair.with { pair in
            for (sender, receiver, isInitiator) in [(pair.a, pair.b, true), (pair.b, pair.a, false)] {
                let lane = try await connection(sender)
                #expect(lane.isInitiator == isInitiator)
                #expect(lane.peer == receiver.id)
                try await lane.eventLoop.submit {
                    for number in UInt32(0)..<2000 {
                        var buffer = ByteBuffer()
                        LinkFrame(kind: .media, correlation: number, payload: ByteBuffer(repeating: 7, count: 1000))
                            .encode(into: &buffer)
                        #expect(lane.write(buffer))
                    }
                    #expect(lane.pendingByteCount >= 2000 * 1012)
                    lane.flush()
                }.get()
                try await eventually("all frames came") { receiver.media.seen.withLock { $0.frames.count } == 2000 }
                #expect(receiver.media.seen.withLock { $0.frames } == Array(0..<2000))
            }
        }
    }

    @Test("A request on the media lane is answered; one that nobody answers gets 10005")
    func requests() async throws {
        try await TestPair.with { pair in
            let lane = try await connection(pair.a)
            let answer = lane.eventLoop.makePromise(of: String.self)
            let late = lane.eventLoop.makePromise(of: Int32.self)
            lane.eventLoop.execute {
                lane.request(method: 1, payload: ByteBuffer(string: "subscribe"), deadline: .seconds(5)) { result in
                    answer.succeed((try? result.get()).map { String(buffer: $0) } ?? "failed")
                }
                lane.request(method: 9, payload: ByteBuffer(), deadline: .milliseconds(30)) { result in
                    if case .failure(let failure) = result {
                        late.succeed(failure.error.code.number)
                    } else {
                        late.succeed(0)
                    }
                }
                lane.flush()
            }
            #expect(try await answer.futureResult.get() == "subscribe")
            #expect(try await late.futureResult.get() == ErrorCode.deadlineExceeded.number)
        }
    }

    @Test("Writes over the bound are refused and the connection lives on")
    func bound() async throws {
        try await TestPair.with(configure: { $0.mediaOutboundByteCountMax = 10_000 }) { pair in
            let lane = try await connection(pair.a)
            let written = try await lane.eventLoop.submit { () -> [Bool] in
                var buffer = ByteBuffer()
                LinkFrame(kind: .media, payload: ByteBuffer(repeating: 1, count: 4000)).encode(into: &buffer)
                let results = (0..<4).map { _ in lane.write(buffer) }
                lane.flush()
                return results
            }.get()
            #expect(written == [true, true, false, false])
            try await eventually("the two frames came") { pair.b.media.seen.withLock { $0.frames.count } == 2 }
        }
    }
}
