/// Which event loop takes the next connection.
///
/// Loops are filled one after the other, in steps, and not in turn: viewers of a channel that share a loop get frames
/// for one waking, and a loop without connections sleeps. Measured with 200 viewers of one stream, two loops cost 8 to
/// 13 % more CPU than one (docs/decisions/5). A loop that is busy, or has handshakes to do, is passed over, so that a
/// storm of connections uses all cores.
///
/// Pure; the numbers come from the loops.
package struct LoopPlacement: Sendable {
    /// What a loop has to do.
    package struct Load: Sendable {
        package var connectionCount: Int
        /// Connections that are not authenticated yet.
        package var strangerCount: Int
        /// The share of its thread's time that was not idle, over the last second.
        package var busyShare: Double
        /// It takes no more connections.
        package var isFull: Bool

        package init(connectionCount: Int = 0, strangerCount: Int = 0, busyShare: Double = 0, isFull: Bool = false) {
            self.connectionCount = connectionCount
            self.strangerCount = strangerCount
            self.busyShare = busyShare
            self.isFull = isFull
        }
    }

    /// Connections that a loop gets before the next one does.
    package var stepCount = 256
    /// A loop that is busier gets no more while another is not.
    package var busyShareMax = 0.5
    /// A loop with as many strangers gets no more while another has fewer.
    package var strangersMax = 8

    package init() {}

    /// The index of the loop that accepts; 0 without loads.
    package func choice(among loads: [Load]) -> Int {
        loads.indices.min { rank(loads[$0]) < rank(loads[$1]) } ?? 0
    }

    /// Less is better; the first of equals is taken.
    private func rank(_ load: Load) -> (Int, Int, Int) {
        if load.isFull { return (2, 0, 0) }
        if load.busyShare > busyShareMax { return (1, Int(load.busyShare * 100), 0) }
        return (0, load.strangerCount / strangersMax, load.connectionCount / stepCount)
    }
}
