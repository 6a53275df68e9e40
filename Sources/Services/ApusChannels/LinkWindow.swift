/// The bytes that a link may carry and the other node has not processed yet (D13).
///
/// Frames in the system's buffers wait in the order in which they were written, so turns (``LinkTurns``) have no effect
/// there, and the buffer of a busy receiver can grow to 32 MiB. The other node therefore reports how many bytes it has
/// processed, and no more than ``byteCount`` beyond that are sent. Other frames wait where turns apply.
///
/// Pure value: confined to its owner.
package struct LinkWindow: Sendable {
    /// The most bytes in flight. The last batch may exceed it.
    package let byteCount: Int
    private var sent: UInt64 = 0
    /// Nil until the other node reports a number. A node of an earlier version never does, and has no window.
    private var processed: UInt64?

    package init(byteCount: Int) { self.byteCount = byteCount }

    package var hasRoom: Bool { processed.map { sent - $0 < UInt64(byteCount) } ?? true }

    package mutating func sent(_ count: Int) { sent += UInt64(count) }

    /// The other node reports how many frame bytes it has processed since the link opened. Returns false, without
    /// effect, for more than were sent. An outdated number has no effect.
    package mutating func processed(_ total: UInt64) -> Bool {
        guard total <= sent else { return false }
        processed = max(processed ?? 0, total)
        return true
    }
}
