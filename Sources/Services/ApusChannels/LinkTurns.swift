package import ApusCore
import DequeModule

/// Schedules the streams of a link that is slower than they are. Accounts take turns, and so do the streams of each
/// account (D13).
///
/// Each account gets ``quantum`` bytes per round and sends while it has some left. If its last batch is larger than the
/// rest, the excess is deducted from its next rounds (surplus round robin). An account that sends more than the link
/// carries thus delays another's frames by at most one batch of each account, however many streams it has.
///
/// Pure value: confined to its owner. It holds each waiting stream once, and removes all accounts when no stream waits.
package struct LinkTurns<Stream: Hashable> {
    private struct Line {
        var streams: Deque<Stream> = []
        var credit = 0
        var isInOrder = false
    }

    /// Bytes of an account in one round.
    package let quantum: Int
    private var lines: [AccountID?: Line] = [:]
    /// The accounts of this round. The first has the turn, and keeps it while it has streams and bytes left.
    private var order: Deque<AccountID?> = []
    private var waiting: Set<Stream> = []

    package init(quantum: Int = 64 << 10) { self.quantum = quantum }

    package var isEmpty: Bool { waiting.isEmpty }

    /// A stream has something to send. Has no effect if it already waits.
    package mutating func wait(_ stream: Stream, of account: AccountID?) {
        guard waiting.insert(stream).inserted else { return }
        var line = lines.removeValue(forKey: account) ?? Line()
        line.streams.append(stream)
        if !line.isInOrder { order.append(account) }
        line.isInOrder = true
        lines[account] = line
    }

    /// Removes and returns the stream whose turn it is; nil if none waits. ``sent(_:of:)`` must report its bytes.
    package mutating func next() -> (stream: Stream, account: AccountID?)? {
        while let account = order.first {
            if lines[account]?.streams.isEmpty ?? true {
                order.removeFirst()
                lines[account]?.isInOrder = false
            } else if let credit = lines[account]?.credit, credit <= 0 {
                lines[account]?.credit = credit + quantum
                order.append(order.removeFirst())
            } else if let stream = lines[account]?.streams.popFirst() {
                waiting.remove(stream)
                return (stream, account)
            }
        }
        // The link has caught up. Debts and credits are cleared.
        lines.removeAll()
        return nil
    }

    /// A stream of an account sent this many bytes in its turn.
    package mutating func sent(_ byteCount: Int, of account: AccountID?) { lines[account]?.credit -= byteCount }
}
