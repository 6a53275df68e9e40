/// Chooses the event loop of the next connection.
/// Loops are filled one after the other, in steps, not in turn. Viewers of a channel that share a loop get their frames
/// in one wake-up, and a loop without connections sleeps. Measured with 200 viewers of one stream, two loops cost 8 to
/// 13 % more CPU than one (docs/decisions/5). A busy loop, or one with pending handshakes, is skipped, so a burst of
/// connections uses all cores.
/// Pure. The loops report their loads.
package struct LoopPlacement: Sendable {
    /// The load of a loop.
    package struct Load: Sendable {
        package var connectionCount: Int
        /// Connections that are not authenticated yet.
        package var unauthenticatedCount: Int
        /// The share of its thread's time that was not idle, over the last second.
        package var busyShare: Double
        /// True if it accepts no more connections.
        package var isFull: Bool

        package init(
            connectionCount: Int = 0, unauthenticatedCount: Int = 0, busyShare: Double = 0, isFull: Bool = false
        ) {
            self.connectionCount = connectionCount
            self.unauthenticatedCount = unauthenticatedCount
            self.busyShare = busyShare
            self.isFull = isFull
        }
    }

    /// The number of connections that a loop gets before the next loop does.
    package var stepCount = 256
    /// A loop that is busier gets no connection if another loop is not.
    package var busyShareMax = 0.5
    /// A loop with this many unauthenticated connections gets no more if another loop has fewer.
    package var unauthenticatedMax = 8

    package init() {}

    /// The index of the loop that accepts; 0 if there are no loads.
    package func choice(among loads: [Load]) -> Int {
        loads.indices.min { rank(loads[$0]) < rank(loads[$1]) } ?? 0
    }

    /// The lowest rank wins; the first of equals is chosen.
    private func rank(_ load: Load) -> (Int, Int, Int) {
        if load.isFull { return (2, 0, 0) }
        if load.busyShare > busyShareMax { return (1, Int(load.busyShare * 100), 0) }
        return (0, load.unauthenticatedCount / unauthenticatedMax, load.connectionCount / stepCount)
    }
}
