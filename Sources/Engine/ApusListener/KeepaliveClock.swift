package import ApusCore

/// The time at which each connection of a loop was last sent something, in one flat list. A check of the list touches
/// few cache lines; a check of each connection would touch as many as sending it a frame (docs/decisions/5).
///
/// Pure: confined to its owner.
package struct KeepaliveClock: Sendable {
    private struct Entry {
        var lastSent: MonotonicTime
        /// The time at which it was last found silent.
        var foundSilent = MonotonicTime.zero
        var isStreaming = false
        var isPlaying = false
    }

    /// The longest silence of a connection with a stream.
    package let keepalive: Duration
    /// The shortest interval between checks. Connections that would be due before the next check are due in this one.
    private let lookSpacing: Duration
    /// The silence after which a check sends a keepalive.
    package var silenceMin: Duration { keepalive - lookSpacing }
    /// The shortest interval between checks of a connection that is behind: it accepts no keepalive and stays silent.
    private let behindSpacing: Duration
    private var entries: [Entry] = []
    private var free: [Int] = []
    private var playingCount = 0
    /// The number of playing connections that were sent something at one moment, as in a fan-out.
    private var burst = (time: MonotonicTime.zero, count: 0)

    package init(keepalive: Duration) {
        self.keepalive = keepalive
        lookSpacing = keepalive / 10
        behindSpacing = keepalive / 2
    }

    /// Adds a connection and returns its slot.
    package mutating func add(now: MonotonicTime) -> Int {
        let entry = Entry(lastSent: now)
        guard let slot = free.popLast() else {
            entries.append(entry)
            return entries.count - 1
        }
        entries[slot] = entry
        return slot
    }

    /// Frees a slot. Call it once for each ``add(now:)``.
    package mutating func remove(_ slot: Int) {
        setStreams(slot, isStreaming: false, isPlaying: false)
        free.append(slot)
    }

    /// Sets whether the connection has streams, and whether it plays one.
    package mutating func setStreams(_ slot: Int, isStreaming: Bool, isPlaying: Bool) {
        entries[slot].isStreaming = isStreaming
        guard entries[slot].isPlaying != isPlaying else { return }
        entries[slot].isPlaying = isPlaying
        playingCount += isPlaying ? 1 : -1
    }

    package func lastSent(_ slot: Int) -> MonotonicTime { entries[slot].lastSent }

    /// Notes that bytes were sent. Returns true once every playing connection was sent something at this moment.
    package mutating func sent(_ slot: Int, now: MonotonicTime) -> Bool {
        let isRepeated = entries[slot].lastSent == now
        entries[slot].lastSent = now
        guard entries[slot].isPlaying, !isRepeated else { return false }
        burst = burst.time == now ? (now, burst.count + 1) : (now, 1)
        return burst.count == playingCount
    }

    /// The connections with streams that will reach the keepalive interval before the next possible check.
    package mutating func silent(now: MonotonicTime) -> [Int] {
        let found = entries.indices.filter { entries[$0].isStreaming && now + lookSpacing >= due(entries[$0]) }
        for index in found { entries[index].foundSilent = now }
        return found
    }

    /// The time of the next check: when the first connection with a stream reaches the keepalive interval; nil without
    /// streams.
    package func nextLook(now: MonotonicTime) -> MonotonicTime? {
        guard let first = entries.lazy.filter(\.isStreaming).map(due).min() else { return nil }
        return max(first, now + lookSpacing)
    }

    private func due(_ entry: Entry) -> MonotonicTime {
        max(entry.lastSent + keepalive, entry.foundSilent + behindSpacing)
    }
}
