package import ApusCore

/// Which unauthenticated connection is closed when there are too many (D13).
///
/// After the death of a node, its thousands of clients connect to the others at once. Closing the oldest connection for
/// each new one would then close those whose handshake is nearly complete, again and again, and nobody would get in. A
/// connection that has sent nothing costs its peer nothing, so it is the first to be closed.
///
/// Pure.
package enum HandshakeOrder {
    /// An unauthenticated connection.
    package struct Entry: Sendable {
        /// It has sent bytes.
        package var hasSent: Bool
        package var since: MonotonicTime

        package init(hasSent: Bool, since: MonotonicTime) { (self.hasSent, self.since) = (hasSent, since) }
    }

    /// For so long a connection that has sent bytes keeps its place.
    package static let keepTime = Duration.seconds(3)

    /// - Parameters:
    ///   - count: the number of connections, at least 1.
    ///   - entry: the connections by index, oldest first; the last one is new.
    /// - Returns: the oldest one that has sent nothing; or else the oldest one of all, if it has had ``keepTime``; or
    ///   else the new one.
    package static func victim(_ count: Int, at now: MonotonicTime, _ entry: (Int) -> Entry) -> Int {
        if let silent = (0..<count).first(where: { !entry($0).hasSent }) { return silent }
        return now - entry(0).since >= keepTime ? 0 : count - 1
    }
}
