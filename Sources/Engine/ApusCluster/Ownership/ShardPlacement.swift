import ApusCore

/// The target placement of shards: weighted rendezvous hashing with bounded loads (D5).
///
/// Each member gets a score for each shard from a hash of its name and the shard. The best is the owner, the next the
/// standby (Thaler, Ravishankar 1998; weights after Schindelhauer, Schomaker 2005). When a member leaves, only its own
/// shards move, and when it returns it gets the same ones. Plain rendezvous leaves the fullest member about 10 % over
/// the mean. A member therefore gets at most ``loadMax`` times its fair share, and the rest goes to the next in rank
/// (Mirrokni, Thorup, Zadimoghaddam 2018).
///
/// The result is a target. The actual placement is the ``ClusterMap``, which approaches the target by hand-overs.
/// Integer hashes and a logarithm of its own make the result the same on every machine.
package struct ShardPlacement: Sendable, Equatable {
    /// The most shards of a member, relative to its fair share by weight.
    package static let loadMax = 1.05

    /// The owner and standby that a shard should have; `none` if there are too few members.
    package struct Goal: Sendable, Equatable {
        package var owner: MemberSlot
        package var standby: MemberSlot
    }

    /// By shard.
    package private(set) var goals: [Goal]
    private let candidates: [Candidate]

    private struct Candidate: Sendable, Equatable {
        var slot: MemberSlot
        var seed: UInt64
        var weight: Double
    }

    /// Places all shards of a map on its members that are up. Draining members get none.
    package init(of map: ClusterMap) {
        candidates = Self.candidates(of: map) { $0.state == .up }
        goals = Self.place(shardCount: map.shards.count, on: candidates)
    }

    /// True if the placement for `map` is this one: the same members are up with the same weights.
    package func isValid(for map: ClusterMap) -> Bool {
        goals.count == map.shards.count && candidates == Self.candidates(of: map) { $0.state == .up }
    }

    package subscript(shard: Int) -> Goal { goals[shard] }

    /// The members by rank for one shard, the best first. Only those for which `isWanted` returns true.
    package static func ranking(shard: Int, in map: ClusterMap, where isWanted: (Member) -> Bool) -> [MemberSlot] {
        ranking(shard: shard, of: candidates(of: map, where: isWanted))
    }

    private static func candidates(of map: ClusterMap, where isWanted: (Member) -> Bool) -> [Candidate] {
        map.members.enumerated().compactMap { index, member in
            guard isWanted(member) else { return nil }
            return Candidate(
                slot: MemberSlot(rawValue: UInt16(index)), seed: StableHash.hash(member.id.name.rawValue),
                weight: Double(max(1, member.weight)))
        }
    }

    private static func ranking(shard: Int, of candidates: [Candidate]) -> [MemberSlot] {
        var scored: [(score: Double, slot: MemberSlot)] = []
        scored.reserveCapacity(candidates.count)
        for candidate in candidates {
            let score = score(shard: shard, candidate)
            // There are few members, so insertion sort is used. Equal scores keep the order of the slots.
            let place = scored.firstIndex { $0.score < score } ?? scored.count
            scored.insert((score, candidate.slot), at: place)
        }
        return scored.map(\.slot)
    }

    /// `weight / -ln(u)` with u uniform in (0, 1). Each member has the highest score with a probability proportional to
    /// its weight.
    private static func score(shard: Int, _ candidate: Candidate) -> Double {
        let hash = StableHash.mix(candidate.seed ^ StableHash.mix(UInt64(shard) &+ 1))
        let unit = (Double(hash >> 11) + 0.5) * 0x1p-53
        return candidate.weight / -naturalLogarithm(unit)
    }

    /// The natural logarithm of a number between 0 and 1, from the series of the inverse hyperbolic tangent.
    ///
    /// The last bit of the C library's result differs between machines. A placement must not.
    private static func naturalLogarithm(_ value: Double) -> Double {
        let ratio = (value.significand - 1) / (value.significand + 1)
        let square = ratio * ratio
        var term = ratio
        var sum = 0.0
        var divisor = 1.0
        while divisor < 30 {
            sum += term / divisor
            term *= square
            divisor += 2
        }
        return 2 * sum + Double(value.exponent) * 0.693_147_180_559_945_3
    }

    private static func place(shardCount: Int, on candidates: [Candidate]) -> [Goal] {
        let slotCount = candidates.map { Int($0.slot.rawValue) + 1 }.max() ?? 0
        let weightSum = candidates.reduce(0) { $0 + $1.weight }
        var loadMaxBySlot = Array(repeating: 0, count: slotCount)
        for candidate in candidates {
            let share = Double(shardCount) * candidate.weight / weightSum
            loadMaxBySlot[Int(candidate.slot.rawValue)] = Int((share * loadMax).rounded(.up))
        }
        var owned = Array(repeating: 0, count: slotCount)
        var stoodBy = Array(repeating: 0, count: slotCount)
        return (0..<shardCount).map { shard in
            let ranking = ranking(shard: shard, of: candidates)
            let owner = ranking.first { owned[Int($0.rawValue)] < loadMaxBySlot[Int($0.rawValue)] } ?? ranking.first
            guard let owner else { return Goal(owner: .none, standby: .none) }
            owned[Int(owner.rawValue)] += 1
            let others = ranking.filter { $0 != owner }
            // If weights differ widely, no standby may be under its bound. A full one is better than none.
            let standby =
                others.first { stoodBy[Int($0.rawValue)] < loadMaxBySlot[Int($0.rawValue)] } ?? others.first
            guard let standby else { return Goal(owner: owner, standby: .none) }
            stoodBy[Int(standby.rawValue)] += 1
            return Goal(owner: owner, standby: standby)
        }
    }
}
