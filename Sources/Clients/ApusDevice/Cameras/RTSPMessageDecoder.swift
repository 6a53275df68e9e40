package import ApusCore
package import NIOCore

/// A message of an RTSP connection (RFC 2326).
package enum RTSPMessage: Sendable {
    package struct Response: Sendable {
        package var status: Int
        package var fields: [(name: String, value: String)]
        package var body: String

        package init(status: Int, fields: [(name: String, value: String)], body: String) {
            (self.status, self.fields, self.body) = (status, fields, body)
        }

        /// The first field of this name, which is in lower case.
        package func field(_ name: String) -> String? { fields.first { $0.name == name }?.value }
        /// All fields of this name.
        package func fields(_ name: String) -> [String] { fields.filter { $0.name == name }.map(\.value) }
    }

    case response(Response)
    /// A request of the server: its method and `CSeq`.
    case request(method: String, sequence: String)
    /// The payload of an interleaved frame (RFC 2326 §10.12).
    case packet(channel: UInt8, ByteBuffer)
}

/// Splits the bytes of an RTSP connection into messages.
///
/// Bounded: a head has at most ``headByteCountMax`` bytes, a body ``bodyByteCountMax``. Pure value.
package struct RTSPMessageDecoder: Sendable {
    package static let headByteCountMax = 16 << 10
    package static let bodyByteCountMax = 64 << 10

    private var buffer = ByteBuffer()
    /// The head of a message whose body is incomplete.
    private var waiting: (start: String, fields: [(name: String, value: String)], length: Int)?
    /// Bytes that were searched for the end of a head.
    private var searched = 0

    package init() {}

    package mutating func append(_ bytes: ByteBuffer) {
        buffer.discardReadBytes()
        buffer.writeImmutableBuffer(bytes)
    }

    /// The next message; nil if more bytes are needed.
    ///
    /// - Throws: 10001 if the bytes are not RTSP, or a message is too long.
    package mutating func next() throws(ApusError) -> RTSPMessage? {
        while true {
            if let (start, fields, length) = waiting {
                guard let body = buffer.readString(length: length) else { return nil }
                waiting = nil
                return try message(start, fields, body)
            }
            guard let first = buffer.getInteger(at: buffer.readerIndex, as: UInt8.self) else { return nil }
            if first == UInt8(ascii: "$") { return readPacket() }
            // Some cameras send an empty line before a message.
            if first == 0x0d || first == 0x0a || first == 0 {
                buffer.moveReaderIndex(forwardBy: 1)
                continue
            }
            guard first >= 0x41, first <= 0x7a else { throw ApusError(.malformed, "the camera does not send RTSP") }
            guard try readHead() else { return nil }
        }
    }

    private mutating func readPacket() -> RTSPMessage? {
        guard
            let (_, channel, length) = buffer.getMultipleIntegers(
                at: buffer.readerIndex, as: (UInt8, UInt8, UInt16).self),
            buffer.readableBytes >= 4 + Int(length)
        else { return nil }
        buffer.moveReaderIndex(forwardBy: 4)
        return buffer.readSlice(length: Int(length)).map { .packet(channel: channel, $0) }
    }

    /// Reads a head up to its empty line. Returns false if it is incomplete.
    private mutating func readHead() throws(ApusError) -> Bool {
        guard let count = headLength() else {
            guard buffer.readableBytes <= Self.headByteCountMax else {
                throw ApusError(.malformed, "the head of an RTSP message has more than \(Self.headByteCountMax) bytes")
            }
            return false
        }
        searched = 0
        guard count <= Self.headByteCountMax, let text = buffer.readString(length: count) else {
            throw ApusError(.malformed, "the head of an RTSP message has more than \(Self.headByteCountMax) bytes")
        }
        let lines = text.utf8.split(separator: UInt8(ascii: "\n")).map { line in
            String(decoding: line.last == 0x0d ? line.dropLast() : line, as: UTF8.self)
        }
        guard let start = lines.first else { throw ApusError(.malformed, "the camera does not send RTSP") }
        var fields: [(name: String, value: String)] = []
        for line in lines.dropFirst() where !line.isEmpty {
            guard let colon = line.utf8.firstIndex(of: UInt8(ascii: ":")) else { continue }
            let value = String(line[line.utf8.index(after: colon)...]).utf8.drop { $0 <= 0x20 }
            fields.append((line[..<colon].lowercased(), Self.trimmed(value)))
        }
        var length = 0
        if let text = fields.first(where: { $0.name == "content-length" })?.value {
            guard let number = Int(text), (0...Self.bodyByteCountMax).contains(number) else {
                throw ApusError(.malformed, "an RTSP message has a body of more than \(Self.bodyByteCountMax) bytes")
            }
            length = number
        }
        waiting = (start, fields, length)
        return true
    }

    /// The bytes up to and with the empty line; nil if it has not come.
    private mutating func headLength() -> Int? {
        let view = buffer.readableBytesView
        var index = view.startIndex + max(0, searched - 3)
        while index < view.endIndex {
            guard let line = view[index...].firstIndex(of: 0x0a) else { break }
            let next = line + 1
            if next < view.endIndex, view[next] == 0x0a { return next + 1 - view.startIndex }
            if next + 1 < view.endIndex, view[next] == 0x0d, view[next + 1] == 0x0a {
                return next + 2 - view.startIndex
            }
            index = next
        }
        searched = view.count
        return nil
    }

    private static func trimmed(_ bytes: Substring.UTF8View) -> String {
        var bytes = bytes
        while let last = bytes.last, last <= 0x20 { bytes = bytes.dropLast() }
        return String(decoding: bytes, as: UTF8.self)
    }

    private func message(
        _ start: String, _ fields: [(name: String, value: String)], _ body: String
    ) throws(ApusError) -> RTSPMessage {
        let words = start.split(separator: " ", maxSplits: 2, omittingEmptySubsequences: true)
        if start.hasPrefix("RTSP/") {
            guard words.count >= 2, let status = Int(words[1]), (100...999).contains(status) else {
                throw ApusError(.malformed, "the status of an RTSP response cannot be read")
            }
            return .response(RTSPMessage.Response(status: status, fields: fields, body: body))
        }
        guard words.count == 3, words[2].hasPrefix("RTSP/") else {
            throw ApusError(.malformed, "the camera does not send RTSP")
        }
        let sequence = fields.first { $0.name == "cseq" }?.value ?? ""
        return .request(method: String(words[0]), sequence: sequence)
    }
}
