package import ApusCore

/// Connections with streams, and beside each when something was last sent on it: the clock's ticks read the
/// times in one row, and touch only connections that were silent for too long.
///
/// Each connection has a slot in the row, which has no gaps: the last takes the place that becomes free. A slot is
/// good until the row says that its connection moved, or until it is removed. Not safe for concurrent use.
package struct StreamingRow<Connection: AnyObject> {
    private var connections: [Connection] = []
    private var lastSent: [MonotonicTime] = []

    package init() {}

    package var count: Int { connections.count }

    /// The slot of a connection that joins the row; it counts as sent to now.
    package mutating func append(_ connection: Connection, now: MonotonicTime) -> Int {
        connections.append(connection)
        lastSent.append(now)
        return connections.count - 1
    }

    /// Something was sent on the connection of this slot.
    package mutating func sent(_ slot: Int, now: MonotonicTime) { lastSent[slot] = now }

    /// Takes a connection out.
    ///
    /// - Returns: The connection that has this slot from now on; nil where none had to move.
    package mutating func remove(_ slot: Int) -> Connection? {
        let (last, time) = (connections.removeLast(), lastSent.removeLast())
        guard slot < connections.count else { return nil }
        connections[slot] = last
        lastSent[slot] = time
        return last
    }

    /// The connections on which nothing was sent for this long.
    package func silent(for limit: Duration, now: MonotonicTime) -> [Connection] {
        lastSent.indices.filter { now - lastSent[$0] >= limit }.map { connections[$0] }
    }
}
