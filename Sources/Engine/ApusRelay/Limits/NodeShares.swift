import ApusCore

/// The rate limit of a whole node, split over its planes like a user's (``RateShares``): equal parts at first, then by
/// demand.
///
/// Pure value.
package struct NodeShares: Sendable {
    private var shares: RateShares

    /// - Parameters:
    ///   - rate: of all allocations of the node together, in both directions.
    ///   - planeCount: the number of planes. Each starts with an equal part.
    package init(rate: RelayRate, planeCount: Int) {
        shares = RateShares(rate: rate)
        for plane in 0..<UInt8(clamping: planeCount) {
            _ = shares.began(UInt32(plane), user: "", plane: plane)
        }
    }

    /// Adds the traffic that a plane carried and dropped.
    package mutating func carried(_ traffic: RelayTraffic, plane: UInt8) {
        shares.carried(UInt32(plane), traffic, plane: plane)
    }

    /// The commands for planes whose part changed. Call once per `interval`.
    package mutating func rebalance(after interval: Duration) -> [RateShares.Telling] {
        shares.rebalance(after: interval).compactMap { telling -> RateShares.Telling? in
            guard case .limit(_, _, let rate) = telling.command else { return nil }
            return (telling.plane, .limitNode(rate))
        }
    }
}
