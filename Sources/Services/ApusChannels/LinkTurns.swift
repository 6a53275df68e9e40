package import ApusCore
import DequeModule

/// Whose turn it is on a link that takes less than its streams have for it: accounts in turn, and within an account its
/// streams in turn (D13).
///
/// Each account gets ``quantum`` bytes a round and sends while it has some left; what a last batch takes beyond that is
/// its debt to the next rounds (surplus round robin). So an account that has more to send than the link carries
/// delays another's frames by one batch of each account at most, however many streams it has.
///
/// Pure: confined to whoever owns it. It holds each waiting stream once, and forgets accounts when none waits.
package struct LinkTurns<Stream: Hashable> {
    private struct Line {
        var streams: Deque<Stream> = []
        var credit = 0
        var isInOrder = false
    }

    /// Bytes of an account in one round.
    package let quantum: Int
    private var lines: [AccountID?: Line] = [:]
    /// The accounts of this round; the first has the turn, and keeps it while it has streams and bytes left.
    private var order: Deque<AccountID?> = []
    private var waiting: Set<Stream> = []

    package init(quantum: Int = 64 << 10) { self.quantum = quantum }

    package var isEmpty: Bool { waiting.isEmpty }

    /// A stream has something to send; nothing changes where it waits already.
    package mutating func wait(_ stream: Stream, of account: AccountID?) {
        guard waiting.insert(stream).inserted else { return }
        var line = lines.removeValue(forKey: account) ?? Line()
        line.streams.append(stream)
        if !line.isInOrder { order.append(account) }
        line.isInOrder = true
        lines[account] = line
    }

    /// The stream whose turn it is, which waits no longer; nil if none waits. ``sent(_:of:)`` says what it took.
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
        // The link is no longer behind: debts and what was saved end with that.
        lines.removeAll()
        return nil
    }

    /// Bytes that a stream of an account sent in its turn.
    package mutating func sent(_ byteCount: Int, of account: AccountID?) { lines[account]?.credit -= byteCount }
}
