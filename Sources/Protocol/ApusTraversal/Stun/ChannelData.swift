public import ApusCore

/// The four bytes before the data of a channel: its number, and the count of data bytes (RFC 8656 §12.4).
public struct ChannelDataHeader: Hashable, Sendable {
    /// The numbers that channels may have; RFC 8656 §12 gives 0x5000 to 0xFFFF to others.
    public static let channelNumbers: ClosedRange<UInt16> = 0x4000...0x4fff
    /// The numbers of RFC 5766 §11, which older clients still choose from (coturn's of 4.6 among them). A server may
    /// take them, since nothing else that comes to it begins with these bytes (RFC 7983 §7).
    public static let legacyChannelNumbers: ClosedRange<UInt16> = 0x4000...0x7ffe
    public static let byteCount = 4

    public let channel: UInt16
    /// Of the data, without header and padding.
    public let dataByteCount: Int

    /// A header of our own making; `dataByteCount` is at most 65,535.
    public init(channel: UInt16, dataByteCount: Int) {
        self.channel = channel
        self.dataByteCount = dataByteCount
    }

    /// The header of a datagram.
    ///
    /// - Throws: 10001 if it is no ChannelData, or has more data than the datagram. What a datagram has beyond the
    ///   data is padding (RFC 8656 §12.5).
    public init(
        datagram bytes: some RandomAccessCollection<UInt8>, numbers: ClosedRange<UInt16> = Self.channelNumbers
    ) throws(ApusError) {
        guard bytes.count >= Self.byteCount else { throw ApusError(.malformed, "ChannelData has four bytes at least") }
        let head = Array(bytes.prefix(Self.byteCount))
        channel = head.bigEndian16(at: 0)
        dataByteCount = Int(head.bigEndian16(at: 2))
        guard numbers.contains(channel), dataByteCount <= bytes.count - Self.byteCount else {
            throw ApusError(.malformed, "ChannelData has a channel's number and no more data than it says")
        }
    }

    /// The bytes that the message takes in a stream, where it is padded to four (RFC 8656 §12.5).
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

/// Cuts what comes over TCP or TLS into STUN messages and ChannelData (RFC 8656 §3.1, §12.5).
///
/// Bounded by one message: a STUN length above ``stunByteCountMax`` or a first byte that is neither ends the stream
/// with an error, before anything is kept for it.
public struct StunStreamSplitter: Sendable {
    /// One message of the stream, without padding.
    public enum Message: Sendable, Hashable {
        case stun([UInt8])
        /// The channel's number and its data.
        case channelData(UInt16, [UInt8])
    }

    /// The longest STUN message of a stream: a Send indication with a full datagram.
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

    /// Bytes kept for a message that is not whole.
    public var bufferedByteCount: Int { buffer.count - start }

    /// Takes bytes of the stream in.
    public mutating func append(_ bytes: some Collection<UInt8>) {
        if start > 0 {
            buffer.removeFirst(start)
            start = 0
        }
        buffer.append(contentsOf: bytes)
    }

    /// The next whole message; nil while it is not whole.
    ///
    /// - Throws: 10001 if the stream is neither STUN nor ChannelData; it cannot go on then.
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

    /// How many bytes the message takes that these bytes begin with; nil if its first four bytes are not there.
    ///
    /// - Throws: 10001 as ``next()``. For loops that have their own buffers.
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
                throw ApusError(.malformed, "the stream has a number that no channel has")
            }
            return ChannelDataHeader(channel: channel, dataByteCount: length).streamByteCount
        default:
            throw ApusError(.malformed, "the stream is neither STUN nor ChannelData")
        }
    }
}
