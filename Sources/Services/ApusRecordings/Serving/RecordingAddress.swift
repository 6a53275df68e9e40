package import ApusCore

/// What an address of recordings names: a stretch of a channel. It is the content of a sealed address.
///
/// Pure.
package struct RecordingAddress: Sendable, Hashable {
    private static let version: UInt8 = 1

    package var account: AccountID
    package var source: UInt16
    /// Unix seconds.
    package var start: Int64
    /// Unix seconds; 0: it grows, without an end.
    package var end: Int64
    /// Its play list grows.
    package var isGrowing: Bool
    /// It has the segment that reaches over its end: no other play list follows.
    package var isEnd: Bool

    package init(account: AccountID, source: UInt16, start: Int64, end: Int64, isGrowing: Bool, isEnd: Bool) {
        (self.account, self.source, self.start, self.end) = (account, source, start, end)
        (self.isGrowing, self.isEnd) = (isGrowing, isEnd)
    }

    /// True if the segment is one of this stretch.
    package func has(_ segment: RecordedSegment) -> Bool {
        guard segment.end > start * 1_000_000 else { return false }
        if end == 0 { return isGrowing }
        return isEnd ? segment.start < end * 1_000_000 : segment.end <= end * 1_000_000
    }

    /// A version byte, flags, the source, start and end in big endian, and the account.
    package var bytes: [UInt8] {
        var bytes: [UInt8] = [
            Self.version, (isGrowing ? 1 : 0) | (isEnd ? 2 : 0), UInt8(source >> 8), UInt8(source & 0xff),
        ]
        for number in [start, end] { withUnsafeBytes(of: number.bigEndian) { bytes += $0 } }
        return bytes + Array(account.rawValue.utf8)
    }

    /// Nil if the bytes are of another version, or no address.
    package init?(bytes: [UInt8]) {
        guard bytes.count > 20, bytes[0] == Self.version,
            let text = String(validating: bytes[20...], as: UTF8.self), let account = AccountID(rawValue: text)
        else { return nil }
        func number(_ place: Int) -> Int64 {
            Int64(bitPattern: bytes[place..<place + 8].reduce(0) { $0 << 8 | UInt64($1) })
        }
        let (start, end) = (number(4), number(12))
        guard (0...999_999_999_999).contains(start), (0...999_999_999_999).contains(end) else { return nil }
        self.init(
            account: account, source: UInt16(bytes[2]) << 8 | UInt16(bytes[3]), start: start, end: end,
            isGrowing: bytes[1] & 1 != 0, isEnd: bytes[1] & 2 != 0)
    }
}
