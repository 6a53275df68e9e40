/// Accepts each sequence number of one sender once (RFC 4303 §3.4.3).
///
/// Numbers more than 64 behind the newest are refused. A heartbeat that late has no value.
struct ReplayWindow: Sendable {
    private var newest: UInt64 = 0
    /// Bit n is set if `newest - n` was accepted.
    private var seen: UInt64 = 0

    /// Accepts a sequence number. Returns false if it was accepted before, is too old, or is 0.
    mutating func admit(_ sequence: UInt64) -> Bool {
        guard sequence > 0 else { return false }
        if sequence > newest {
            let distance = sequence - newest
            seen = distance < 64 ? seen << distance | 1 : 1
            newest = sequence
            return true
        }
        let age = newest - sequence
        guard age < 64, seen & (1 << age) == 0 else { return false }
        seen |= 1 << age
        return true
    }
}
