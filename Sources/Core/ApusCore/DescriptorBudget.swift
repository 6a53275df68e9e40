/// A part of a process's descriptors that one bound stands for.
package struct DescriptorShare: Sendable, Equatable {
    /// The configuration key of the bound.
    package let key: String
    /// The bound as configured, in descriptors.
    package let wanted: Int
    /// The least that the process starts with.
    package let minimum: Int
    /// The part of what is scarce that goes here, beside the other shares' weights.
    package let weight: Int

    package init(_ key: String, wanted: Int, minimum: Int, weight: Int) {
        self.key = key
        self.wanted = max(0, wanted)
        self.minimum = max(0, min(minimum, wanted))
        self.weight = max(1, weight)
    }
}

/// How a process's limit of open files is split, so that the sum of all bounds fits below it.
///
/// A listener at its bound refuses and goes on; a process at its limit of open files fails everywhere at once, at
/// `/healthz` too. So every bound that takes descriptors has a share of the limit, and a margin is left that no bound
/// may take. Where the shares do not fit, each gets its minimum, and the rest is split by weight; no share gets more
/// than it wants.
///
/// Pure.
package enum DescriptorBudget {
    /// Descriptors that no bound may take: operators' requests, files that are opened for a moment, and errors of the
    /// estimate. 1/16 of the limit, 16 to 64.
    package static func margin(of limit: Int) -> Int { min(64, max(16, limit / 16)) }

    /// The descriptors that each share gets, in the order of `shares`.
    ///
    /// - Parameters:
    ///   - limit: `RLIMIT_NOFILE`.
    ///   - fixed: descriptors that the process has whatever the bounds are.
    /// - Throws: 10022 if not even the minimums fit.
    package static func split(
        limit: Int, fixed: Int, shares: [DescriptorShare]
    ) throws(ApusError) -> [Int] {
        let needed = fixed + margin(of: limit) + shares.reduce(0) { $0 + $1.minimum }
        guard needed <= limit else {
            throw ApusError(
                .configurationInvalid,
                "the limit of open files is \(limit), and this process needs \(needed) at least: raise it "
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

/// Whether a process is near its limit of open files, with hysteresis.
///
/// Pure.
package struct DescriptorPressure: Sendable {
    /// The parts of the limit at which the pressure begins, and below which it ends.
    package static let highShare = 0.85
    package static let lowShare = 0.75

    package private(set) var isHigh = false

    package init() {}

    /// So many descriptors are in use now; answers whether the pressure is high.
    package mutating func update(inUse: Int, limit: Int) -> Bool {
        isHigh = Double(inUse) >= Double(limit) * (isHigh ? Self.lowShare : Self.highShare)
        return isHigh
    }
}
