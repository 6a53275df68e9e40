/// A share of a process's descriptors, for one limit.
package struct DescriptorShare: Sendable, Equatable {
    /// The configuration key of the limit.
    package let key: String
    /// The configured limit, in descriptors.
    package let wanted: Int
    /// The minimum with which the process starts.
    package let minimum: Int
    /// The weight of this share when descriptors are scarce.
    package let weight: Int

    package init(_ key: String, wanted: Int, minimum: Int, weight: Int) {
        self.key = key
        self.wanted = max(0, wanted)
        self.minimum = max(0, min(minimum, wanted))
        self.weight = max(1, weight)
    }
}

/// Splits a process's limit of open files, so that the sum of all limits fits below it.
///
/// A listener at its limit refuses connections and continues. A process at its limit of open files fails everywhere at
/// once, including `/healthz`. Every limit that uses descriptors therefore has a share, and a margin remains that no
/// limit uses. If the shares do not fit, each gets its minimum, and the rest is split by weight. No share gets more
/// than it wants.
///
/// Pure.
package enum DescriptorBudget {
    /// Descriptors that no limit uses: for operators' requests, files that are open briefly, and errors of the
    /// estimate. 1/16 of the limit, 16 to 64.
    package static func margin(of limit: Int) -> Int { min(64, max(16, limit / 16)) }

    /// The descriptors of each share, in the order of `shares`.
    ///
    /// - Parameters:
    ///   - limit: `RLIMIT_NOFILE`.
    ///   - fixed: descriptors that the process uses whatever the limits are.
    /// - Throws: 10022 if not even the minimums fit.
    package static func split(
        limit: Int, fixed: Int, shares: [DescriptorShare]
    ) throws(ApusError) -> [Int] {
        let needed = fixed + margin(of: limit) + shares.reduce(0) { $0 + $1.minimum }
        guard needed <= limit else {
            throw ApusError(
                .configurationInvalid,
                "the limit of open files is \(limit), and this process needs at least \(needed): raise it "
                    + "(LimitNOFILE of systemd, ulimit -n)")
        }
        var granted = shares.map(\.minimum)
        var rest = limit - needed
        var open = shares.indices.filter { shares[$0].wanted > shares[$0].minimum }
        while rest > 0, !open.isEmpty {
            let weights = open.reduce(0) { $0 + shares[$1].weight }
            let modest = open.filter {
                (shares[$0].wanted - granted[$0]) * weights <= rest * shares[$0].weight
            }
            guard !modest.isEmpty else {
                let left = rest
                for index in open { granted[index] += left * shares[index].weight / weights }
                break
            }
            for index in modest {
                rest -= shares[index].wanted - granted[index]
                granted[index] = shares[index].wanted
            }
            open.removeAll { modest.contains($0) }
        }
        return granted
    }
}

/// Detects that a process is near its limit of open files, with hysteresis.
///
/// Pure value.
package struct DescriptorPressure: Sendable {
    /// The shares of the limit at which the pressure begins, and below which it ends.
    package static let highShare = 0.85
    package static let lowShare = 0.75

    package private(set) var isHigh = false

    package init() {}

    /// Sets the number of descriptors in use. Returns true if the pressure is high.
    package mutating func update(inUse: Int, limit: Int) -> Bool {
        isHigh = Double(inUse) >= Double(limit) * (isHigh ? Self.lowShare : Self.highShare)
        return isHigh
    }
}
