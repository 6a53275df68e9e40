import ApusCore
import ApusCrypto
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A client of a test with media over a WebSocket, written from docs/media-over-websocket.md alone: it uses none of the
/// product's decoders.
final class MediaWebSocket {
    /// A media frame as it was received.
    struct Frame: Equatable {
        var stream: UInt32
        var epoch: UInt32
        var sequence: UInt64
        var flags: UInt8
        var track: UInt8
        var sha256: String
        var byteCount: Int
        /// The whole link frame.
        var bytes: [UInt8]
        var isRepeated: Bool { flags & 8 != 0 }
    }

    enum Message {
        case text([String: Any])
        case frames([Frame])
        /// The close frame, with its code.
        case closed(Int)
    }

    private let socket: CInt
    private var buffered: [UInt8] = []
    private var start = 0
    private var lastID = 0
    /// What came while something else was waited for.
    private(set) var texts: [[String: Any]] = []
    private(set) var frames: [Frame] = []
    private(set) var closeCode: Int?
    private(set) var welcome: [String: Any] = [:]

    /// Nil where the node does not take it.
    ///
    /// - Parameter receiveBuffer: of the socket, for a client that reads slowly; nil: the system's.
    init?(port: Int, headers: [String] = [], receiveBuffer: CInt? = nil) {
        guard let socket = NodeView.connect(port) else { return nil }
        self.socket = socket
        if var size = receiveBuffer {
            setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &size, socklen_t(MemoryLayout<CInt>.size))
        }
        let request =
            "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:\(port)\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + headers.map { $0 + "\r\n" }.joined()
            + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        guard write(Array(request.utf8)), let head = readHead(), head.hasPrefix("HTTP/1.1 101") else { return nil }
    }

    deinit { Glibc.close(socket) }

    func close() { shutdown(socket, CInt(SHUT_RDWR)) }

    // MARK: - The session

    /// Sends a hello and waits for the welcome, or for the goodbye, whose code it returns.
    func hello(_ fields: String) -> Int? {
        send("{\"hello\":{\"role\":\"ROLE_APP\",\(fields)}}")
        while let text = nextText() {
            if let welcome = text["welcome"] as? [String: Any] {
                self.welcome = welcome
                return nil
            }
            if let goodbye = text["goodbye"] as? [String: Any] { return goodbye["code"] as? Int ?? 0 }
        }
        return -1
    }

    /// Sends a request and waits for its answer: the response, or the error with its code.
    func ask(_ request: String, _ body: String, seconds: Double = 10) -> (response: [String: Any]?, code: Int?) {
        lastID += 1
        send("{\"id\":\(lastID),\"request\":\"\(request)\",\"body\":\(body)}")
        let end = Date().addingTimeInterval(seconds)
        while Date() < end, let message = next(seconds: end.timeIntervalSinceNow) {
            guard case .text(let text) = message else { continue }
            guard text["id"] as? Int == lastID else { continue }
            return (text["response"] as? [String: Any], (text["error"] as? [String: Any])?["code"] as? Int)
        }
        return (nil, closeCode ?? -1)
    }

    /// Reads for a while, or until the condition holds.
    func read(seconds: Double, until isDone: () -> Bool = { false }) {
        let end = Date().addingTimeInterval(seconds)
        while Date() < end, !isDone(), closeCode == nil {
            guard next(seconds: end.timeIntervalSinceNow) != nil else { return }
        }
    }

    /// The next text under a name, among those that came and those that come.
    func named(
        _ name: String, seconds: Double = 5, where isWanted: @escaping ([String: Any]) -> Bool = { _ in true }
    ) -> [String: Any]? {
        let find = { self.texts.lazy.compactMap { $0[name] as? [String: Any] }.first(where: isWanted) }
        read(seconds: seconds) { find() != nil }
        return find()
    }

    private func nextText() -> [String: Any]? {
        while let message = next(seconds: 10) { if case .text(let text) = message { return text } }
        return nil
    }

    // MARK: - Messages

    func send(_ text: String) { send(Array(text.utf8), opcode: 1) }

    /// - Parameters:
    ///   - isLast: false for a fragment that is not the last.
    @discardableResult
    func send(_ payload: [UInt8], opcode: UInt8 = 2, isLast: Bool = true) -> Bool {
        let mask: [UInt8] = [1, 2, 3, 4]
        var frame = Self.header(opcode: opcode, byteCount: payload.count, isLast: isLast) + mask
        frame.reserveCapacity(frame.count + payload.count)
        for (index, byte) in payload.enumerated() { frame.append(byte ^ mask[index % 4]) }
        return write(frame)
    }

    /// A header without its mask.
    static func header(opcode: UInt8, byteCount: Int, isLast: Bool = true) -> [UInt8] {
        let first = (isLast ? 0x80 : 0) | opcode
        if byteCount < 126 { return [first, 0x80 | UInt8(byteCount)] }
        if byteCount < 65_536 { return [first, 0xFE, UInt8(byteCount >> 8), UInt8(byteCount & 0xFF)] }
        return [first, 0xFF] + (0..<8).map { UInt8(truncatingIfNeeded: byteCount >> (56 - 8 * $0)) }
    }

    /// Nil where nothing comes in time, or the connection has ended.
    func next(seconds: Double) -> Message? {
        let end = Date().addingTimeInterval(seconds)
        while true {
            if let (first, payload) = takeFrame() {
                switch first & 0x0F {
                case 1:
                    let text = (try? JSONSerialization.jsonObject(with: Data(payload))) as? [String: Any] ?? [:]
                    texts.append(text)
                    return .text(text)
                case 2:
                    let found = Self.frames(in: payload)
                    frames += found
                    return .frames(found)
                case 8:
                    closeCode = payload.count >= 2 ? Int(payload[0]) << 8 | Int(payload[1]) : 1005
                    return .closed(closeCode ?? 0)
                default: continue
                }
            }
            guard receive(until: end) else { return nil }
        }
    }

    private func takeFrame() -> (UInt8, [UInt8])? {
        let available = buffered.count - start
        guard available >= 2 else { return nil }
        var (length, head) = (Int(buffered[start + 1] & 0x7F), 2)
        if length == 126 {
            guard available >= 4 else { return nil }
            (length, head) = (Int(buffered[start + 2]) << 8 | Int(buffered[start + 3]), 4)
        } else if length == 127 {
            guard available >= 10 else { return nil }
            length = (0..<8).reduce(0) { $0 << 8 | Int(buffered[start + 2 + $1]) }
            head = 10
        }
        guard available >= head + length else { return nil }
        let first = buffered[start]
        let payload = Array(buffered[(start + head)..<(start + head + length)])
        start += head + length
        if start > 1 << 20 || start == buffered.count {
            buffered.removeFirst(start)
            start = 0
        }
        return (first, payload)
    }

    private static func frames(in bytes: [UInt8]) -> [Frame] {
        var (found, at): ([Frame], Int) = ([], 0)
        func number(_ at: Int, _ count: Int) -> UInt64 { (0..<count).reduce(0) { $0 << 8 | UInt64(bytes[at + $1]) } }
        while at + 12 <= bytes.count {
            let end = at + 4 + Int(number(at, 4))
            guard end <= bytes.count, bytes[at + 4] == 0x20 else { break }
            let payload = Array(bytes[(at + 52)..<end])
            found.append(
                Frame(
                    stream: UInt32(number(at + 8, 4)), epoch: UInt32(number(at + 16, 4)), sequence: number(at + 20, 8),
                    flags: bytes[at + 48], track: bytes[at + 49],
                    sha256: Hexadecimal.text(SHA256.hash(data: payload)), byteCount: payload.count,
                    bytes: Array(bytes[at..<end])))
            at = end
        }
        return found
    }

    /// A media frame as docs/reference/media-frames.md has it.
    static func frame(
        stream: UInt32, epoch: UInt32, sequence: UInt64, flags: UInt8, track: UInt8 = 0, pts: Int64, _ payload: [UInt8]
    ) -> [UInt8] {
        func number(_ value: UInt64, _ count: Int) -> [UInt8] {
            (0..<count).map { UInt8(truncatingIfNeeded: value >> UInt64(8 * (count - 1 - $0))) }
        }
        let media =
            number(0, 4) + number(UInt64(epoch), 4) + number(sequence, 8) + number(UInt64(bitPattern: pts), 8)
            + number(0, 4) + number(UInt64(payload.count), 4) + number(0, 4) + [flags, track, 0, 1] + payload
        return number(UInt64(8 + media.count), 4) + [0x20, 0] + number(0, 2) + number(UInt64(stream), 4) + media
    }

    /// The configuration of one track of G.711.
    static let configuration: [UInt8] =
        [1, 18, 1, 0] + [0, 0, 0x1F, 0x40] + [0, 0, 0, 1] + [0, 0, 0, 160] + [0, 0]

    // MARK: - The socket

    func write(_ bytes: [UInt8]) -> Bool {
        var sent = 0
        while sent < bytes.count {
            let count = bytes[sent...].withUnsafeBytes {
                Glibc.send(socket, $0.baseAddress, $0.count, CInt(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            sent += count
        }
        return true
    }

    private func receive(until end: Date) -> Bool {
        let milliseconds = Int32(max(0, end.timeIntervalSinceNow * 1000))
        var waiting = pollfd(fd: socket, events: Int16(POLLIN), revents: 0)
        guard poll(&waiting, 1, milliseconds) > 0 else { return false }
        var part = [UInt8](repeating: 0, count: 65_536)
        let count = recv(socket, &part, part.count, 0)
        guard count > 0 else {
            if closeCode == nil { closeCode = 1006 }
            return false
        }
        buffered += part[..<count]
        return true
    }

    private func readHead() -> String? {
        let end = Array("\r\n\r\n".utf8)
        let deadline = Date().addingTimeInterval(10)
        while true {
            if let index = buffered.indices.first(where: { buffered[$0...].starts(with: end) }) {
                let head = String(decoding: buffered[..<index], as: UTF8.self)
                buffered.removeFirst(index + end.count)
                return head
            }
            guard receive(until: deadline) else { return nil }
        }
    }
}
