import ApusCore

/// The bound of a whole node, divided among its planes as a user's bound is (``RateShares``): equal parts at first,
/// then by what each plane carries and drops.
///
/// Pure.
package struct NodeShares: Sendable {
    private var shares: RateShares

    /// - Parameters:
    ///   - rate: of all allocations of the node together, both ways.
    ///   - planeCount: planes, which begin with an equal part each.
    package init(rate: RelayRate, planeCount: Int) {
        shares = RateShares(rate: rate)
        for plane in 0..<UInt8(clamping: planeCount) {
            _ = shares.began(UInt32(plane), user: "", plane: plane)
        }
    }

    /// A plane carried and dropped so much more.
    package mutating func carried(_ traffic: RelayTraffic, plane: UInt8) {
        shares.carried(UInt32(plane), traffic, plane: plane)
    }

    /// What planes are to be told now; to be called once in `interval`.
    package mutating func rebalance(after interval: Duration) -> [RateShares.Telling] {
        shares.rebalance(after: interval).compactMap { telling -> RateShares.Telling? in
            guard case .limit(_, _, let rate) = telling.command else { return nil }
            return (telling.plane, .limitNode(rate))
        }
    }
}
