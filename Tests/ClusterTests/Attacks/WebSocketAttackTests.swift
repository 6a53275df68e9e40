import ApusContract
import ApusCore
import ApusSessions
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// Attacks by WebSockets, beside viewers that must not notice, one of them at a WebSocket too.
@Suite("Attacks by WebSockets", .serialized, .timeLimit(.minutes(5)))
struct WebSocketAttackTests {
    @Test("Ten thousand WebSockets that never read, of which 300 play, disturb no viewer and are closed")
    func neverReading() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 22_450)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let page = try HonestPage(cluster, device: "good")
        try await witness.watch(for: .seconds(3))
        let seen = cluster.file("good.seen")
        let before = (native: Frames(seen).gapLongest, page: page.takeGap())

        let crowd = NeverReading(port: cluster.httpPort(1))
        defer { crowd.end() }
        let tokens = try Self.tokens(cluster, count: 300)
        for token in tokens {
            // Within the loop, so that the node is looked at all along.
            crowd.play("good", token: token)
            if crowd.count % 50 == 0 { try witness.look() }
        }
        #expect(crowd.playingCount == 300, "not all of them were admitted")
        let playing = (native: Frames(seen).gapLongest, page: page.takeGap())
        while crowd.count < 10_000 {
            crowd.upgrade(count: 250)
            try witness.look()
        }
        let node = NodeView(1, of: cluster)
        let isOver = await waited(.seconds(60)) {
            try? witness.look()
            return node.metric("apus_http_websockets").map { $0 <= 1 } ?? false
        }
        #expect(isOver != nil, "WebSockets that never read are open still")
        let during = (native: Frames(seen).gapLongest, page: page.takeGap())
        let lost = page.end()
        // Twice the gaps of before the attack, where the machine has other work.
        let phases = "before: \(before), while 300 began to play: \(playing)"
        #expect(during.native <= max(80, 2 * before.native), "the native viewer's gap; \(phases)")
        #expect(max(during.page, playing.page) <= max(80, 2 * before.page), "the page's gap; \(phases)")
        #expect(lost == 0, "frames of the page")
        // A WebSocket that plays may keep 256 KiB (http.websocket_outbound_bytes_max), which share their bytes.
        try await witness.testify()
    }

    /// Tokens of as many apps of one account.
    private static func tokens(_ cluster: Cluster, count: Int) throws -> [String] {
        let signer = try TokenSigner(privateKeyPEM: Cluster.text(cluster.file("pki/token.key")))
        return try (0..<count).map { number in
            try signer.sign(
                TokenClaims(
                    access: AccessID(unchecked: "crowd-\(number)"), account: AccountID(unchecked: "local"), role: .app,
                    device: nil, issuedAt: Int64(Date().timeIntervalSince1970), lifetime: .seconds(3600),
                    cluster: ClusterID(unchecked: "local")))
        }
    }
}

/// WebSockets that play, or only exist, and read nothing any more.
private final class NeverReading {
    private let port: Int
    private var sockets: [CInt] = []
    /// Those that were admitted, and began to play.
    private(set) var playingCount = 0

    init(port: Int) { self.port = port }

    var count: Int { sockets.count }

    private static let upgrade = Array(
        ("GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").utf8)

    /// Upgrades that are not even waited for.
    func upgrade(count: Int) {
        for _ in 0..<count {
            let socket = open()
            _ = Glibc.send(socket, Self.upgrade, Self.upgrade.count, CInt(MSG_NOSIGNAL) | CInt(MSG_DONTWAIT))
        }
    }

    /// Signs in, plays the device, and never reads again.
    func play(_ device: String, token: String) {
        let socket = open()
        var timeout = timeval(tv_sec: 10, tv_usec: 0)
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, socklen_t(MemoryLayout<timeval>.size))
        send(socket, Self.upgrade)
        guard read(socket, until: "\r\n\r\n") else { return }
        text(socket, "{\"hello\":{\"role\":\"ROLE_APP\",\"token\":\"\(token)\",\"instance\":\"\(count)\"}}")
        guard read(socket, until: "\"welcome\"") else { return }
        text(socket, "{\"id\":1,\"request\":\"streams.play\",\"body\":{\"device\":\"\(device)\"}}")
        playingCount += 1
    }

    private func open() -> CInt {
        let socket = Glibc.socket(AF_INET, CInt(SOCK_STREAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue), 0)
        // Little is kept for this side by the kernel: the node notices soon.
        var size: CInt = 4096
        setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &size, socklen_t(MemoryLayout<CInt>.size))
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(port).bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                _ = Glibc.connect(socket, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        sockets.append(socket)
        return socket
    }

    private func send(_ socket: CInt, _ bytes: [UInt8]) {
        _ = Glibc.send(socket, bytes, bytes.count, CInt(MSG_NOSIGNAL))
    }

    /// A text message with a mask of zeros.
    private func text(_ socket: CInt, _ text: String) {
        let payload = Array(text.utf8)
        send(socket, MediaWebSocket.header(opcode: 1, byteCount: payload.count) + [0, 0, 0, 0] + payload)
    }

    private func read(_ socket: CInt, until wanted: String) -> Bool {
        var (kept, part) = ("", [UInt8](repeating: 0, count: 2048))
        while !kept.contains(wanted) {
            let count = recv(socket, &part, part.count, 0)
            guard count > 0 else { return false }
            kept += String(decoding: part[..<count], as: UTF8.self)
        }
        return true
    }

    func end() {
        for socket in sockets { Glibc.close(socket) }
        sockets = []
    }
}

/// A viewer at a WebSocket that reads all the time, on a thread of its own.
private final class HonestPage: Sendable {
    private struct State {
        var last: UInt64?
        var gap = 0.0
        var lost = 0
        var lastTime = ContinuousClock().now
        var isEnding = false
        var isOver = false
    }
    private let state = Mutex(State())

    private struct Socket: @unchecked Sendable {  // SAFETY: used on the thread alone.
        let value: MediaWebSocket
    }

    init(_ cluster: Cluster, device: String) throws {
        let socket = try #require(MediaWebSocket(port: cluster.httpPort(1)))
        let token = try cluster.token("--role", "app", "--access", "honest")
        try #require(socket.hello("\"token\":\"\(token)\"") == nil)
        try #require(socket.ask("streams.play", "{\"device\":\"\(device)\"}").response != nil)
        let held = Socket(value: socket)
        Thread.detachNewThread { [self] in
            while !state.withLock(\.isEnding), let message = held.value.next(seconds: 5) {
                guard case .frames(let frames) = message else { continue }
                let now = ContinuousClock().now
                state.withLock { state in
                    let gap = now - state.lastTime
                    state.gap = max(state.gap, Double(gap.nanoseconds) / 1e6)
                    state.lastTime = now
                    for frame in frames where !frame.isRepeated {
                        if let last = state.last, frame.sequence != last + 1 { state.lost += 1 }
                        state.last = frame.sequence
                    }
                }
            }
            state.withLock { $0.isOver = true }
        }
    }

    /// The longest time between two messages since the last call, in milliseconds.
    func takeGap() -> Double {
        state.withLock { state in
            defer { state.gap = 0 }
            return state.isOver ? .infinity : state.gap
        }
    }

    /// Ends it. Returns how often frames were missing or came twice.
    func end() -> Int {
        state.withLock { state in
            state.isEnding = true
            return state.lost
        }
    }
}
