/// Lets each sequence number of one sender through once (RFC 4303 §3.4.3).
///
/// Numbers more than 64 behind the newest are refused unseen: a heartbeat that late says nothing.
struct ReplayWindow: Sendable {
    private var newest: UInt64 = 0
    /// Bit n is set where `newest - n` was seen.
    private var seen: UInt64 = 0

    /// True where the number was not seen before; it is from then on. 0 is never let through.
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
