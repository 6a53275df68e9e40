public import ApusCore

/// The four bytes before the data of a channel: the channel number and the number of data bytes (RFC 8656 §12.4).
public struct ChannelDataHeader: Hashable, Sendable {
    /// The channel numbers of RFC 8656 §12, which reserves 0x5000 to 0xFFFF.
    public static let channelNumbers: ClosedRange<UInt16> = 0x4000...0x4fff
    /// The numbers of RFC 5766, from which older clients still choose (coturn's up to 4.6 among them). A server may
    /// accept them, since no other message to it begins with these bytes (RFC 7983 §7). They end at 0x7FFE in §11 and
    /// at 0x7FFF in §14.1; coturn's client draws from all of these.
    public static let legacyChannelNumbers: ClosedRange<UInt16> = 0x4000...0x7fff
    public static let byteCount = 4

    public let channel: UInt16
    /// The size of the data, without header and padding.
    public let dataByteCount: Int

    /// Makes a header; `dataByteCount` is at most 65,535.
    public init(channel: UInt16, dataByteCount: Int) {
        self.channel = channel
        self.dataByteCount = dataByteCount
    }

    /// Parses the header of a datagram.
    ///
    /// - Throws: 10001 if it is not ChannelData, or announces more data than the datagram has. Bytes of a datagram
    ///   after the data are padding (RFC 8656 §12.5).
    public init(
        datagram bytes: some RandomAccessCollection<UInt8>, numbers: ClosedRange<UInt16> = Self.channelNumbers
    ) throws(ApusError) {
        guard bytes.count >= Self.byteCount else { throw ApusError(.malformed, "ChannelData has at least four bytes") }
        let head = Array(bytes.prefix(Self.byteCount))
        channel = head.bigEndian16(at: 0)
        dataByteCount = Int(head.bigEndian16(at: 2))
        guard numbers.contains(channel), dataByteCount <= bytes.count - Self.byteCount else {
            throw ApusError(.malformed, "the number or the length of ChannelData is invalid")
        }
    }

    /// The size of the message in a stream, where it is padded to four bytes (RFC 8656 §12.5).
    public var streamByteCount: Int { (Self.byteCount + dataByteCount + 3) & ~3 }

    /// The header as the wire has it.
    public var bytes: [UInt8] {
        [
            UInt8(channel >> 8), UInt8(truncatingIfNeeded: channel), UInt8(truncatingIfNeeded: dataByteCount >> 8),
            UInt8(truncatingIfNeeded: dataByteCount),
        ]
    }

    /// A whole message for a stream, padded with zeros.
    public static func streamMessage(channel: UInt16, data: some Collection<UInt8>) -> [UInt8] {
        let header = ChannelDataHeader(channel: channel, dataByteCount: data.count)
        var bytes = header.bytes
        bytes.reserveCapacity(header.streamByteCount)
        bytes.append(contentsOf: data)
        while bytes.count < header.streamByteCount { bytes.append(0) }
        return bytes
    }
}

/// Splits a TCP or TLS stream into STUN messages and ChannelData (RFC 8656 §3.1, §12.5).
///
/// Memory is bounded by one message. A STUN length above ``stunByteCountMax``, or a first byte that is neither, ends
/// the stream with an error before memory is used for it.
public struct StunStreamSplitter: Sendable {
    /// One message of the stream, without padding.
    public enum Message: Sendable, Hashable {
        case stun([UInt8])
        /// The channel's number and its data.
        case channelData(UInt16, [UInt8])
    }

    /// The longest STUN message of a stream, in bytes: a Send indication with a full datagram.
    public let stunByteCountMax: Int
    private let numbers: ClosedRange<UInt16>
    private var buffer: [UInt8] = []
    private var start = 0

    public init(
        stunByteCountMax: Int = StunMessage.byteCountMax,
        numbers: ClosedRange<UInt16> = ChannelDataHeader.channelNumbers
    ) {
        self.stunByteCountMax = stunByteCountMax
        self.numbers = numbers
    }

    /// Bytes of an incomplete message.
    public var bufferedByteCount: Int { buffer.count - start }

    /// Adds bytes of the stream.
    public mutating func append(_ bytes: some Collection<UInt8>) {
        if start > 0 {
            buffer.removeFirst(start)
            start = 0
        }
        buffer.append(contentsOf: bytes)
    }

    /// The next complete message; nil if it is incomplete.
    ///
    /// - Throws: 10001 if the stream is neither STUN nor ChannelData. It cannot continue then.
    public mutating func next() throws(ApusError) -> Message? {
        let count = try Self.messageByteCount(buffer[start...], stunByteCountMax: stunByteCountMax, numbers: numbers)
        guard let total = count, total <= bufferedByteCount
        else { return nil }
        let message = Array(buffer[start..<(start + total)])
        start += total
        guard message[0] & 0xc0 != 0 else { return .stun(message) }
        let dataByteCount = Int(message.bigEndian16(at: 2))
        return .channelData(message.bigEndian16(at: 0), Array(message[4..<(4 + dataByteCount)]))
    }

    /// The size of the message at the start of these bytes; nil if its first four bytes are not complete.
    ///
    /// - Throws: 10001 as ``next()``. For loops with their own buffers.
    public static func messageByteCount(
        _ bytes: some RandomAccessCollection<UInt8>, stunByteCountMax: Int = StunMessage.byteCountMax,
        numbers: ClosedRange<UInt16> = ChannelDataHeader.channelNumbers
    ) throws(ApusError) -> Int? {
        guard bytes.count >= 4 else { return nil }
        let head = Array(bytes.prefix(4))
        let length = Int(head.bigEndian16(at: 2))
        switch head[0] & 0xc0 {
        case 0x00:
            guard length & 3 == 0, length + StunMessage.headerByteCount <= stunByteCountMax else {
                throw ApusError(.malformed, "a STUN message of a stream is too long, or no multiple of four")
            }
            return length + StunMessage.headerByteCount
        case 0x40:
            let channel = head.bigEndian16(at: 0)
            guard numbers.contains(channel) else {
                throw ApusError(.malformed, "the stream has an invalid channel number")
            }
            return ChannelDataHeader(channel: channel, dataByteCount: length).streamByteCount
        default:
            throw ApusError(.malformed, "the stream is neither STUN nor ChannelData")
        }
    }
}
