import ApusCore

/// Which of a listener's WebSockets have a place (D13).
///
/// An eighth of the places are for WebSockets before their welcome. If there are too many, an old one is closed for a
/// new one. Half of these places are kept for ``keepTime`` by those that have them: the clients of a dead node connect
/// all at once, and each would otherwise close one whose hello is nearly answered.
///
/// The rest are for clients that have been welcomed, of which each account has its share (``AccountShares``).
///
/// Pure value.
struct WebSocketPlaces<Connection: AnyObject & Sendable>: Sendable {
    private struct Entry: Sendable {
        var connection: Connection
        var since: MonotonicTime
        /// It has one of the kept places.
        var isKept: Bool
    }

    /// As long as the native protocol's handshakes keep theirs.
    static var keepTime: Duration { .seconds(3) }

    private let waitingMax: Int
    /// WebSockets before their welcome, oldest first.
    private var waiting: [Entry] = []
    private var accounts: AccountShares

    init(countMax: Int) {
        waitingMax = max(1, countMax / 8)
        accounts = AccountShares(capacity: countMax - countMax / 8)
    }

    /// True if there is no place for another client, of whatever account.
    var isFull: Bool { accounts.used >= accounts.capacity }

    /// Adds a WebSocket before its welcome.
    ///
    /// - Returns: the WebSocket to close, which has no place any more; nil if there is room.
    mutating func add(_ connection: Connection, at now: MonotonicTime) -> Connection? {
        let isKept = waiting.count(where: \.isKept) < waitingMax / 2
        waiting.append(Entry(connection: connection, since: now, isKept: isKept))
        guard waiting.count > waitingMax else { return nil }
        let index = waiting.firstIndex { !$0.isKept || now - $0.since >= Self.keepTime } ?? waiting.startIndex
        return waiting.remove(at: index).connection
    }

    /// Moves a WebSocket to the places of its client's account. Returns false, and moves nothing, if the account has
    /// its share already.
    mutating func admit(_ connection: Connection, of account: AccountID) -> Bool {
        guard accounts.take(1, for: account) else { return false }
        waiting.removeAll { $0.connection === connection }
        return true
    }

    /// Removes a WebSocket that has ended.
    ///
    /// - Parameter account: the account that it was admitted for; nil if it was not.
    mutating func remove(_ connection: Connection, of account: AccountID?) {
        if let account {
            accounts.change(by: -1, of: account)
        } else {
            waiting.removeAll { $0.connection === connection }
        }
    }
}
