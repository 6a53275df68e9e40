public import ApusCore

/// The recent changes of a ``ClusterMap``, and for each shard the change that made its owner and its standby.
///
/// It is a part of the map, so a change and its record are written by the same compare-and-swap: what it says of a
/// shard is true in the map that says it. The record of a shard is found by comparing the map before with the map
/// after, not from the decision, so no decision can be forgotten.
///
/// **Bounds.** At most ``changeCountMax`` changes are kept. The oldest that no shard refers to is dropped first, then
/// the oldest. Shards that referred to it are "not recorded" from then on. Planned moves of one node that follow each
/// other within ``seriesGap`` are one change, since a node that joins causes hundreds.
///
/// **Other versions.** A node of wire version 1 ignores the history, and writes maps without it. The history then
/// begins again.
public struct MapHistory: Sendable, Hashable {
    /// The most changes of a map.
    public static let changeCountMax = 128
    /// The most nodes that one change names. The others are left out.
    public static let nodeCountMax = 16
    /// The longest pause between two moves of a series, in milliseconds.
    package static let seriesGap: UInt64 = 60_000

    /// A change under its number, 1 to 255, to which shards refer.
    package struct Numbered: Sendable, Hashable {
        package var number: UInt8
        package var change: MapChange

        package init(number: UInt8, change: MapChange) {
            self.number = number
            self.change = change
        }
    }

    /// In the order of their last revisions, the oldest first.
    package private(set) var numbered: [Numbered] = []
    /// By shard, the number of the change that made the owner. 0 if it is not recorded; empty if none is.
    package private(set) var ownerNumbers: [UInt8] = []
    /// The same of the standby.
    package private(set) var standbyNumbers: [UInt8] = []

    public init() {}

    /// A history that was read. Numbers without a change become 0.
    ///
    /// - Returns: nil if it is out of bounds.
    package init?(_ numbered: [Numbered], ownerNumbers: [UInt8], standbyNumbers: [UInt8]) {
        let counts = [ownerNumbers.count, standbyNumbers.count]
        guard numbered.count <= Self.changeCountMax, counts.allSatisfy({ $0 == 0 || $0 == ShardID.count }) else {
            return nil
        }
        var isKnown = Array(repeating: false, count: 256)
        for one in numbered {
            guard one.number > 0, !isKnown[Int(one.number)] else { return nil }
            isKnown[Int(one.number)] = true
        }
        self.numbered = numbered
        self.ownerNumbers = ownerNumbers.map { isKnown[Int($0)] ? $0 : 0 }
        self.standbyNumbers = standbyNumbers.map { isKnown[Int($0)] ? $0 : 0 }
    }

    /// The recorded changes, the newest first.
    public var changes: [MapChange] { numbered.reversed().map(\.change) }

    /// The change that made a shard's owner; nil if it is not recorded.
    public func ownerChange(of shard: ShardID) -> MapChange? { change(in: ownerNumbers, of: shard) }

    /// The change that made a shard's standby; nil if it is not recorded.
    public func standbyChange(of shard: ShardID) -> MapChange? { change(in: standbyNumbers, of: shard) }

    private func change(in numbers: [UInt8], of shard: ShardID) -> MapChange? {
        let index = Int(shard.rawValue)
        guard numbers.indices.contains(index), numbers[index] > 0 else { return nil }
        return numbered.first { $0.number == numbers[index] }?.change
    }

    /// Records a change, with the shards that differ between two maps.
    package mutating func record(_ change: MapChange, before: [ShardAssignment], after: [ShardAssignment]) {
        let owners = after.indices.filter { after[$0].owner != before[$0].owner || after[$0].epoch != before[$0].epoch }
        let standbys = after.indices.filter { after[$0].standby != before[$0].standby }
        let number = note(change, shardCount: owners.count + standbys.count)
        if ownerNumbers.isEmpty { ownerNumbers = Array(repeating: 0, count: after.count) }
        if standbyNumbers.isEmpty { standbyNumbers = Array(repeating: 0, count: after.count) }
        // A shard without an owner or standby has nothing to explain.
        for index in owners { ownerNumbers[index] = after[index].owner == .none ? 0 : number }
        for index in standbys { standbyNumbers[index] = after[index].standby == .none ? 0 : number }
    }

    /// Adds the change, or extends the series that it belongs to. Returns its number.
    private mutating func note(_ change: MapChange, shardCount: Int) -> UInt8 {
        var change = change
        change.nodes = Array(change.nodes.prefix(Self.nodeCountMax))
        change.shardCount += shardCount
        if change.kind.isSeries, let index = numbered.lastIndex(where: { Self.continues($0.change, change) }) {
            var series = numbered.remove(at: index)
            let earlier = series.change
            series.change.revisions = earlier.revisions.lowerBound...change.revisions.upperBound
            let end = max(earlier.milliseconds.upperBound, change.milliseconds.upperBound)
            series.change.milliseconds = earlier.milliseconds.lowerBound...end
            series.change.shardCount += change.shardCount
            numbered.append(series)
            return series.number
        }
        if numbered.count >= Self.changeCountMax { dropOne() }
        let number = freeNumber()
        numbered.append(Numbered(number: number, change: change))
        return number
    }

    private static func continues(_ series: MapChange, _ next: MapChange) -> Bool {
        let end = series.milliseconds.upperBound
        let time = next.milliseconds.lowerBound
        return series.kind == next.kind && series.maker == next.maker && series.nodes == next.nodes
            && series.revisions.lowerBound <= next.revisions.upperBound
            && (time > end ? time - end : end - time) <= seriesGap
    }

    private mutating func dropOne() {
        var isUsed = Array(repeating: false, count: 256)
        for number in ownerNumbers { isUsed[Int(number)] = true }
        for number in standbyNumbers { isUsed[Int(number)] = true }
        let dropped = numbered.remove(at: numbered.firstIndex { !isUsed[Int($0.number)] } ?? 0).number
        guard isUsed[Int(dropped)] else { return }
        for index in ownerNumbers.indices where ownerNumbers[index] == dropped { ownerNumbers[index] = 0 }
        for index in standbyNumbers.indices where standbyNumbers[index] == dropped { standbyNumbers[index] = 0 }
    }

    private func freeNumber() -> UInt8 {
        var isTaken = Array(repeating: false, count: 256)
        for one in numbered { isTaken[Int(one.number)] = true }
        // There are fewer changes than numbers.
        return (UInt8(1)...UInt8(255)).first { !isTaken[Int($0)] } ?? 255
    }
}
