package import ApusCore
package import NIOCore

/// Splits a stream of bytes into Wyoming events.
///
/// An event is a line with a JSON object, then `data_length` bytes with another one, whose members replace those of the
/// line's `data`, and then `payload_length` bytes. A decoder that has thrown throws the same error again: where the
/// next event begins is unknown. The connection must be closed.
///
/// Pure value. It holds the bytes of at most one event, and what was appended behind them.
package struct WyomingDecoder: Sendable {
    /// What the line says about what follows it.
    private struct Header {
        var type: String
        var data: [JSONValue.Member]
        var dataByteCount: Int
        var payloadByteCount: Int
    }

    private enum State {
        /// Bytes of the line before this offset are known to have no line feed.
        case line(searchedByteCount: Int)
        case body(Header)
        case failed(ApusError)
    }

    private var state = State.line(searchedByteCount: 0)
    private var buffer = ByteBuffer()

    package init() {}

    /// The number of bytes of which no event was made yet.
    package var heldByteCount: Int { buffer.readableBytes }

    /// Adds bytes of the stream. They are dropped if the decoder has failed.
    package mutating func append(_ bytes: ByteBuffer) {
        if case .failed = state { return }
        if buffer.readableBytes == 0 {
            buffer = bytes
        } else {
            buffer.writeImmutableBuffer(bytes)
        }
    }

    /// The next event; nil if more bytes are needed.
    ///
    /// - Throws: 10001 if the bytes are no event; 10002 if a part exceeds its limit, as soon as that is known.
    package mutating func next() throws(ApusError) -> WyomingEvent? {
        do {
            return try readNext()
        } catch {
            state = .failed(error)
            buffer = ByteBuffer()
            throw error
        }
    }

    private mutating func readNext() throws(ApusError) -> WyomingEvent? {
        while true {
            switch state {
            case .failed(let error): throw error
            case .line(let searchedByteCount):
                guard let line = try readLine(searchedByteCount: searchedByteCount) else { return nil }
                state = .body(try Self.header(line))
            case .body(var header):
                guard buffer.readableBytes >= header.dataByteCount + header.payloadByteCount else { return nil }
                let bytes = buffer.readBytes(length: header.dataByteCount) ?? []
                let payload = buffer.readSlice(length: header.payloadByteCount) ?? ByteBuffer()
                if !bytes.isEmpty { try Self.merge(bytes, into: &header.data) }
                if buffer.readableBytes == 0 { buffer = ByteBuffer() }
                state = .line(searchedByteCount: 0)
                return WyomingEvent(type: header.type, data: header.data, payload: payload)
            }
        }
    }

    /// The line without its line feed; nil if there is no line feed yet.
    private mutating func readLine(searchedByteCount: Int) throws(ApusError) -> [UInt8]? {
        let view = buffer.readableBytesView.dropFirst(searchedByteCount)
        let end = view.firstIndex(of: UInt8(ascii: "\n")).map { $0 - buffer.readerIndex }
        guard end ?? buffer.readableBytes <= WyomingEvent.headerByteCountMax else {
            throw ApusError(.frameTooLarge, "the line of a Wyoming event has no end")
        }
        guard let end else {
            state = .line(searchedByteCount: buffer.readableBytes)
            return nil
        }
        let line = buffer.readBytes(length: end)
        buffer.moveReaderIndex(forwardBy: 1)
        return line
    }

    private static func header(_ line: [UInt8]) throws(ApusError) -> Header {
        guard let value = JSONValue(line[...], depthMax: WyomingEvent.depthMax), case .object = value else {
            throw ApusError(wyoming: "a line is not a JSON object")
        }
        guard let type = value["type"]?.string, (1...WyomingEvent.typeByteCountMax).contains(type.utf8.count) else {
            throw ApusError(wyoming: "an event has no type")
        }
        var data: [JSONValue.Member] = []
        switch value["data"] {
        case .object(let members): data = members
        case .null, nil: break
        case .bool, .number, .string, .array: throw ApusError(wyoming: "the data of an event is not an object")
        }
        return Header(
            type: type, data: data,
            dataByteCount: try byteCount(value["data_length"], max: WyomingEvent.dataByteCountMax),
            payloadByteCount: try byteCount(value["payload_length"], max: WyomingEvent.payloadByteCountMax))
    }

    private static func byteCount(_ value: JSONValue?, max: Int) throws(ApusError) -> Int {
        guard let value, value != .null else { return 0 }
        guard let count = value.integer, count >= 0 else {
            throw ApusError(wyoming: "a length is not a whole number of at least 0")
        }
        guard count <= max else { throw ApusError(.frameTooLarge, "a part of a Wyoming event has \(count) bytes") }
        return Int(count)
    }

    private static func merge(_ bytes: [UInt8], into data: inout [JSONValue.Member]) throws(ApusError) {
        guard case .object(let members) = JSONValue(bytes[...], depthMax: WyomingEvent.depthMax) else {
            throw ApusError(wyoming: "the data of an event is not a JSON object")
        }
        for member in members {
            if let index = data.firstIndex(where: { $0.name.isExactly(member.name) }) {
                data[index] = member
            } else {
                data.append(member)
            }
        }
        guard data.count <= JSONValue.memberCountMax else {
            throw ApusError(wyoming: "the data of an event has more than \(JSONValue.memberCountMax) members")
        }
    }
}
