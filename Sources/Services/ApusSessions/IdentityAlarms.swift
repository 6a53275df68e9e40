package import ApusCore

/// The times at which active identities want to be called, and the nodes that died since the last call.
/// Only the earliest alarm is armed. Times are rounded up to whole steps: the clients of a dead node are lost together,
/// and their identities want to be called together.
/// Pure: times are passed in. Bounded by the identities, which the registry bounds, and by the nodes.
package struct IdentityAlarms<Identity> {
    /// Times are multiples of this.
    private static var step: UInt64 { 20_000_000 }

    private var wakes: [MonotonicTime: [Identity]] = [:]
    /// The time of the armed alarm.
    private var alarm: MonotonicTime?
    private var lostNodes: [NodeID] = []

    package init() {}

    /// Requests a call of an identity at a time.
    /// - Returns: when to call ``look(at:now:)``; nil if an earlier alarm is armed.
    package mutating func wake(_ identity: Identity, at time: MonotonicTime) -> MonotonicTime? {
        let time = MonotonicTime(nanoseconds: (time.nanoseconds / Self.step + 1) * Self.step)
        wakes[time, default: []].append(identity)
        return set(time)
    }

    /// Notes that nodes died. All identities must be notified.
    ///
    /// - Returns: as ``wake(_:at:)``.
    package mutating func nodesLost(_ nodes: [NodeID], now: MonotonicTime) -> MonotonicTime? {
        guard !nodes.isEmpty else { return nil }
        lostNodes += nodes
        return set(now)
    }

    /// Processes an alarm.
    /// - Returns: the identities to call, by their times, and the dead nodes of which all identities must be notified;
    ///   call ``nextLook()`` next. Nil if an earlier alarm has replaced this one.
    package mutating func look(
        at time: MonotonicTime, now: MonotonicTime
    ) -> (due: [Identity], lost: [NodeID])? {
        guard alarm == time else { return nil }
        alarm = nil
        let due = wakes.keys.filter { $0 <= now }.sorted().flatMap { wakes.removeValue(forKey: $0) ?? [] }
        defer { lostNodes = [] }
        return (due, lostNodes)
    }

    /// When to call ``look(at:now:)`` again; nil if no alarm is needed, or one is armed.
    package mutating func nextLook() -> MonotonicTime? { wakes.keys.min().flatMap { set($0) } }

    private mutating func set(_ time: MonotonicTime) -> MonotonicTime? {
        if let alarm, alarm <= time { return nil }
        alarm = time
        return time
    }
}
