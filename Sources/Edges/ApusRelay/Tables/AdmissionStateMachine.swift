package import ApusTraversal

/// Clients of a plane that have not authenticated yet, by age and by source, and which of them makes room (D13).
///
/// A client enters when it connects and leaves when it authenticates or ends. Two bounds hold, and each has a defined
/// loser: a source that has as many clients here as it may displaces its own oldest, so that it takes nothing from
/// others; a table that is full displaces the oldest of all. A client that is here for too long is late.
///
/// A source is an IPv4 address or an IPv6 /64. Memory is bounded by the places that were ever used.
///
/// Concurrency model: confined to its owner.
package struct AdmissionStateMachine: Sendable {
    private static let none: Int32 = -1

    /// A place's neighbours among those of its source, and when it entered (ns).
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

    /// - Parameter perSourceMax: clients of one source, 1 at least.
    package init(perSourceMax: Int) { self.perSourceMax = max(1, perSourceMax) }

    /// Clients that are here.
    package var count: Int { ages.count }

    /// The client that is here for longest.
    package var oldest: Int? { ages.oldest }

    /// The client that entered after another one that is here.
    package func next(after place: Int) -> Int? { ages.next(after: place) }

    package func contains(_ place: Int) -> Bool { ages.contains(place) }

    /// Clients of the source of this address.
    package func count(of address: TransportAddress) -> Int { sources[Self.source(of: address)]?.count ?? 0 }

    /// The client that has to end before another one of this address enters; nil if there is room, or nobody here
    /// who could make some.
    ///
    /// - Parameter isFull: whether the owner has no place left.
    package func displaced(by address: TransportAddress, isFull: Bool) -> Int? {
        if let source = sources[Self.source(of: address)], source.count >= perSourceMax { return Int(source.first) }
        return isFull ? ages.oldest : nil
    }

    /// A client at a place that is not here.
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

    /// A client that has authenticated or ended; nothing happens where it is not here.
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

    /// A client that is here for longer than a limit (ns).
    package func late(at now: UInt64, limit: UInt64) -> Int? {
        guard let place = ages.oldest, now &- min(now, entries[place].since) > limit else { return nil }
        return place
    }

    private static func source(of address: TransportAddress) -> UInt64 {
        address.family == .v4 ? address.low : address.high
    }
}
