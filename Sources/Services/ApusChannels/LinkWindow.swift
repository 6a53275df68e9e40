/// How much a link may carry that the other node has not worked off yet (D13).
///
/// Frames that wait in the system's buffers wait in the order in which they were written, so turns (``LinkTurns``) mean
/// nothing there; left alone, a busy receiver's buffer grows to 32 MiB. So the other node says how many bytes
/// it has worked off, and no more than ``byteCount`` beyond that are sent: what waits longer waits where turns count.
///
/// Pure: confined to whoever owns it.
package struct LinkWindow: Sendable {
    /// Bytes that may be on their way; the last batch may pass it.
    package let byteCount: Int
    private var sent: UInt64 = 0
    /// Nil until the other node says a number: one of an earlier version never does, and has no window.
    private var workedOff: UInt64?

    package init(byteCount: Int) { self.byteCount = byteCount }

    package var hasRoom: Bool { workedOff.map { sent - $0 < UInt64(byteCount) } ?? true }

    package mutating func sent(_ count: Int) { sent += UInt64(count) }

    /// The other node says how many bytes of frames it has worked off since the link is open. False, with nothing
    /// changed, for more than were sent; a number that is out of date changes nothing.
    package mutating func workedOff(_ total: UInt64) -> Bool {
        guard total <= sent else { return false }
        workedOff = max(workedOff ?? 0, total)
        return true
    }
}
