package import ApusCore

/// When the identities that live at a node want to be asked again, and which nodes died since they were told.
///
/// One alarm is waited for at a time, the earliest; times are rounded up to whole steps, since the clients of a node
/// that dies are lost at once and want to be asked again at once.
///
/// Pure: time comes in. Bounded by the identities, which the registry bounds, and the nodes.
package struct IdentityAlarms<Identity> {
    /// Times are multiples of this.
    private static var step: UInt64 { 20_000_000 }

    private var wakes: [MonotonicTime: [Identity]] = [:]
    /// When the clock is looked at next.
    private var alarm: MonotonicTime?
    private var lostNodes: [NodeID] = []

    package init() {}

    /// An identity wants to be asked again then.
    ///
    /// - Returns: when to call ``look(at:now:)``; nil where an earlier look is waited for.
    package mutating func wake(_ identity: Identity, at time: MonotonicTime) -> MonotonicTime? {
        let time = MonotonicTime(nanoseconds: (time.nanoseconds / Self.step + 1) * Self.step)
        wakes[time, default: []].append(identity)
        return set(time)
    }

    /// Nodes died, which all identities are to be told.
    ///
    /// - Returns: as ``wake(_:at:)``.
    package mutating func nodesLost(_ nodes: [NodeID], now: MonotonicTime) -> MonotonicTime? {
        guard !nodes.isEmpty else { return nil }
        lostNodes += nodes
        return set(now)
    }

    /// The time of a look has come.
    ///
    /// - Returns: identities to be asked, by their times, and nodes that all of them are to be told of;
    ///   ``nextLook()`` follows. Nil where an earlier look has replaced this one.
    package mutating func look(
        at time: MonotonicTime, now: MonotonicTime
    ) -> (due: [Identity], lost: [NodeID])? {
        guard alarm == time else { return nil }
        alarm = nil
        let due = wakes.keys.filter { $0 <= now }.sorted().flatMap { wakes.removeValue(forKey: $0) ?? [] }
        defer { lostNodes = [] }
        return (due, lostNodes)
    }

    /// When to look again; nil where nothing is waited for, or a look already is.
    package mutating func nextLook() -> MonotonicTime? { wakes.keys.min().flatMap { set($0) } }

    private mutating func set(_ time: MonotonicTime) -> MonotonicTime? {
        if let alarm, alarm <= time { return nil }
        alarm = time
        return time
    }
}
