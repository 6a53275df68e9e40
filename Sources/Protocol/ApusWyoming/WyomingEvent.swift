package import ApusCore
package import NIOCore

/// An event of the Wyoming protocol 1.10: a type, an object of data, and bytes such as audio.
///
/// Pure value. ``WyomingMessage`` is the event with its fields.
package struct WyomingEvent: Sendable, Equatable {
    /// The longest header line, in bytes, without its line feed.
    package static let headerByteCountMax = 65_536
    /// The longest data behind the header line, in bytes.
    package static let dataByteCountMax = 1_048_576
    /// The longest payload, in bytes: 1.3 s of 48 kHz stereo with 16 bits.
    package static let payloadByteCountMax = 262_144
    /// The longest type, in bytes.
    package static let typeByteCountMax = 64
    /// The deepest nesting of a header line and of data.
    package static let depthMax = 16
    /// The version that written headers name: the one of the reference implementation that this follows.
    package static let version = "1.10.2"

    package var type: String
    /// In the order of the text.
    package var data: [JSONValue.Member]
    package var payload: ByteBuffer

    package init(type: String, data: [JSONValue.Member] = [], payload: ByteBuffer = ByteBuffer()) {
        (self.type, self.data, self.payload) = (type, data, payload)
    }

    /// The value of a member of the data; nil if there is none, or if it is null.
    package subscript(name: String) -> JSONValue? {
        let value = data.first { $0.name.isExactly(name) }?.value
        return value == .null ? nil : value
    }

    /// Writes the event as the reference does: the header line, the data behind it, and the payload.
    ///
    /// - Throws: 10002 if a part exceeds its limit. Nothing is written then.
    package func encode(into buffer: inout ByteBuffer) throws(ApusError) {
        var header: [(String, JSON)] = [("type", .string(type)), ("version", .string(Self.version))]
        let text = data.isEmpty ? "" : JSONValue.object(data).text
        if !text.isEmpty { header.append(("data_length", .int(text.utf8.count))) }
        if payload.readableBytes > 0 { header.append(("payload_length", .int(payload.readableBytes))) }
        guard type.utf8.count <= Self.typeByteCountMax, text.utf8.count <= Self.dataByteCountMax,
            payload.readableBytes <= Self.payloadByteCountMax
        else { throw ApusError(.frameTooLarge, "the Wyoming event exceeds a size limit") }
        buffer.writeString(JSON.object(header).text)
        buffer.writeInteger(UInt8(ascii: "\n"))
        buffer.writeString(text)
        buffer.writeImmutableBuffer(payload)
    }
}

extension ApusError {
    init(wyoming problem: String) { self.init(.malformed, "Wyoming: \(problem)") }
}
