/// Where a stream of a session is open: at the active connection, and, until the next node serves it, at the connection
/// to a node that leaves.
///
/// Confined to the session's event loop.
struct StreamPlace {
    /// A connection, and the stream's number there.
    typealias Opened = (connection: ClientConnection, stream: UInt32)

    private(set) var connection: ClientConnection?
    /// Nil until the node has accepted the stream.
    var stream: UInt32?
    /// The stream at a node that leaves.
    private(set) var previous: Opened?

    /// Nil until the node has accepted the stream.
    var current: Opened? {
        guard let connection, let stream else { return nil }
        return (connection, stream)
    }

    /// Another connection is active. The stream continues at the retiring one, if it is open there.
    mutating func move(to next: ClientConnection, from retiring: ClientConnection?) {
        if let current, current.connection === retiring {
            previous = current
        } else if previous?.connection !== retiring {
            previous = nil
        }
        (connection, stream) = (next, nil)
    }

    /// The next node serves the stream. Returns false if there is no earlier one.
    mutating func leavePrevious() -> Bool {
        defer { previous = nil }
        return previous != nil
    }
}
