package import ApusCore

/// How many members watch each member. Each member writes its own rule into the map when it joins.
public struct WatchRule: Sendable, Hashable {
    /// The members that watch each member beyond ``fullMeshMax``: an even number, from 2 on.
    public var watcherCount: UInt32
    /// Up to this many members, each watches all others.
    public var fullMeshMax: UInt32

    public init(watcherCount: UInt32, fullMeshMax: UInt32) {
        self.watcherCount = watcherCount
        self.fullMeshMax = fullMeshMax
    }
}

/// Which members watch which: they exchange heartbeats and promises, and vote on each other's silence (D4).
///
/// In a full mesh every member watches all others, so the cost of a cluster grows with the square of its size. Beyond
/// ``WatchRule/fullMeshMax`` members they form a ring in the order of the hashes of their names. A member is watched by
/// its next neighbours in it, half of them on each side. The relation is symmetric, every member has the same number of
/// watchers, and a join or a death replaces at most one watcher of a member.
///
/// The plan depends on the map alone, so all nodes with the same revision have the same plan. Members that disagree
/// about the rule, or that are of a version without rules, keep the full mesh (``ClusterMap/watchPlan``).
package struct WatchPlan: Sendable, Equatable {
    /// Every member watches all others.
    package static let fullMesh = WatchPlan(sets: nil)

    /// By member, its watchers in the order of names; nil in a full mesh. Only looked up, never iterated.
    package var sets: [NodeID: [NodeID]]?

    private init(sets: [NodeID: [NodeID]]?) { self.sets = sets }

    /// A ring of the members.
    ///
    /// - Parameter watcherCount: Watchers of each member. More than there are other members means all of them.
    package init(members: [NodeID], watcherCount: Int) {
        let ring = members.map { (hash: StableHash.hash($0.name.rawValue), id: $0) }
            .sorted { ($0.hash, $0.id) < ($1.hash, $1.id) }.map(\.id)
        let reach = watcherCount / 2
        guard reach > 0, ring.count > 2 * reach + 1 else {
            self.init(sets: nil)
            return
        }
        var sets: [NodeID: [NodeID]] = [:]
        sets.reserveCapacity(ring.count)
        for place in ring.indices {
            sets[ring[place]] = (1...reach).flatMap { distance in
                [ring[(place + distance) % ring.count], ring[(place + ring.count - distance) % ring.count]]
            }.sorted()
        }
        self.init(sets: sets)
    }

    /// True if every member watches all others.
    package var isFullMesh: Bool { sets == nil }

    /// The members that watch the member, and that it watches; nil if those are all others.
    package func watchers(of member: NodeID) -> [NodeID]? {
        guard let sets else { return nil }
        return sets[member] ?? []
    }
}
