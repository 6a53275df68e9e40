package import ApusCore
import DequeModule

/// The playbacks of a device: which are open, for whom, and which of the device's sources each uses (IV-C5, IV-C16).
///
/// Pure value.
package struct PlaybackTable: Sendable {
    /// The bounds of a device's playbacks.
    package struct Limits: Sendable, Hashable {
        /// Playbacks at a time; one more is refused with 20007.
        package var countMax = 4
        /// Those of one client, so that the others find room.
        package var countMaxOfClient = 3
        /// A playback whose player was not heard of for so long ends with 20008.
        package var idleTime = Duration.seconds(60)
        package init() {}
    }

    private struct Entry {
        var id: String
        var client: String
        var lastHeard: MonotonicTime
    }

    /// Playbacks that have ended, and why, which are remembered.
    static let endedMax = 64

    private let limits: Limits
    /// By the number of the place.
    private var entries: [Entry?]
    private var ended: Deque<(id: String, client: String, code: ErrorCode)> = []

    package init(limits: Limits = Limits()) {
        self.limits = limits
        entries = Array(repeating: nil, count: max(1, limits.countMax))
    }

    /// Opens a playback.
    ///
    /// - Parameters:
    ///   - id: chosen by the client.
    ///   - client: who asks.
    /// - Returns: its place, from 0.
    /// - Throws: 20012 if the id was used before, 20007 if all places are taken, or the client's share of them.
    package mutating func open(_ id: String, of client: String, now: MonotonicTime) throws(ApusError) -> Int {
        guard place(of: id) == nil, !ended.contains(where: { $0.id == id }) else {
            throw ApusError(.duplicateConnection)
        }
        let own = entries.count { $0?.client == client }
        guard own < min(limits.countMaxOfClient, limits.countMax),
            let free = entries.firstIndex(where: { $0 == nil })
        else { throw ApusError(.deviceChannelsFull) }
        entries[free] = Entry(id: id, client: client, lastHeard: now)
        return free
    }

    /// The client controls its playback.
    ///
    /// - Returns: its place.
    /// - Throws: 20009 if there is none of this id, 20012 if it is another client's, and if it has ended, why: 20002 or
    ///   20008.
    package mutating func heard(_ id: String, of client: String, now: MonotonicTime) throws(ApusError) -> Int {
        if let place = place(of: id) {
            guard entries[place]?.client == client else { throw ApusError(.duplicateConnection) }
            entries[place]?.lastHeard = now
            return place
        }
        guard let past = ended.last(where: { $0.id == id }) else { throw ApusError(.destinationUnknown) }
        guard past.client == client else { throw ApusError(.duplicateConnection) }
        throw ApusError(past.code)
    }

    /// Ends the playback at a place.
    package mutating func end(_ place: Int, _ code: ErrorCode) {
        guard entries.indices.contains(place), let entry = entries[place] else { return }
        entries[place] = nil
        ended.append((id: entry.id, client: entry.client, code: code))
        if ended.count > Self.endedMax { ended.removeFirst() }
    }

    /// Ends what is idle, and returns the places.
    package mutating func expire(now: MonotonicTime) -> [Int] {
        let idle = entries.indices.filter { index in
            entries[index].map { now - $0.lastHeard >= limits.idleTime } ?? false
        }
        for place in idle { end(place, .connectionIdle) }
        return idle
    }

    /// The places that are taken.
    package var places: [Int] { entries.indices.filter { entries[$0] != nil } }

    private func place(of id: String) -> Int? { entries.firstIndex { $0?.id == id } }
}
