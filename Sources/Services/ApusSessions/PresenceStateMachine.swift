package import ApusCore

/// Where a session's socket is: an incarnation of an edge node, and the session's id.
package struct SessionPlace: Sendable, Hashable {
    package var node: NodeID
    package var session: String

    package init(node: NodeID, session: String) {
        self.node = node
        self.session = session
    }
}

/// One identity's client, as the owner of its shard knows it: who is connected, where, and who wants
/// to hear of it (D6, IV-A5, IV-D9).
///
/// The newest client of an identity wins; the one before is kicked. A client is an instance: while it tries several
/// nodes it may have a session at each, and none of them kicks another. Which of them it goes on with is its own
/// choice; it closes the others, and each that is closed leaves its place here. So late, repeated and re-ordered
/// registrations of one client change nothing for it.
///
/// The order of clients is given out here (``SessionOrder``), at the first registration of each, and shown by the edges
/// when they register again with the next owner. An instance that was superseded stays so: its late hellos are refused.
///
/// A socket that breaks leaves a grace in which the client may come back elsewhere, so that a node's death is not seen
/// as the device's. When the owner itself dies, the edges register what they hold with the next owner.
///
/// Pure: time comes in; the actor around it runs what comes out.
package struct PresenceStateMachine: Sendable {
    package struct Configuration: Sendable {
        /// How long a broken session may be resumed before the device counts as offline. Key `sessions.grace`.
        package var grace: Duration = .seconds(3)
        /// The most sessions that hear of one device's presence. Key `sessions.subscribers_max`.
        package var subscribersMax = 1024
        /// The most places of one client; one more ends the oldest. Key `sessions.connections_max`.
        package var placesMax = 8
        package init() {}
    }

    /// A session says where it is.
    package struct Registration: Sendable {
        package var place: SessionPlace
        /// Of the client's hello; 0 where it named none. Such a client is one session.
        package var instance: UInt64
        /// What an owner gave the client before; nil for one that is to be given it.
        package var order: SessionOrder?
        package var isAsleep: Bool

        package init(
            place: SessionPlace, instance: UInt64 = 0, order: SessionOrder? = nil, isAsleep: Bool = false
        ) {
            self.place = place
            self.instance = instance
            self.order = order
            self.isAsleep = isAsleep
        }
    }

    package enum Action: Sendable, Equatable {
        /// Tell the edge that its session was superseded by a client of this order (IV-A5).
        case kick(SessionPlace, by: SessionOrder)
        /// Tell the edge to close the session's socket; its client goes on elsewhere.
        case release(SessionPlace)
        /// Push the presence to these places (IV-D10).
        case push(Presence, [SessionPlace])
        /// Call ``tick(now:wallSeconds:)`` at this time.
        case wake(at: MonotonicTime)
        /// Nobody is here and nobody asks: the actor may be deactivated.
        case idle
    }

    /// What is remembered of an identity's clients for as long as one of them may show a ticket, also where none is
    /// connected and where another node becomes the owner.
    package struct Memory: Sendable, Equatable {
        /// The newest order that was given out or heard of.
        package var newest = SessionOrder.none
        /// The instance of the client that has it; 0 where it named none.
        package var instance: UInt64 = 0
        /// Instances that were superseded, the newest last.
        package var superseded: [UInt64] = []

        package init(newest: SessionOrder = .none, instance: UInt64 = 0, superseded: [UInt64] = []) {
            self.newest = newest
            self.instance = instance
            self.superseded = superseded
        }
    }

    private struct Client: Sendable {
        var instance: UInt64
        var order: SessionOrder
        /// Where its sessions are, the newest last; empty while it is lost.
        var places: [SessionPlace] = []
        /// The id of its newest session.
        var session = ""
        var lostSince: MonotonicTime?

        /// True where the registration is of this client, too.
        func isSame(as registration: Registration) -> Bool {
            if instance != 0, instance == registration.instance { return true }
            // A resumed session keeps its id, also where an edge does not know of instances.
            let id = registration.place.session
            return session == id || places.contains { $0.session == id }
        }
    }

    private let configuration: Configuration
    private let epoch: Epoch
    private var current: Client?
    private var lastSequence: UInt64 = 0
    /// What is to be known beyond the client's session, and beyond this owner.
    package private(set) var memory = Memory()
    private var isAsleep = false
    package private(set) var presence: Presence
    private var subscribers: [SessionPlace] = []
    /// Until then nobody is called offline: this owner may be new, and the edge has yet to speak.
    private var settlesAt: MonotonicTime?

    /// The most instances that are remembered as superseded.
    private static let supersededMax = 16

    /// - Parameters:
    ///   - epoch: the shard's, at this owner.
    ///   - wallSeconds: wall clock now, for ``presence`` until a session registers.
    package init(configuration: Configuration, epoch: Epoch, now: MonotonicTime, wallSeconds: Int64) {
        self.configuration = configuration
        self.epoch = epoch
        settlesAt = now + configuration.grace
        presence = Presence(online: .offline, time: wallSeconds)
    }

    /// Where the client's newest session is.
    package var place: SessionPlace? { current?.places.last }
    /// Where all of its sessions are.
    package var places: [SessionPlace] { current?.places ?? [] }
    package var subscriberCount: Int { subscribers.count }

    /// A session says where it is. Its client's order; nil where a newer client is known, and the session is to end.
    package mutating func register(
        _ registration: Registration, now: MonotonicTime, wallSeconds: Int64
    ) -> (order: SessionOrder?, actions: [Action]) {
        let instance = registration.instance
        guard instance == 0 || !memory.superseded.contains(instance) else { return (nil, []) }
        var client: Client
        var actions: [Action] = []
        if let current, current.isSame(as: registration) {
            client = current
            client.order = max(current.order, registration.order ?? .none)
            if instance != 0 { client.instance = instance }
        } else {
            let order = registration.order ?? nextOrder(now: now)
            // A newer client came since, though it has left: a ticket of before opens nothing.
            let isNewest = instance != 0 && instance == memory.instance
            guard order >= memory.newest || isNewest else { return (nil, []) }
            if let current {
                // Of equal orders, which no owner gave, the greater instance wins, and the later of two without.
                guard (order, instance) >= (current.order, current.instance) else { return (nil, []) }
                actions += current.places.map { .kick($0, by: order) }
                supersede(current.instance)
            }
            client = Client(instance: instance, order: order)
        }
        client.places.removeAll { $0 == registration.place }
        client.places.append(registration.place)
        client.session = registration.place.session
        if client.places.count > configuration.placesMax { actions.append(.release(client.places.removeFirst())) }
        client.lostSince = nil
        current = client
        if client.order >= memory.newest { (memory.newest, memory.instance) = (client.order, client.instance) }
        isAsleep = registration.isAsleep
        actions += update(wallSeconds: wallSeconds)
        return (client.order, actions)
    }

    /// What an earlier owner, or this one before it was deactivated, knew of the identity's clients.
    package mutating func restore(_ earlier: Memory) {
        if earlier.newest > memory.newest { (memory.newest, memory.instance) = (earlier.newest, earlier.instance) }
        let known = earlier.superseded.filter { !memory.superseded.contains($0) && $0 != current?.instance }
        memory.superseded = Array((known + memory.superseded).suffix(Self.supersededMax))
    }

    /// Later than any that was given out before: the epoch is this owner's own, the number grows with its clock.
    private mutating func nextOrder(now: MonotonicTime) -> SessionOrder {
        lastSequence = max(lastSequence + 1, now.nanoseconds)
        let next = SessionOrder(epoch: epoch, sequence: lastSequence)
        // Only where this owner was replaced and does not know yet; what it says is refused then.
        let newest = max(memory.newest, current?.order ?? .none)
        guard newest >= next else { return next }
        // Numbers come from the wire: the last one has no next, and then the two stand beside each other.
        let isLast = newest.sequence >= WireNumber.sequenceMax
        return SessionOrder(epoch: newest.epoch, sequence: isLast ? newest.sequence : newest.sequence + 1)
    }

    private mutating func supersede(_ instance: UInt64) {
        guard instance != 0 else { return }
        memory.superseded.append(instance)
        if memory.superseded.count > Self.supersededMax { memory.superseded.removeFirst() }
    }

    /// A session's socket is gone; `isResumable` where it broke rather than ended.
    package mutating func unregister(
        _ place: SessionPlace, isResumable: Bool, now: MonotonicTime, wallSeconds: Int64
    ) -> [Action] {
        subscribers.removeAll { $0 == place }
        guard current?.places.contains(place) == true else { return idleIfUnused() }
        current?.places.removeAll { $0 == place }
        // The client may be at another node already: then this is old news.
        guard current?.places.isEmpty == true else { return [] }
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
        guard current?.places.contains(where: { $0.node == node }) == true else { return [] }
        current?.places.removeAll { $0.node == node }
        guard current?.places.isEmpty == true else { return [] }
        current?.lostSince = now
        return [.wake(at: now + configuration.grace)]
    }

    /// The device sleeps or wakes (`_online` 2).
    package mutating func setAsleep(_ isAsleep: Bool, from place: SessionPlace, wallSeconds: Int64) -> [Action] {
        guard current?.places.contains(where: { $0.session == place.session }) == true else { return [] }
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
