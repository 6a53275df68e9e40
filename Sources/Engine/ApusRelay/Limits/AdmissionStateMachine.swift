package import ApusTraversal

/// A plane's unauthenticated clients, by age and by source, and which of them is displaced by a new one (D13).
///
/// A client enters when it connects and leaves when it authenticates or ends. There are two limits, each with a defined
/// loser. A source at its limit displaces its own oldest client, so it takes nothing from others. A full table
/// displaces the oldest of all. A client that stays too long is late.
///
/// A source is an IPv4 address or an IPv6 /64. Memory is bounded by the places ever used.
///
/// Concurrency model: confined to its owner.
package struct AdmissionStateMachine: Sendable {
    private static let none: Int32 = -1

    /// A place's neighbours among those of its source, and the time at which it entered (ns).
    private struct Entry: Sendable {
        var source: UInt64 = 0
        var since: UInt64 = 0
        var older = AdmissionStateMachine.none
        var newer = AdmissionStateMachine.none
    }

    private struct Source: Sendable {
        var first: Int32
        var last: Int32
        var count: Int
    }

    private let perSourceMax: Int
    private var ages = AgeList()
    private var entries: [Entry] = []
    private var sources: [UInt64: Source] = [:]

    /// - Parameter perSourceMax: the most clients of one source, at least 1.
    package init(perSourceMax: Int) { self.perSourceMax = max(1, perSourceMax) }

    /// The number of clients.
    package var count: Int { ages.count }

    /// The client that entered first.
    package var oldest: Int? { ages.oldest }

    /// The client that entered after the given one.
    package func next(after place: Int) -> Int? { ages.next(after: place) }

    package func contains(_ place: Int) -> Bool { ages.contains(place) }

    /// The number of clients of this address's source.
    package func count(of address: TransportAddress) -> Int { sources[Self.source(of: address)]?.count ?? 0 }

    /// The client that must end before another one of this address enters; nil if there is room, or no client could
    /// make room.
    ///
    /// - Parameter isFull: true if the owner has no place left.
    package func displaced(by address: TransportAddress, isFull: Bool) -> Int? {
        if let source = sources[Self.source(of: address)], source.count >= perSourceMax { return Int(source.first) }
        return isFull ? ages.oldest : nil
    }

    /// Adds a client. Its place must not be present.
    package mutating func enter(_ place: Int, from address: TransportAddress, at now: UInt64) {
        guard !ages.contains(place) else { return }
        ages.append(place)
        while entries.count <= place { entries.append(Entry()) }
        let key = Self.source(of: address)
        var source = sources[key] ?? Source(first: Int32(place), last: Self.none, count: 0)
        entries[place] = Entry(source: key, since: now, older: source.last)
        if source.last != Self.none { entries[Int(source.last)].newer = Int32(place) }
        source.last = Int32(place)
        source.count += 1
        sources[key] = source
    }

    /// A client authenticated or ended. Has no effect if it is not present.
    package mutating func leave(_ place: Int) {
        guard ages.contains(place) else { return }
        ages.remove(place)
        let entry = entries[place]
        guard var source = sources[entry.source] else { return }
        if entry.older == Self.none {
            source.first = entry.newer
        } else {
            entries[Int(entry.older)].newer = entry.newer
        }
        if entry.newer == Self.none { source.last = entry.older } else { entries[Int(entry.newer)].older = entry.older }
        source.count -= 1
        sources[entry.source] = source.count == 0 ? nil : source
    }

    /// A client that has been present longer than a limit (ns).
    package func late(at now: UInt64, limit: UInt64) -> Int? {
        guard let place = ages.oldest, now &- min(now, entries[place].since) > limit else { return nil }
        return place
    }

    private static func source(of address: TransportAddress) -> UInt64 {
        address.family == .v4 ? address.low : address.high
    }
}
