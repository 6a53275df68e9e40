import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Foundation
import Glibc
import Testing

@Suite(
    "The packet plane's TLS and DTLS endpoints (RFC 8656 §3.1, RFC 6347, D8)",
    .enabled(if: TestCertificate.canBeMade, "openssl is not installed"), .serialized)
struct SecureEndpointTests {
    /// A client that control knows, with an allocation and a channel to the peer.
    private func connect(
        _ harness: PlaneHarness, isDatagram: Bool, peer: LoopbackSocket
    ) throws -> (client: SecureClient, flow: RelayFlow, allocation: (id: UInt32, relayed: TransportAddress)) {
        let endpoint = isDatagram ? harness.sessionEndpoint : harness.secureEndpoint
        let client = try #require(SecureClient(endpoint, isDatagram: isDatagram))
        client.write(PlaneHarness.request(0x003))
        let flow = try harness.flow(from: client.socket.address)
        return (client, flow, try harness.installWithChannel(flow, peer: peer.address))
    }

    @Test("A certificate that was renewed is shown to clients that come then, and those that are there go on")
    func renewal() throws {
        let (old, new) = (try TestCertificate(), try TestCertificate())
        let security = try EndpointSecurity(certificateFile: old.certificate, keyFile: old.key)
        let harness = try PlaneHarness.secured { $0.security = security }
        let peer = LoopbackSocket()
        let clients = try [false, true].map { try connect(harness, isDatagram: $0, peer: peer) }
        #expect(try security.reload() == false)
        // Half of a renewal is none.
        try replace(old.certificate, new.certificate)
        let error = #expect(throws: ApusError.self) { try security.reload() }
        #expect(error?.code == .configurationInvalid)
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false) != nil)
        try replace(old.key, new.key)
        #expect(try security.reload() == true)
        pause(milliseconds: 300)
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false, authority: new.certificate) != nil)
        #expect(SecureClient(harness.sessionEndpoint, isDatagram: true, authority: new.certificate) != nil)
        for (client, _, _) in clients {
            client.write(PlaneHarness.channelData(0x4000, [1, 2, 3, 4]))
            #expect(peer.receive() == [1, 2, 3, 4])
        }
    }

    @Test("A renewal that was read is shown to nobody before it is used")
    func renewalWaits() throws {
        let (old, new) = (try TestCertificate(), try TestCertificate())
        let security = try EndpointSecurity(certificateFile: old.certificate, keyFile: old.key)
        let harness = try PlaneHarness.secured { $0.security = security }
        let before = "\(old.certificate).before"
        try replace(before, old.certificate)
        try replace(old.certificate, new.certificate)
        try replace(old.key, new.key)
        let renewal = try #require(try security.renewal())
        pause(milliseconds: 300)
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false, authority: before) != nil)
        security.use(renewal)
        pause(milliseconds: 300)
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false, authority: new.certificate) != nil)
        #expect(try security.renewal() == nil, "nothing is new any more")
        // One that was read before another came into use is out of date.
        security.use(renewal)
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false, authority: new.certificate) != nil)
    }

    private func replace(_ file: String, _ other: String) throws {
        try Data(contentsOf: URL(fileURLWithPath: other)).write(to: URL(fileURLWithPath: file), options: .atomic)
    }

    @Test("Channel data, indications and answers pass both ways", arguments: [false, true])
    func channel(isDatagram: Bool) throws {
        let harness = try PlaneHarness.secured()
        let peer = LoopbackSocket()
        let (client, flow, allocation) = try connect(harness, isDatagram: isDatagram, peer: peer)
        #expect(flow.transport == (isDatagram ? .dtls : .tls))
        #expect(flow.local == (isDatagram ? harness.sessionEndpoint : harness.secureEndpoint))
        harness.command(.send(flow, [1, 1, 0, 0]))
        #expect(client.receive(bytes: 4) == [1, 1, 0, 0])
        for count in [4, 40, 400, 1_200, 9_000] {
            let payload = [UInt8](repeating: UInt8(count & 0xFF), count: count)
            let message = PlaneHarness.channelData(0x4000, payload)
            client.write(message)
            #expect(peer.receive() == payload)
            peer.send(payload, to: allocation.relayed)
            #expect(client.receive(bytes: message.count) == message)
        }
        client.write(PlaneHarness.sendIndication(peer.address, [5, 6, 7]))
        #expect(peer.receive() == [5, 6, 7])
        let other = LoopbackSocket()
        harness.command(.permit(allocation: allocation.id, peer: other.address, ports: 1...65_535))
        harness.settle()
        other.send([9, 9, 9, 9], to: allocation.relayed)
        let indication = client.receive(bytes: 40)
        #expect(indication.prefix(2) == [0, 0x17] && indication.suffix(4) == [9, 9, 9, 9])
        #expect(harness.remove(allocation.id)?.upPackets == 6)
    }

    @Test(
        "A client that closes, and one that control closes, get close_notify, and control is told",
        arguments: [false, true])
    func close(isDatagram: Bool) throws {
        let harness = try PlaneHarness.secured()
        let peer = LoopbackSocket()
        let (closed, flow, _) = try connect(harness, isDatagram: isDatagram, peer: peer)
        harness.command(.closeStream(flow))
        #expect(closed.receive() == [])
        #expect(harness.event { $0 == .streamClosed(flow) ? true : nil } == true)
        // Released at the end of the scope, which says close_notify.
        let closing = try connect(harness, isDatagram: isDatagram, peer: peer).flow
        #expect(harness.event { $0 == .streamClosed(closing) ? true : nil } == true)
        #expect(harness.counters { $0.handshakes == 2 && $0.connections == 0 && $0.sessions == 0 } != nil)
    }

    @Test("D13: what begins with no ClientHello, or with one of 128 KiB, costs no TLS connection and is counted")
    func garbage() throws {
        let harness = try PlaneHarness.secured()
        let huge: [UInt8] = [22, 3, 1, 0x40, 0, 1, 2, 0, 0]
        let pieces: [[UInt8]] = [
            Array("GET / HTTP/1.1\r\n\r\n".utf8), [0, 1, 0, 0], huge, [22, 3, 1, 0, 9, 2, 0, 0, 5],
        ]
        for bytes in pieces {
            let client = LoopbackSocket(connectedTo: harness.secureEndpoint)
            client.write(bytes)
            #expect(client.receive() ?? [] == [])
        }
        // What begins well and goes on badly is libssl's to refuse.
        let client = LoopbackSocket(connectedTo: harness.secureEndpoint)
        client.write([22, 3, 1, 0, 9, 1, 0, 0, 5] + [UInt8](repeating: 0xFF, count: 300))
        _ = client.receive()
        #expect(harness.counters { $0.handshakesFailed == 5 && $0.connections == 0 } != nil)
    }

    @Test("A hello that comes byte by byte is waited for")
    func bytewise() throws {
        let harness = try PlaneHarness.secured { $0.handshakeTimeout = .milliseconds(500) }
        let client = LoopbackSocket(connectedTo: harness.secureEndpoint)
        for byte: UInt8 in [22, 3, 1, 0, 200, 1, 0, 0, 190, 3, 3] {
            client.write([byte])
            usleep(2_000)
        }
        #expect(client.receive(milliseconds: 100) == nil)
        #expect(client.receive() ?? [] == [])
        #expect(harness.counters { $0.handshakesLate == 1 && $0.handshakesFailed == 0 } != nil)
    }

    @Test("D13: what comes for a client over TLS that does not read is dropped at the bound and counted, others go on")
    func slowClient() throws {
        let harness = try PlaneHarness.secured { $0.streamOutputMax = 32_768 }
        let peer = LoopbackSocket()
        let (silent, _, slow) = try connect(harness, isDatagram: false, peer: peer)
        let (reader, _, other) = try connect(harness, isDatagram: false, peer: peer)
        let before = residentBytes()
        let block = [UInt8](repeating: 1, count: 8_000)
        // More than the kernel keeps for a connection.
        for _ in 0..<120 {
            for _ in 0..<40 { peer.send(block, to: slow.relayed) }
            usleep(2_000)
            peer.send([9], to: other.relayed)
            #expect(reader.receive(bytes: 8) == [0x40, 0, 0, 1, 9, 0, 0, 0])
        }
        #expect(harness.counters { $0.slowStream > 0 } != nil)
        #expect(residentBytes() - before < 8 << 20)
        // What was kept comes whole when it reads again.
        let first = silent.receive(bytes: 8_004)
        #expect(first.count >= 8_004 && first.prefix(4) == [0x40, 0, 0x1F, 0x40])
        #expect(silent.receive(bytes: 40_000).count >= 40_000)
    }

    @Test("D13: of 1,000 connections that never finish their handshake few are kept, and a good one comes through")
    func unfinishedStreams() throws {
        let harness = try PlaneHarness.secured {
            $0.handshakesMax = 50
            $0.handshakeTimeout = .milliseconds(1_500)
        }
        let peer = LoopbackSocket()
        let (client, _, allocation) = try connect(harness, isDatagram: false, peer: peer)
        let before = residentBytes()
        var outsiders: [LoopbackSocket] = []
        for number in 0..<1_000 {
            let outsider = LoopbackSocket(connectedTo: harness.secureEndpoint)
            let hello: [UInt8] = [22, 3, 1, 0x3F, 0xFF, 1, 0, 0x3F, 0xFB, 3, 3] + .init(repeating: 0, count: 600)
            if number % 2 == 0 { outsider.write(hello) }
            outsiders.append(outsider)
        }
        #expect(SecureClient(harness.secureEndpoint, isDatagram: false) != nil)
        peer.send([1, 2, 3, 4], to: allocation.relayed)
        #expect(client.receive(bytes: 8) == [0x40, 0, 0, 4, 1, 2, 3, 4])
        #expect(harness.counters { $0.handshakesDisplaced >= 940 && $0.connections <= 52 } != nil)
        #expect(residentBytes() - before < 16 << 20)
        #expect(harness.counters { $0.handshakesDisplaced + $0.handshakesLate >= 1_000 && $0.connections == 1 } != nil)
        withExtendedLifetime(outsiders) {}
    }

    @Test("RFC 6347 §4.2.1: a flood of hellos without cookies keeps nothing and is answered with less than it sends")
    func helloFlood() throws {
        let harness = try PlaneHarness.secured()
        let hello = HandmadeHello.bytes()
        var outsiders: [LoopbackSocket] = []
        for number in 0..<200 {
            outsiders.append(LoopbackSocket(datagramsTo: harness.sessionEndpoint, from: 0x7F00_0100 + UInt32(number)))
        }
        let before = residentBytes()
        for _ in 0..<50 {
            for outsider in outsiders { outsider.write(hello) }
            for outsider in outsiders {
                guard let answer = outsider.receive() else { continue }
                #expect(HandmadeHello.cookie(of: answer)?.isEmpty == false)
                #expect(answer.count < hello.count)
            }
        }
        // Another's cookie is none.
        outsiders[0].write(hello)
        let cookie = try #require(outsiders[0].receive().flatMap(HandmadeHello.cookie))
        outsiders[1].write(HandmadeHello.bytes(cookie: cookie))
        let answer = try #require(outsiders[1].receive())
        #expect(HandmadeHello.cookie(of: answer) != nil && HandmadeHello.cookie(of: answer) != cookie)
        outsiders[0].write([1, 2, 3])
        #expect(harness.counters { $0.malformed == 1 && $0.sessions == 0 && $0.handshakesDisplaced == 0 } != nil)
        #expect(residentBytes() - before < 8 << 20)
    }

    @Test("D13: of 1,000 DTLS handshakes that never finish few are kept, repeated and ended, and a good one is done")
    func unfinishedSessions() throws {
        let harness = try PlaneHarness.secured {
            $0.handshakesMax = 50
            $0.handshakeTimeout = .seconds(2)
        }
        let before = residentBytes()
        var outsiders: [LoopbackSocket] = []
        for _ in 0..<1_000 {
            let outsider = LoopbackSocket(datagramsTo: harness.sessionEndpoint)
            outsider.write(HandmadeHello.bytes())
            let cookie = try #require(outsider.receive().flatMap(HandmadeHello.cookie))
            outsider.write(HandmadeHello.bytes(cookie: cookie))
            outsiders.append(outsider)
        }
        let last = try #require(outsiders.last)
        // The server's flight, and a second later the same again.
        #expect(last.receive()?.first == 22)
        while last.receive(milliseconds: 300) != nil {}
        #expect(last.receive(milliseconds: 1_500)?.first == 22)
        #expect(SecureClient(harness.sessionEndpoint, isDatagram: true) != nil)
        #expect(harness.counters { $0.handshakesDisplaced >= 949 && $0.handshakes == 1 && $0.sessions <= 51 } != nil)
        #expect(residentBytes() - before < 16 << 20)
        #expect(harness.counters { $0.handshakesDisplaced + $0.handshakesLate == 1_000 && $0.sessions == 0 } != nil)
    }

    @Test("Records that are not the client's change nothing for a session, nor does a hello without its cookie")
    func forgedRecords() throws {
        let harness = try PlaneHarness.secured()
        let peer = LoopbackSocket()
        let (client, flow, allocation) = try connect(harness, isDatagram: true, peer: peer)
        let forged: [[UInt8]] = [
            [23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 40] + .init(repeating: 7, count: 40),
            [21, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 99, 0, 2, 2, 40],
            [21, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 2, 2, 40],
            [23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 0],
            [22, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 4, 1, 2, 3, 4],
            [23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 23] + .init(repeating: 7, count: 23),
            [23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0, 99, 0, 24] + .init(repeating: 7, count: 24),
            HandmadeHello.bytes(), [22], .init(repeating: 63, count: 1_200),
        ]
        for bytes in forged { client.socket.write(bytes) }
        client.write(PlaneHarness.channelData(0x4000, [1, 2, 3]))
        #expect(peer.receive() == [1, 2, 3])
        // One that brings the cookie is a client that began anew: its old session ends.
        let probe = LoopbackSocket(datagramsTo: harness.sessionEndpoint)
        probe.write(HandmadeHello.bytes())
        #expect(probe.receive().flatMap(HandmadeHello.cookie) != nil)
        client.socket.write(HandmadeHello.bytes())
        var cookie: [UInt8]?
        for _ in 0..<4 where cookie == nil { cookie = client.socket.receive().flatMap(HandmadeHello.cookie) }
        client.socket.write(HandmadeHello.bytes(cookie: try #require(cookie)))
        #expect(harness.event { $0 == .streamClosed(flow) ? true : nil } == true)
        #expect(harness.remove(allocation.id) != nil)
    }

    @Test("D13: a session that says nothing is closed, one over the bound takes the place of the unauthenticated")
    func idle() throws {
        let harness = try PlaneHarness.secured {
            $0.streamIdleMax = .milliseconds(1_500)
            $0.sessionsMax = 1
            $0.handshakeTimeout = .milliseconds(1_500)
        }
        let first = try #require(SecureClient(harness.sessionEndpoint, isDatagram: true))
        let second = LoopbackSocket(datagramsTo: harness.sessionEndpoint)
        second.write(HandmadeHello.bytes())
        let cookie = try #require(second.receive().flatMap(HandmadeHello.cookie))
        second.write(HandmadeHello.bytes(cookie: cookie))
        // The server's flight.
        #expect(second.receive()?.first == 22)
        #expect(first.receive() == [])
        let ended = harness.counters {
            $0.refusedStreams == 0 && $0.unauthenticatedDisplaced == 1 && $0.handshakesLate == 1 && $0.sessions == 0
        }
        #expect(ended != nil)
    }

    /// Memory of this process that is in use.
    private func residentBytes() -> Int {
        let words = (try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8))?.split(separator: " ") ?? []
        return (words.dropFirst().first.flatMap { Int($0) } ?? 0) * 4_096
    }
}
