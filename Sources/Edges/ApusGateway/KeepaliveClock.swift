package import ApusCore

/// When each connection of a loop was last sent something, in one flat list: a look at all of them touches few lines of
/// memory, where a look at each connection would touch as many as sending it a frame (docs/decisions/5).
///
/// Pure: it is confined to whatever owns it.
package struct KeepaliveClock: Sendable {
    private struct Entry {
        var lastSent: MonotonicTime
        /// When it was last found silent.
        var foundSilent = MonotonicTime.zero
        var isStreaming = false
        var isPlaying = false
    }

    /// How long a connection with a stream may go without bytes.
    package let keepalive: Duration
    /// Connections are looked at together: as often at most, and those that are due until the next look are due now.
    private let lookSpacing: Duration
    /// The silence from which on a look sends a keepalive.
    package var silenceMin: Duration { keepalive - lookSpacing }
    /// One that is behind takes no keepalive and stays silent: it is looked at as seldom.
    private let behindSpacing: Duration
    private var entries: [Entry] = []
    private var free: [Int] = []
    private var playingCount = 0
    /// How many playing connections were sent something at one moment, as a fan-out does.
    private var burst = (time: MonotonicTime.zero, count: 0)

    package init(keepalive: Duration) {
        self.keepalive = keepalive
        lookSpacing = keepalive / 10
        behindSpacing = keepalive / 2
    }

    /// A place for a connection.
    package mutating func add(now: MonotonicTime) -> Int {
        let entry = Entry(lastSent: now)
        guard let slot = free.popLast() else {
            entries.append(entry)
            return entries.count - 1
        }
        entries[slot] = entry
        return slot
    }

    /// Gives a place back; once for each ``add(now:)``.
    package mutating func remove(_ slot: Int) {
        setStreams(slot, isStreaming: false, isPlaying: false)
        free.append(slot)
    }

    /// Whether the connection has streams, and whether it plays one.
    package mutating func setStreams(_ slot: Int, isStreaming: Bool, isPlaying: Bool) {
        entries[slot].isStreaming = isStreaming
        guard entries[slot].isPlaying != isPlaying else { return }
        entries[slot].isPlaying = isPlaying
        playingCount += isPlaying ? 1 : -1
    }

    package func lastSent(_ slot: Int) -> MonotonicTime { entries[slot].lastSent }

    /// Notes that bytes were sent; true when by now every connection that plays was sent something at this moment.
    package mutating func sent(_ slot: Int, now: MonotonicTime) -> Bool {
        let isRepeated = entries[slot].lastSent == now
        entries[slot].lastSent = now
        guard entries[slot].isPlaying, !isRepeated else { return false }
        burst = burst.time == now ? (now, burst.count + 1) : (now, 1)
        return burst.count == playingCount
    }

    /// The connections with streams that will have been silent for the keepalive before the next look can come.
    package mutating func silent(now: MonotonicTime) -> [Int] {
        let found = entries.indices.filter { entries[$0].isStreaming && now + lookSpacing >= due(entries[$0]) }
        for index in found { entries[index].foundSilent = now }
        return found
    }

    /// When the first connection with a stream will have been silent for the keepalive; nil without streams.
    package func nextLook(now: MonotonicTime) -> MonotonicTime? {
        guard let first = entries.lazy.filter(\.isStreaming).map(due).min() else { return nil }
        return max(first, now + lookSpacing)
    }

    private func due(_ entry: Entry) -> MonotonicTime {
        max(entry.lastSent + keepalive, entry.foundSilent + behindSpacing)
    }
}
