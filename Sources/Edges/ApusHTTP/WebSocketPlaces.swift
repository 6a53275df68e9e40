import ApusCore
import ApusListener

/// Which of a listener's WebSockets have a place (D13).
///
/// An eighth of the places are for WebSockets before their welcome (``HandshakePlaces``). The rest are for clients that
/// have been welcomed, of which each account has its share (``AccountShares``).
///
/// Pure value.
struct WebSocketPlaces<Connection: AnyObject & Sendable>: Sendable {
    private let waitingMax: Int
    private var waiting = HandshakePlaces<Connection>()
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
        waiting.add(connection, countMax: waitingMax, at: now)
    }

    /// Moves a WebSocket to the places of its client's account. Returns false, and moves nothing, if the account has
    /// its share already.
    mutating func admit(_ connection: Connection, of account: AccountID) -> Bool {
        guard accounts.take(1, for: account) else { return false }
        waiting.remove(connection)
        return true
    }

    /// Removes a WebSocket that has ended.
    ///
    /// - Parameter account: the account that it was admitted for; nil if it was not.
    mutating func remove(_ connection: Connection, of account: AccountID?) {
        if let account { accounts.change(by: -1, of: account) } else { waiting.remove(connection) }
    }
}
