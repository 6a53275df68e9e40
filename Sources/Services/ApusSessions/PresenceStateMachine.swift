package import ApusCore

/// Where a session's socket is: a life of an edge node, and the session's id.
package struct SessionPlace: Sendable, Hashable {
    package var node: NodeID
    package var session: String

    package init(node: NodeID, session: String) {
        self.node = node
        self.session = session
    }
}

/// One identity's session, as the owner of its shard knows it: who is connected, where, and who wants
/// to hear of it (D6, IV-A5, IV-D9).
///
/// The newest session of an identity wins; the one before is kicked. A socket that breaks leaves a
/// grace in which the client may come back elsewhere, so that a node's death is not seen as the
/// device's. When the owner itself dies, the edges tell the next owner what they hold.
///
/// Pure: time comes in; the actor around it runs what comes out.
package struct PresenceStateMachine: Sendable {
    package struct Configuration: Sendable {
        /// How long a broken session may be resumed before the device counts as offline. Key `sessions.grace`.
        package var grace: Duration = .seconds(3)
        /// The most sessions that hear of one device's presence. Key `sessions.subscribers_max`.
        package var subscribersMax = 1024
        package init() {}
    }

    package enum Action: Sendable, Equatable {
        /// Tell the edge that its session was superseded (IV-A5).
        case kick(SessionPlace)
        /// Push the presence to these places (IV-D10).
        case push(Presence, [SessionPlace])
        /// Call ``tick(now:wallSeconds:)`` at this time.
        case wake(at: MonotonicTime)
        /// Nobody is here and nobody asks: the actor may be let go.
        case idle
    }

    private struct Current: Sendable {
        var place: SessionPlace
        var sinceMilliseconds: Int64
        var lostSince: MonotonicTime?
    }

    private let configuration: Configuration
    private var current: Current?
    private var isAsleep = false
    package private(set) var presence: Presence
    private var subscribers: [SessionPlace] = []
    /// Until then nobody is called offline: this owner may be new, and the edge has yet to speak.
    private var settlesAt: MonotonicTime?

    /// - Parameter wallSeconds: wall clock now, for ``presence`` until a session registers.
    package init(configuration: Configuration, now: MonotonicTime, wallSeconds: Int64) {
        self.configuration = configuration
        settlesAt = now + configuration.grace
        presence = Presence(online: .offline, time: wallSeconds)
    }

    package var place: SessionPlace? { current?.place }
    package var subscriberCount: Int { subscribers.count }

    /// A session says where it is. False where a newer one of the same identity is known: it is to end.
    package mutating func register(
        _ place: SessionPlace, sinceMilliseconds: Int64, isAsleep: Bool, wallSeconds: Int64
    ) -> (isAccepted: Bool, actions: [Action]) {
        var actions: [Action] = []
        if let current, current.place.session != place.session {
            guard sinceMilliseconds >= current.sinceMilliseconds else { return (false, []) }
            actions.append(.kick(current.place))
        }
        current = Current(place: place, sinceMilliseconds: sinceMilliseconds, lostSince: nil)
        self.isAsleep = isAsleep
        actions += update(wallSeconds: wallSeconds)
        return (true, actions)
    }

    /// A session's socket is gone; `isResumable` where it broke rather than ended.
    package mutating func unregister(
        _ place: SessionPlace, isResumable: Bool, now: MonotonicTime, wallSeconds: Int64
    ) -> [Action] {
        subscribers.removeAll { $0 == place }
        // The client may be back at another node already: then this is old news.
        guard current?.place == place else { return idleIfUnused() }
        guard isResumable else {
            current = nil
            return update(wallSeconds: wallSeconds) + idleIfUnused()
        }
        current?.lostSince = now
        return [.wake(at: now + configuration.grace)]
    }

    /// A node died, and every socket with it.
    package mutating func nodeLost(_ node: NodeID, now: MonotonicTime) -> [Action] {
        subscribers.removeAll { $0.node == node }
        guard current?.place.node == node, current?.lostSince == nil else { return [] }
        current?.lostSince = now
        return [.wake(at: now + configuration.grace)]
    }

    /// The device sleeps or wakes (`_online` 2).
    package mutating func setAsleep(_ isAsleep: Bool, from place: SessionPlace, wallSeconds: Int64) -> [Action] {
        guard current?.place.session == place.session else { return [] }
        self.isAsleep = isAsleep
        return update(wallSeconds: wallSeconds)
    }

    /// A place wants to hear of every change. False where the bound is reached.
    package mutating func subscribe(
        _ place: SessionPlace, now: MonotonicTime
    ) -> (isAccepted: Bool, actions: [Action]) {
        if !subscribers.contains(place) {
            guard subscribers.count < configuration.subscribersMax else { return (false, []) }
            subscribers.append(place)
        }
        guard current == nil, let settlesAt, now < settlesAt else { return (true, []) }
        return (true, [.wake(at: settlesAt)])
    }

    package mutating func unsubscribe(_ place: SessionPlace) -> [Action] {
        subscribers.removeAll { $0 == place }
        return idleIfUnused()
    }

    package mutating func tick(now: MonotonicTime, wallSeconds: Int64) -> [Action] {
        if let settlesAt, now >= settlesAt {
            self.settlesAt = nil
            if current == nil, !subscribers.isEmpty { return [.push(presence, subscribers)] }
        }
        guard let since = current?.lostSince else { return idleIfUnused() }
        guard now - since >= configuration.grace else { return [.wake(at: since + configuration.grace)] }
        current = nil
        return update(wallSeconds: wallSeconds) + idleIfUnused()
    }

    private mutating func update(wallSeconds: Int64) -> [Action] {
        let online: Presence.Online = current == nil ? .offline : isAsleep ? .asleep : .online
        guard online != presence.online else { return [] }
        presence = Presence(online: online, time: wallSeconds)
        return subscribers.isEmpty ? [] : [.push(presence, subscribers)]
    }

    private func idleIfUnused() -> [Action] {
        current == nil && subscribers.isEmpty ? [.idle] : []
    }
}
