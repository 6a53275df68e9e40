package import ApusCore

/// The unauthenticated connections of a listener, or of one of its event loops (D13). If there are too many, an old one
/// is closed for a new one.
///
/// Half of the places are kept for ``keepTime`` by the connections that have them. After the death of a node, its
/// thousands of clients connect to the others at once. If each new connection closed the oldest one, it would close the
/// one whose handshake is nearly complete, and nobody would be admitted.
///
/// In the other half the oldest connection is closed for a new one, whatever it has sent. An attacker can hold the kept
/// places, and cannot keep others out of this half.
///
/// Pure value.
package struct HandshakePlaces<Connection: AnyObject & Sendable>: Sendable {
    private struct Entry: Sendable {
        var connection: Connection
        var since: MonotonicTime
        /// It has one of the kept places.
        var isKept: Bool
    }

    /// For how long a kept place is kept: a handshake takes three round trips of at most a second.
    package static var keepTime: Duration { .seconds(3) }

    /// Oldest first.
    private var entries: [Entry] = []
    private var keptCount = 0

    package init() {}

    package var count: Int { entries.count }

    /// Adds a connection.
    ///
    /// - Parameter countMax: the most connections, at least 1.
    /// - Returns: the connection to close, which is removed; nil if there is room.
    package mutating func add(_ connection: Connection, countMax: Int, at now: MonotonicTime) -> Connection? {
        let isKept = keptCount < countMax / 2
        entries.append(Entry(connection: connection, since: now, isKept: isKept))
        if isKept { keptCount += 1 }
        guard entries.count > countMax else { return nil }
        // There is one: at most half of the others are kept.
        let index = entries.firstIndex { !$0.isKept || now - $0.since >= Self.keepTime } ?? entries.startIndex
        return remove(at: index)
    }

    /// Removes a connection, if it is here.
    package mutating func remove(_ connection: Connection) {
        guard let index = entries.firstIndex(where: { $0.connection === connection }) else { return }
        _ = remove(at: index)
    }

    private mutating func remove(at index: Int) -> Connection {
        let entry = entries.remove(at: index)
        if entry.isKept { keptCount -= 1 }
        return entry.connection
    }
}
