import Foundation

#if canImport(Glibc)
import Glibc
#endif

/// One connection to an HTTP listener, one request at a time (RFC 9112), with a socket of its own: hundreds of threads
/// can each have one.
final class PlainHTTP {
    struct Answer {
        var status: Int
        var body: String
    }

    private let socket: CInt
    private var buffered: [UInt8] = []
    /// Why the last exchange had no answer, and the head of the answer before it.
    private(set) var failure = ""
    private(set) var lastHead = ""

    /// Nil where nobody listens.
    init?(port: Int) {
        guard let socket = NodeView.connect(port) else { return nil }
        self.socket = socket
        var limit = timeval(tv_sec: 15, tv_usec: 0)
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
    }

    deinit { close(socket) }

    /// Nil where the connection broke.
    func exchange(
        _ method: String, _ path: String, token: String, id: String? = nil, traceparent: String? = nil,
        body: String? = nil
    ) -> Answer? {
        var text = "\(method) \(path) HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \(token)\r\n"
        if let id { text += "Idempotency-Key: \(id)\r\n" }
        if let traceparent { text += "traceparent: \(traceparent)\r\n" }
        if let body { text += "Content-Type: application/json\r\nContent-Length: \(body.utf8.count)\r\n" }
        guard send(text + "\r\n" + (body ?? "")) else { return nil }
        guard let head = readHead() else { return nil }
        let lines = head.split(separator: "\r\n")
        guard let status = lines.first?.split(separator: " ").dropFirst().first.flatMap({ Int($0) }) else { return nil }
        let length =
            lines.lazy.compactMap { line -> Int? in
                let parts = line.split(separator: ":", maxSplits: 1)
                guard parts.count == 2, parts[0].lowercased() == "content-length" else { return nil }
                return Int(parts[1].trimmingCharacters(in: .whitespaces))
            }.first ?? 0
        guard let content = read(length) else { return nil }
        return Answer(status: status, body: String(decoding: content, as: UTF8.self))
    }

    /// Sends bytes as they are.
    func send(_ text: String) -> Bool { send(Array(text.utf8)) }

    func send(_ bytes: [UInt8]) -> Bool {
        let count = Glibc.send(socket, bytes, bytes.count, CInt(MSG_NOSIGNAL))
        if count != bytes.count { failure = "sending \(bytes.count) bytes returned \(count), errno \(errno)" }
        return count == bytes.count
    }

    /// What stands before the empty line; nil where the connection ends first.
    func readHead() -> String? {
        let end = Array("\r\n\r\n".utf8)
        while true {
            if let index = buffered.indices.first(where: { buffered[$0...].starts(with: end) }) {
                let head = String(decoding: buffered[..<index], as: UTF8.self)
                buffered.removeFirst(index + end.count)
                lastHead = head
                return head
            }
            guard receive() else { return nil }
        }
    }

    /// Exactly so many bytes; nil where the connection ends first.
    func read(_ count: Int) -> [UInt8]? {
        while buffered.count < count { guard receive() else { return nil } }
        defer { buffered.removeFirst(count) }
        return Array(buffered.prefix(count))
    }

    private func receive() -> Bool {
        var part = [UInt8](repeating: 0, count: 16_384)
        let count = recv(socket, &part, part.count, 0)
        guard count > 0 else {
            failure = "receiving returned \(count), errno \(errno), \(buffered.count) bytes before it"
            return false
        }
        buffered += part[..<count]
        return true
    }
}

/// A WebSocket over such a connection (RFC 6455): texts out and in.
final class PlainWebSocket {
    private let http: PlainHTTP

    /// Nil where the node does not take it.
    ///
    /// - Parameter token: of the header `Authorization`; nil: there is none.
    init?(port: Int, path: String = "/v1/ws", token: String? = nil) {
        guard let http = PlainHTTP(port: port) else { return nil }
        self.http = http
        let request =
            "GET \(path) HTTP/1.1\r\nHost: localhost:\(port)\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + (token.map { "Authorization: Bearer \($0)\r\n" } ?? "")
            + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        guard http.send(request), let head = http.readHead(), head.hasPrefix("HTTP/1.1 101") else { return nil }
    }

    /// Sends one text of at most 65,535 bytes, masked (§5.3).
    func send(_ text: String) -> Bool { send(Array(text.utf8), opcode: 1) }

    /// The same with bytes.
    func send(_ bytes: [UInt8]) -> Bool { send(bytes, opcode: 2) }

    private func send(_ payload: [UInt8], opcode: UInt8) -> Bool {
        let mask: [UInt8] = [1, 2, 3, 4]
        var frame: [UInt8] = [0x80 | opcode]
        if payload.count < 126 {
            frame.append(0x80 | UInt8(payload.count))
        } else {
            frame += [0x80 | 126, UInt8(payload.count >> 8), UInt8(payload.count & 0xff)]
        }
        frame += mask
        frame += payload.enumerated().map { $0.element ^ mask[$0.offset % 4] }
        return http.send(frame)
    }

    /// The next text; nil where the connection ends, or nothing comes.
    func receive() -> [String: Any]? {
        while let head = http.read(2) {
            var length = Int(head[1] & 0x7f)
            guard length != 127 else { return nil }
            if length == 126 {
                guard let long = http.read(2) else { return nil }
                length = Int(long[0]) << 8 | Int(long[1])
            }
            guard let payload = http.read(length) else { return nil }
            guard head[0] & 0x0f == 1 else { continue }
            return (try? JSONSerialization.jsonObject(with: Data(payload))) as? [String: Any]
        }
        return nil
    }
}
