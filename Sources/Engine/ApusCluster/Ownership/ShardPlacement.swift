import ApusCore

/// The target placement of shards: weighted rendezvous hashing with bounded loads (D5).
///
/// Each member gets a score for each shard from a hash of its name and the shard. The best is the owner, the next the
/// standby, and with enough members the third the second standby (Thaler, Ravishankar 1998; weights after
/// Schindelhauer, Schomaker 2005). When a member leaves, only its own shards move, and when it returns it gets the
/// same ones. Plain rendezvous leaves the fullest member about 10 % over the mean. A member therefore gets at most
/// ``loadMax`` times its fair share, and the rest goes to the next in rank (Mirrokni, Thorup, Zadimoghaddam 2018).
///
/// **Cordoned members** keep the shards that they own or stand by for, and get no others. The other shards are shared
/// among the other members.
///
/// The result is a target. The actual placement is the ``ClusterMap``, which approaches the target by hand-overs.
/// Integer hashes and a logarithm of its own make the result the same on every machine.
package struct ShardPlacement: Sendable, Equatable {
    /// The most shards of a member, relative to its fair share by weight.
    package static let loadMax = 1.05

    /// The owner and standbys that a shard should have; `none` if there are too few members.
    package struct Goal: Sendable, Equatable {
        package var owner: MemberSlot = .none
        package var standby: MemberSlot = .none
        package var secondStandby: MemberSlot = .none

        package subscript(role: ShardRole) -> MemberSlot {
            switch role {
            case .owner: owner
            case .standby: standby
            case .secondStandby: secondStandby
            }
        }
    }

    /// By shard.
    package private(set) var goals: [Goal]
    private let candidates: [Candidate]
    private let pins: Pins

    /// The places of cordoned members. The lists are empty if no member is cordoned.
    private struct Pins: Sendable, Equatable {
        /// By shard: the owner if it is cordoned, otherwise `none`.
        var owners: [MemberSlot] = []
        /// The same for the standby.
        var standbys: [MemberSlot] = []
        var secondStandbys: [MemberSlot] = []

        init(_ map: ClusterMap) {
            let isPinned = map.members.map { $0.state == .up && $0.isCordoned }
            guard isPinned.contains(true) else { return }
            let pinned: (MemberSlot) -> MemberSlot = { slot in
                isPinned.indices.contains(Int(slot.rawValue)) && isPinned[Int(slot.rawValue)] ? slot : .none
            }
            owners = map.shards.map { pinned($0.owner) }
            standbys = map.shards.map { pinned($0.standby) }
            secondStandbys = map.shards.map { pinned($0.secondStandby) }
        }

        func owner(of shard: Int) -> MemberSlot? {
            owners.isEmpty || owners[shard] == .none ? nil : owners[shard]
        }

        func standby(of shard: Int) -> MemberSlot? {
            standbys.isEmpty || standbys[shard] == .none ? nil : standbys[shard]
        }

        func secondStandby(of shard: Int) -> MemberSlot? {
            secondStandbys.isEmpty || secondStandbys[shard] == .none ? nil : secondStandbys[shard]
        }
    }

    fileprivate struct Candidate: Sendable, Equatable {
        var slot: MemberSlot
        var seed: UInt64
        var weight: Double
    }

    /// Places all shards of a map on its members that accept shards. Draining members get none, and cordoned members
    /// keep theirs.
    package init(of map: ClusterMap) {
        candidates = Self.candidates(of: map, where: \.acceptsShards)
        pins = Pins(map)
        goals = Self.place(shardCount: map.shards.count, on: candidates, pins)
    }

    /// True if the placement for `map` is this one: the same members accept shards with the same weights, and cordoned
    /// members have the same shards.
    package func isValid(for map: ClusterMap) -> Bool {
        goals.count == map.shards.count && candidates == Self.candidates(of: map, where: \.acceptsShards)
            && pins == Pins(map)
    }

    package subscript(shard: Int) -> Goal { goals[shard] }

    // MARK: The way to the target

    /// How far a member may be from the number of shards that it should own, or stand by for, before shards move for
    /// it: relative to that number.
    package static let deviationMax = 0.1

    /// True if the shard is elsewhere than it should be.
    package func isMisplaced(_ shard: Int, in map: ClusterMap) -> Bool {
        let (goal, now) = (goals[shard], map.shards[shard])
        return goal.owner != .none
            && (now.owner != goal.owner || (goal.standby != .none && now.standby != goal.standby)
                || (goal.secondStandby != .none && now.secondStandby != goal.secondStandby))
    }

    /// True if the shard cannot stay, however balanced the members are: it lacks a standby, or one of its members hands
    /// over its shards.
    package func mustMove(_ shard: Int, in map: ClusterMap) -> Bool {
        guard isMisplaced(shard, in: map) else { return false }
        let (goal, now) = (goals[shard], map.shards[shard])
        return map.member(at: now.owner)?.state != .up
            || (goal.standby != .none && map.member(at: now.standby)?.state != .up)
            || (goal.secondStandby != .none && map.member(at: now.secondStandby)?.state != .up)
    }

    /// True if every member that accepts shards owns, and stands by for, about as many as it should.
    package func isBalanced(_ map: ClusterMap) -> Bool {
        let wantsSecond = goals.contains { $0.secondStandby != .none }
        return ShardRole.allCases.allSatisfy { role in
            (role == .secondStandby && !wantsSecond) || isBalanced(map, role)
        }
    }

    private func isBalanced(_ map: ClusterMap, _ role: ShardRole) -> Bool {
        var counts = Array(repeating: (is: 0, goal: 0), count: map.members.count)
        for (assignment, goal) in zip(map.shards, goals) {
            let (slot, wanted) = (Int(assignment[role].rawValue), Int(goal[role].rawValue))
            if counts.indices.contains(slot) { counts[slot].is += 1 }
            if counts.indices.contains(wanted) { counts[wanted].goal += 1 }
        }
        return candidates.allSatisfy { candidate in
            let count = counts[Int(candidate.slot.rawValue)]
            return Self.isNear(count.is, count.goal)
        }
    }

    /// True if nothing needs to move: the members are balanced, and no shard must move.
    package func isSettled(_ map: ClusterMap) -> Bool {
        isBalanced(map) && !map.shards.indices.contains { mustMove($0, in: map) }
    }

    private static func isNear(_ count: Int, _ goal: Int) -> Bool {
        Double(abs(count - goal)) <= (Double(goal) * deviationMax).rounded(.up)
    }

    /// Ranks the members for which a condition is true, for one shard after the other.
    package struct Ranking: Sendable {
        private struct Place {
            var score: Double
            var slot: MemberSlot
        }

        private let candidates: [Candidate]
        private var places: [Place] = []

        package init(of map: ClusterMap, where isWanted: (Member) -> Bool) {
            self.init(ShardPlacement.candidates(of: map, where: isWanted))
        }

        fileprivate init(_ candidates: [Candidate]) {
            self.candidates = candidates
            places.reserveCapacity(candidates.count)
        }

        /// Ranks the members for a shard.
        package mutating func rank(shard: Int) {
            places.removeAll(keepingCapacity: true)
            for candidate in candidates {
                let score = ShardPlacement.score(shard: shard, candidate)
                // There are few members, so insertion sort is used. Equal scores keep the order of the slots.
                let place = places.firstIndex { $0.score < score } ?? places.count
                places.insert(Place(score: score, slot: candidate.slot), at: place)
            }
        }

        /// The best member for the shard that was ranked last for which a condition is true; nil if there is none.
        package func best(where isWanted: (MemberSlot) -> Bool = { _ in true }) -> MemberSlot? {
            places.first { isWanted($0.slot) }?.slot
        }
    }

    private static func candidates(of map: ClusterMap, where isWanted: (Member) -> Bool) -> [Candidate] {
        map.members.enumerated().compactMap { index, member in
            guard isWanted(member) else { return nil }
            return Candidate(
                slot: MemberSlot(rawValue: UInt16(index)), seed: StableHash.hash(member.id.name.rawValue),
                weight: Double(max(1, member.weight)))
        }
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

    private static func place(shardCount: Int, on candidates: [Candidate], _ pins: Pins) -> [Goal] {
        var owned = Loads(of: candidates, sharing: shardCount - pins.owners.count { $0 != .none })
        var stoodBy = Loads(of: candidates, sharing: shardCount - pins.standbys.count { $0 != .none })
        var second = Loads(of: candidates, sharing: shardCount - pins.secondStandbys.count { $0 != .none })
        let wantsSecond = candidates.count >= ClusterMap.secondStandbyMemberCountMin
        var ranking = Ranking(candidates)
        return (0..<shardCount).map { shard in
            ranking.rank(shard: shard)
            guard let owner = pins.owner(of: shard) ?? owned.take(ranking) else { return Goal() }
            var goal = Goal(owner: owner)
            if let pinned = pins.standby(of: shard), pinned != owner {
                goal.standby = pinned
            } else {
                // If weights differ widely, no standby may be under its bound. A full one is better than none.
                goal.standby = stoodBy.take(ranking) { $0 != owner } ?? .none
            }
            if let pinned = pins.secondStandby(of: shard), pinned != owner, pinned != goal.standby {
                goal.secondStandby = pinned
            } else if wantsSecond {
                goal.secondStandby = second.take(ranking) { $0 != owner && $0 != goal.standby } ?? .none
            }
            return goal
        }
    }

    /// The number of shards of each member, and its bound.
    private struct Loads {
        private var counts: [Int]
        private var countsMax: [Int]

        init(of candidates: [Candidate], sharing shardCount: Int) {
            let slotCount = candidates.map { Int($0.slot.rawValue) + 1 }.max() ?? 0
            let weightSum = candidates.reduce(0) { $0 + $1.weight }
            counts = Array(repeating: 0, count: slotCount)
            countsMax = counts
            for candidate in candidates {
                let share = Double(shardCount) * candidate.weight / weightSum
                countsMax[Int(candidate.slot.rawValue)] = Int((share * ShardPlacement.loadMax).rounded(.up))
            }
        }

        /// Gives a shard to the best member that is under its bound, or to the best; nil if there is none.
        mutating func take(_ ranking: Ranking, where isWanted: (MemberSlot) -> Bool = { _ in true }) -> MemberSlot? {
            let best = ranking.best { isWanted($0) && counts[Int($0.rawValue)] < countsMax[Int($0.rawValue)] }
            guard let taken = best ?? ranking.best(where: isWanted) else { return nil }
            counts[Int(taken.rawValue)] += 1
            return taken
        }
    }
}
