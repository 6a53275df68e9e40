import ApusCore

/// Lets each source have so many answers that it has not earned: a token bucket per address, in a table of fixed size.
///
/// Challenges (401, 438) and Binding answers go to whoever a datagram says it is from; the bucket keeps the relay from
/// being used to flood a third party. Several sources may share a row of the table (IPv6 sources are counted by /64):
/// they then share its tokens, which errs on the quiet side. Memory never grows: 16 bytes a row.
struct SourceLimiter: Sendable {
    private struct Row: Sendable {
        var tokens: Float
        var time: UInt64
    }

    /// Answers that a source did not get, since the start.
    private(set) var refusedCount: UInt64 = 0
    private var rows: [Row]
    private let burst: Float
    private let perSecond: Float
    private let salt: UInt64

    init(rowCount: Int, burst: Int, perSecond: Double, salt: UInt64) {
        self.burst = Float(max(1, burst))
        self.perSecond = Float(perSecond)
        self.salt = salt
        rows = Array(repeating: Row(tokens: Float(max(1, burst)), time: 0), count: max(1, rowCount))
    }

    /// Takes one token of the source; false where it has none.
    mutating func take(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        let network = source.family == .v4 ? source.low : source.high
        var mixed = (network ^ salt) &* 0x9e37_79b9_7f4a_7c15
        mixed = (mixed ^ mixed >> 29) &* 0xbf58_476d_1ce4_e5b9
        let index = Int(truncatingIfNeeded: (mixed ^ mixed >> 32) % UInt64(rows.count))
        let elapsed = now.nanoseconds > rows[index].time ? now.nanoseconds - rows[index].time : 0
        rows[index].tokens = min(burst, rows[index].tokens + Float(Double(elapsed) / 1e9) * perSecond)
        rows[index].time = max(rows[index].time, now.nanoseconds)
        guard rows[index].tokens >= 1 else {
            refusedCount &+= 1
            return false
        }
        rows[index].tokens -= 1
        return true
    }
}
