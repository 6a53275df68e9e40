package import ApusCore

/// When each connection of a loop was last sent something, in one flat list: a look at all of them touches few lines of
/// memory, where a look at each connection would touch as many as sending it a frame (docs/decisions/5).
///
/// Pure: it is confined to whatever owns it.
package struct KeepaliveClock: Sendable {
    private struct Entry {
        var lastSent: MonotonicTime
        var isStreaming = false
        var isPlaying = false
    }

    /// How long a connection with a stream may go without bytes.
    package let keepalive: Duration
    private let halfKeepalive: Duration
    private var entries: [Entry] = []
    private var free: [Int] = []
    private var playingCount = 0
    /// How many playing connections were sent something at one moment, as a fan-out does.
    private var burst = (time: MonotonicTime.zero, count: 0)

    package init(keepalive: Duration) {
        self.keepalive = keepalive
        halfKeepalive = keepalive / 2
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

    /// The connections with streams that were silent for the keepalive.
    package func silent(now: MonotonicTime) -> [Int] {
        entries.indices.filter { entries[$0].isStreaming && now - entries[$0].lastSent >= keepalive }
    }

    /// When the first connection with a stream will have been silent for too long; nil without streams.
    ///
    /// One that is behind is not sent keepalives and stays silent, so the answer is never sooner than half a keepalive.
    package func nextLook(now: MonotonicTime) -> MonotonicTime? {
        guard let oldest = entries.lazy.filter(\.isStreaming).map(\.lastSent).min() else { return nil }
        return max(oldest + keepalive, now + halfKeepalive)
    }
}
