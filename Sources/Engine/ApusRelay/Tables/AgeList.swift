/// Places of a table in the order in which they were added. The oldest is found, and any is removed, in constant time
/// and without an allocation for each.
///
/// ``AdmissionStateMachine`` keeps its unauthenticated clients in one. All have the same time-out, so the oldest client
/// times out first. It is also the one that a new client displaces.
///
/// Concurrency model: confined to its owner.
package struct AgeList: Sendable {
    private static let none: Int32 = -1
    private static let absent: Int32 = -2

    /// The neighbours of each place. `absent` as the older neighbour marks a place that is not in the list.
    private var older: [Int32] = []
    private var newer: [Int32] = []
    private var last = Self.none
    private var first = Self.none
    /// The number of places in the list.
    package private(set) var count = 0

    package init() {}

    /// The place that was added first.
    package var oldest: Int? { first == Self.none ? nil : Int(first) }

    /// The place that was added after the given one.
    package func next(after place: Int) -> Int? { newer[place] == Self.none ? nil : Int(newer[place]) }

    package func contains(_ place: Int) -> Bool { place < older.count && older[place] != Self.absent }

    /// Adds a place that is not in the list.
    package mutating func append(_ place: Int) {
        guard !contains(place) else { return }
        while older.count <= place {
            older.append(Self.absent)
            newer.append(Self.none)
        }
        older[place] = last
        newer[place] = Self.none
        if last == Self.none { first = Int32(place) } else { newer[Int(last)] = Int32(place) }
        last = Int32(place)
        count += 1
    }

    /// Removes a place, if it is in the list.
    package mutating func remove(_ place: Int) {
        guard contains(place) else { return }
        let (before, after) = (older[place], newer[place])
        if before == Self.none { first = after } else { newer[Int(before)] = after }
        if after == Self.none { last = before } else { older[Int(after)] = before }
        older[place] = Self.absent
        newer[place] = Self.none
        count -= 1
    }
}
