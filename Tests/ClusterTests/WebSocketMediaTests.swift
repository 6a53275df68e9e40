import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Media over `/v1/ws` (docs/media-over-websocket.md), at real nodes.
@Suite("Media over a WebSocket", .serialized, .timeLimit(.minutes(5)))
struct WebSocketMediaTests {
    private static func viewer(
        _ cluster: Cluster, node: Int, _ hello: String, receiveBuffer: CInt? = nil
    ) throws -> MediaWebSocket {
        let socket = try #require(MediaWebSocket(port: cluster.httpPort(node), receiveBuffer: receiveBuffer))
        try #require(socket.hello(hello) == nil)
        return socket
    }

    private static func app(_ cluster: Cluster, _ arguments: String...) throws -> String {
        let minted = try Cluster.run(["admin", "token", "--role", "app", "--dir", cluster.directory] + arguments)
        return "\"token\":\"\(minted.output.trimmingCharacters(in: .whitespacesAndNewlines))\""
    }

    /// A camera whose frames are logged.
    private static func camera(_ cluster: Cluster, _ id: String, _ pattern: String = "160x120@25") async throws
        -> String
    {
        let log = cluster.file("\(id).frames")
        try cluster.start("device", "--id", id, "--test-pattern", pattern, "--log", log)
        _ = try await cluster.primary(of: "\(id)/0")
        return log
    }

    // MARK: - Playing

    @Test("A viewer whose node is killed resumes at another with ticket, grant and position: every frame once")
    func resume() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_100)
        defer { cluster.down() }
        let log = try await Self.camera(cluster, "cam")
        // A node without the channel, and then the primary: both ways of losing frames.
        let primary = try await cluster.primary(of: "cam/0")
        var node = primary
        var hello = try Self.app(cluster, "--access", "eve")
        var body = "{\"device\":\"cam\"}"
        var received: [MediaWebSocket.Frame] = []
        for round in 0..<2 {
            let viewer = try Self.viewer(cluster, node: node, hello)
            let answer = try #require(viewer.ask("streams.play", body).response)
            viewer.read(seconds: 3) { viewer.frames.count > 40 }
            #expect(viewer.frames.count > 40)
            if round == 0 {
                kill(try cluster.pid(node), SIGKILL)
                viewer.read(seconds: 2)
                #expect(viewer.closeCode == 1006)
            }
            received += viewer.frames.filter { !$0.isRepeated }
            let last = try #require(received.last)
            let endpoints = try #require(answer["endpoints"] as? [String])
            let next = try #require(
                (1...3).first { $0 != node && endpoints.contains("ws://127.0.0.1:\(cluster.httpPort($0))/v1/ws") })
            node = next
            hello = "\"ticket\":\"\(try #require(viewer.welcome["ticket"] as? String))\""
            body =
                "{\"device\":\"cam\",\"after\":{\"epoch\":\(last.epoch),\"sequence\":\"\(last.sequence)\"},"
                + "\"grant\":\"\(try #require(answer["grant"] as? String))\"}"
            viewer.close()
        }
        // A camera says when it captured a picture, from which a page computes the delay.
        let late = received.filter { $0.flags & 2 == 0 }.map { frame -> UInt32 in
            let capture = frame.bytes[44..<48].reduce(0) { $0 << 8 | UInt32($1) }
            return UInt32(truncatingIfNeeded: Int64(Date().timeIntervalSince1970 * 1000)) &- capture
        }
        #expect(!late.isEmpty && late.allSatisfy { $0 < 60_000 }, "\(late.prefix(5))")
        let sent = Frames(log)
        let numbers = received.map(\.sequence)
        #expect(numbers == Array(numbers[0]...(numbers.last ?? 0)), "frames are missing, doubled or out of order")
        let known = Dictionary(sent.lines.map { ($0.seq, $0.sha256) }) { first, _ in first }
        let differing = received.count { known[$0.sequence, default: $0.sha256] != $0.sha256 }
        #expect(differing == 0)
        #expect(received.count { known[$0.sequence] != nil } > 60)
    }

    @Test("Several streams share a socket, a stopped one is silent, and a silent one is kept alive")
    func several() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        for id in ["ws-a", "ws-b"] { _ = try await Self.camera(cluster, id, "64x64@5") }
        let viewer = try Self.viewer(cluster, node: 2, try Self.app(cluster))
        let keepalive = try #require(viewer.welcome["streamKeepaliveMs"] as? Int)
        #expect((viewer.welcome["endpoints"] as? [String])?.first == "ws://127.0.0.1:\(cluster.httpPort(2))/v1/ws")
        let streams = try ["ws-a", "ws-b"].map { id in
            try #require(viewer.ask("streams.play", "{\"device\":\"\(id)\"}").response?["stream"] as? Int)
        }
        viewer.read(seconds: 3) { Set(viewer.frames.map { Int($0.stream) }) == Set(streams) }
        #expect(Set(viewer.frames.map { Int($0.stream) }) == Set(streams))
        #expect(viewer.ask("streams.play", "{\"device\":\"ws-a\"}").code == Int(ErrorCode.connectionExists.number))
        #expect(viewer.ask("streams.stop", "{\"stream\":\(streams[0])}").response != nil)
        let before = viewer.frames.count
        viewer.read(seconds: 1)
        #expect(viewer.frames.count > before)
        #expect(viewer.frames[before...].allSatisfy { Int($0.stream) == streams[1] })

        // Five pictures a second: in between the node shows that it is there.
        let known = viewer.texts.count
        viewer.read(seconds: 2)
        let keepalives = viewer.texts[known...].count { $0["alive"] != nil }
        #expect(keepalives >= 5, "\(keepalives) keepalives in two seconds; one in \(keepalive) ms is announced")
        // Requests and events share the socket.
        #expect(viewer.ask("devices.list", "{}").response?["devices"] != nil)
        #expect(viewer.ask("streams.dance", "{}").code == Int(ErrorCode.methodUnknown.number))
        #expect(viewer.ask("streams.play", "{\"device\":7}").code == Int(ErrorCode.malformed.number))
        #expect(viewer.ask("streams.play", "{\"device\":\"no-such\"}").code == Int(ErrorCode.targetUnknown.number))
    }

    @Test("A page that reads slowly skips to a key frame, is told how much, and harms nobody")
    func slow() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        // Noise: 1.5 MB a second.
        let clip = cluster.file("noise.mp4")
        let made = Tool.run(
            try #require(Tool.ffmpeg),
            [
                "-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=s=1280x720:r=25,noise=alls=60:allf=t", "-t", "6",
                "-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "0", "-b:v", "12M", "-pix_fmt", "yuv420p",
                clip,
            ])
        try #require(made != nil, "ffmpeg cannot make a clip")
        try cluster.start("device", "--id", "ws-wide", "--file", clip)
        _ = try await cluster.primary(of: "ws-wide/0")
        let other = try Self.viewer(cluster, node: 1, try Self.app(cluster))
        let slow = try Self.viewer(cluster, node: 1, try Self.app(cluster), receiveBuffer: 65_536)
        for viewer in [other, slow] { #expect(viewer.ask("streams.play", "{\"device\":\"ws-wide\"}").response != nil) }
        // It reads nothing for a while, shorter than `slow_reader`.
        other.read(seconds: 7)
        let frames = other.frames.filter { !$0.isRepeated }.map(\.sequence)
        #expect(frames == Array(frames[0]...(frames.last ?? 0)), "the other viewer has lost frames")
        let bytes = other.frames.reduce(0) { $0 + $1.byteCount }
        slow.read(seconds: 40) { slow.frames.contains { $0.sequence > (frames.last ?? 0) } }
        let skips = slow.texts.compactMap { $0["streamState"] as? [String: Any] }.filter {
            $0["state"] as? String == "STATE_SKIPPED"
        }
        let count = skips.compactMap { ($0["skipped"] as? String).flatMap { Int($0) } }.reduce(0, +)
        let numbers = slow.frames.filter { !$0.isRepeated }.map(\.sequence)
        let missing = Int((numbers.last ?? 0) - (numbers.first ?? 0)) + 1 - Set(numbers).count
        #expect(bytes > 8 << 20 && count > 0 && count == missing, "\(bytes) bytes, \(skips), \(missing) are missing")
        #expect(slow.closeCode == nil)
    }

    @Test("Who has no right is refused, and a stream ends with the right, the token and the sign-in")
    func rights() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        _ = try await Self.camera(cluster, "ws-private", "64x64@5")
        let stranger = try Self.viewer(cluster, node: 3, try Self.app(cluster, "--account", "neighbours"))
        let refused = stranger.ask("streams.play", "{\"device\":\"ws-private\"}").code
        #expect(refused == Int(ErrorCode.illegalRelation.number))
        #expect(
            stranger.ask("streams.publish", "{\"source\":0}").code == Int(ErrorCode.notAllowed.number),
            "an app publishes a device's source")
        let guest = try Self.viewer(cluster, node: 2, try Self.app(cluster, "--device", "ws-other"))
        #expect(guest.ask("streams.play", "{\"device\":\"ws-private\"}").code == Int(ErrorCode.notAllowed.number))
        // The grant of another account opens nothing.
        let owner = try Self.viewer(cluster, node: 1, try Self.app(cluster, "--id", "ws-owner"))
        let grant = try #require(
            owner.ask("streams.play", "{\"device\":\"ws-private\"}").response?["grant"] as? String)
        #expect(
            stranger.ask("streams.play", "{\"device\":\"ws-private\",\"grant\":\"\(grant)\"}").code
                == Int(ErrorCode.illegalRelation.number))
        owner.read(seconds: 3) { !owner.frames.isEmpty }
        #expect(!owner.frames.isEmpty)
        #expect(try cluster.run("admin", "revoke", "--token-id", "ws-owner").status == 0)
        owner.read(seconds: 3)
        #expect((owner.texts.last?["goodbye"] as? [String: Any])?["code"] as? Int == Int(ErrorCode.tokenInvalid.number))
    }

    @Test("The stream of a guest ends within two seconds once the device is shared no more")
    func unshared() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        _ = try await Self.camera(cluster, "ws-shared", "64x64@25")
        let (device, friend) = (DeviceID(unchecked: "ws-shared"), AccountID(unchecked: "ws-friend"))
        let owner = try cluster.session(node: 1, token: try cluster.token("--role", "app", "--access", "ws-host"))
        let guest = try cluster.session(
            node: 2, token: try cluster.token("--role", "app", "--account", friend.rawValue, "--access", "ws-phone"))
        defer { for session in [owner, guest] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await owner.share(device, with: friend, control: false, acceptedBy: guest)
        }
        let viewer = try Self.viewer(cluster, node: 3, try Self.app(cluster, "--account", friend.rawValue))
        let answer = try #require(viewer.ask("streams.play", "{\"device\":\"ws-shared\"}").response)
        viewer.read(seconds: 2) { viewer.frames.count > 10 }
        #expect(viewer.frames.count > 10)
        try await owner.unshare(device, with: friend)
        viewer.read(seconds: 2)
        let count = viewer.frames.count
        viewer.read(seconds: 1)
        #expect(viewer.frames.count == count, "frames come \(viewer.frames.count - count) after the right was lost")
        // Neither ticket nor grant brings it back, once the other node has read the withdrawal, within a second.
        let (ticket, grant) = (
            try #require(viewer.welcome["ticket"] as? String), try #require(answer["grant"] as? String)
        )
        var code: Int?
        for _ in 0..<20 where code != Int(ErrorCode.illegalRelation.number) {
            try await Task.sleep(for: .milliseconds(250))
            let again = try #require(MediaWebSocket(port: cluster.httpPort(1)))
            try #require(again.hello("\"ticket\":\"\(ticket)\"") == nil)
            code = again.ask("streams.play", "{\"device\":\"ws-shared\",\"grant\":\"\(grant)\"}").code
        }
        #expect(code == Int(ErrorCode.illegalRelation.number))
    }

    // MARK: - Publishing

    @Test("Frames that a device publishes over a WebSocket are acknowledged, resumed at another node, and seen once")
    func publish() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        let token = try cluster.token("--role", "device", "--device", "ws-cam")
        func device(_ node: Int, _ credential: String) throws -> MediaWebSocket {
            let socket = try #require(MediaWebSocket(port: cluster.httpPort(node)))
            socket.send("{\"hello\":{\"role\":\"ROLE_DEVICE\",\"instance\":\"77\",\(credential)}}")
            _ = socket.named("welcome")
            return socket
        }
        func payload(_ sequence: UInt64) -> [UInt8] { (0..<160).map { UInt8(truncatingIfNeeded: $0 &+ Int(sequence)) } }

        let first = try device(1, "\"token\":\"\(token)\"")
        let opened = try #require(
            first.ask("streams.publish", "{\"source\":0,\"instance\":\"5\",\"oldest\":\"0\"}").response)
        let (stream, epoch) = (UInt32(opened["stream"] as? Int ?? 0), UInt32(opened["epoch"] as? Int ?? 0))
        func frames(_ numbers: ClosedRange<UInt64>, _ stream: UInt32) -> [UInt8] {
            numbers.flatMap { number in
                MediaWebSocket.frame(
                    stream: stream, epoch: epoch, sequence: number, flags: number == 0 ? 2 : 1,
                    pts: Int64(number) * 20_000, number == 0 ? MediaWebSocket.configuration : payload(number))
            }
        }
        // Several frames are one message, and fragments are one message too.
        first.send(frames(0...9, stream))
        let rest = frames(10...19, stream)
        first.send(Array(rest[..<100]), isLast: false)
        first.send(Array(rest[100...]), opcode: 0)
        let ack = first.named("publishAck") { $0["next"] as? String == "20" }
        #expect(ack?["epoch"] as? Int == Int(epoch), "\(first.texts)")

        let viewer = try Self.viewer(cluster, node: 3, try Self.app(cluster))
        #expect(viewer.ask("streams.play", "{\"device\":\"ws-cam\",\"after\":{\"epoch\":\(epoch)}}").response != nil)
        // It loses its node, and sends again what was not acknowledged, and more.
        first.close()
        let second = try device(2, "\"token\":\"\(token)\"")
        let resumed = try #require(
            second.ask(
                "streams.publish",
                "{\"source\":0,\"instance\":\"5\",\"oldest\":\"0\",\"epoch\":\(epoch),\"resumes\":true}"
            ).response)
        #expect(resumed["epoch"] as? Int == Int(epoch) && resumed["next"] as? String == "20", "\(resumed)")
        second.send(frames(15...40, UInt32(resumed["stream"] as? Int ?? 0)))
        viewer.read(seconds: 5) { viewer.frames.last?.sequence == 40 }
        let seen = viewer.frames.filter { !$0.isRepeated }
        #expect(seen.map(\.sequence) == Array(1...40), "\(seen.map(\.sequence))")
        for frame in seen where frame.sequence > 0 {
            #expect(Array(frame.bytes[52...]) == payload(frame.sequence))
        }
        #expect(second.ask("streams.unpublish", "{\"source\":0}").response != nil)
    }

    /// The number with which the node closes the connection.
    private static func goodbye(_ socket: MediaWebSocket) -> Int? {
        socket.read(seconds: 3)
        return (socket.texts.last?["goodbye"] as? [String: Any])?["code"] as? Int
    }

    /// Messages of 16 MB, in one frame and in fragments. Both clients may publish.
    private static func expectTooLong(_ whole: MediaWebSocket, in fragments: MediaWebSocket) throws {
        // Refused by its header, with 1009.
        _ = whole.write(MediaWebSocket.header(opcode: 2, byteCount: 16 << 20) + [0, 0, 0, 0])
        #expect(goodbye(whole) == Int(ErrorCode.frameTooLarge.number))
        #expect(whole.closeCode == 1009)
        try #require(fragments.ask("streams.publish", "{\"source\":0,\"instance\":\"8\"}").response != nil)
        let part = [UInt8](repeating: 0, count: 1 << 20)
        for index in 0..<16 where fragments.closeCode == nil {
            fragments.send(part, opcode: index == 0 ? 2 : 0, isLast: false)
        }
        #expect(goodbye(fragments) == Int(ErrorCode.frameTooLarge.number))
    }

    @Test("Bad binary messages end the connection, and never reach another stream")
    func badBinary() async throws {
        let cluster = try SharedCluster.cluster(basePort: 26_140)
        func device(_ id: String) throws -> MediaWebSocket {
            let socket = try #require(MediaWebSocket(port: cluster.httpPort(1)))
            let token = try cluster.token("--role", "device", "--device", id)
            socket.send("{\"hello\":{\"role\":\"ROLE_DEVICE\",\"token\":\"\(token)\"}}")
            _ = socket.named("welcome")
            return socket
        }
        let victim = try device("ws-victim")
        let opened = try #require(victim.ask("streams.publish", "{\"source\":0,\"instance\":\"9\"}").response)
        let (stream, epoch) = (UInt32(opened["stream"] as? Int ?? 0), UInt32(opened["epoch"] as? Int ?? 0))
        let configuration = MediaWebSocket.frame(
            stream: stream, epoch: epoch, sequence: 0, flags: 2, pts: 0, MediaWebSocket.configuration)
        victim.send(configuration)
        #expect(victim.named("publishAck") != nil)

        // Before the hello, and of a client that publishes nothing: refused by its header alone.
        for hello in [false, true] {
            let socket = try #require(MediaWebSocket(port: cluster.httpPort(1)))
            if hello { try #require(socket.hello(try Self.app(cluster)) == nil) }
            _ = socket.write(MediaWebSocket.header(opcode: 2, byteCount: 4 << 20) + [0, 0, 0, 0])
            #expect(Self.goodbye(socket) == Int(ErrorCode.malformed.number))
        }
        // Another one's stream: dropped.
        let attacker = try device("ws-attacker")
        let own = try #require(attacker.ask("streams.publish", "{\"source\":0,\"instance\":\"8\"}").response)
        attacker.send(
            MediaWebSocket.frame(stream: stream, epoch: epoch, sequence: 1, flags: 1, pts: 0, [1, 2, 3]))
        let viewer = try Self.viewer(cluster, node: 1, try Self.app(cluster))
        #expect(viewer.ask("streams.play", "{\"device\":\"ws-victim\",\"after\":{\"epoch\":\(epoch)}}").response != nil)
        viewer.read(seconds: 1)
        #expect(!viewer.frames.contains { $0.sequence == 1 })

        let ownStream = UInt32(own["stream"] as? Int ?? 0)
        let whole = MediaWebSocket.frame(
            stream: ownStream, epoch: UInt32(own["epoch"] as? Int ?? 0), sequence: 0, flags: 2, pts: 0,
            MediaWebSocket.configuration)
        var request = whole
        request[4] = 0x10
        var long = whole
        long[0] = 0x7F
        let bad: [(String, [UInt8], Int)] = [
            ("truncated", Array(whole.dropLast(3)), Int(ErrorCode.malformed.number)),
            ("another kind", request, Int(ErrorCode.malformed.number)),
            ("a length of 2 GB", long, Int(ErrorCode.frameTooLarge.number)),
            ("repeated", Array(whole[..<48]) + [10] + Array(whole[49...]), Int(ErrorCode.malformed.number)),
        ]
        for (name, bytes, code) in bad {
            let socket = try device("ws-attacker-\(bytes.count)-\(bytes[4])-\(bytes[0])")
            let opened = try #require(socket.ask("streams.publish", "{\"source\":0,\"instance\":\"8\"}").response)
            var bytes = bytes
            let number = UInt32(opened["stream"] as? Int ?? 0)
            for index in 0..<4 { bytes[8 + index] = UInt8(truncatingIfNeeded: number >> UInt32(24 - 8 * index)) }
            socket.send(bytes)
            #expect(Self.goodbye(socket) == code, "\(name)")
        }
        try Self.expectTooLong(attacker, in: try device("ws-fragments"))
        victim.send(MediaWebSocket.frame(stream: stream, epoch: epoch, sequence: 1, flags: 1, pts: 20_000, [9]))
        viewer.read(seconds: 3) { viewer.frames.contains { $0.sequence == 1 } }
        #expect(viewer.frames.last?.byteCount == 1)
    }

    @Test("A node that is drained names the others, and the viewer continues there")
    func drain() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_170)
        defer { cluster.down() }
        _ = try await Self.camera(cluster, "cam", "64x64@25")
        let viewer = try Self.viewer(cluster, node: 1, try Self.app(cluster))
        #expect(viewer.ask("streams.play", "{\"device\":\"cam\"}").response != nil)
        try cluster.start("cluster", "drain", "n1")
        let changed = try #require(viewer.named("endpointsChanged", seconds: 30))
        #expect(changed["leaving"] as? Bool == true)
        let endpoints = try #require(changed["endpoints"] as? [String])
        #expect(Set(endpoints) == Set([2, 3].map { "ws://127.0.0.1:\(cluster.httpPort($0))/v1/ws" }))
        // Until it goes, it is served.
        let before = viewer.frames.count
        viewer.read(seconds: 2) { viewer.frames.count > before + 10 }
        #expect(viewer.frames.count > before + 10, "\(viewer.texts) \(String(describing: viewer.closeCode))")
    }
}
