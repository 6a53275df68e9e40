package import ApusCore

/// The location of a session's socket: an incarnation of an edge node, and the session's id.
package struct SessionPlace: Sendable, Hashable {
    package var node: NodeID
    package var session: String

    package init(node: NodeID, session: String) {
        self.node = node
        self.session = session
    }
}

/// The client of one identity at the owner of its shard: who is connected, where, and who subscribes to its presence
/// (D6, IV-A5, IV-D9).
/// The newest client of an identity wins, and the earlier one is kicked. A client is an instance. While it tries
/// several nodes it may have a session at each, and none of them kicks another. The client chooses one of them and
/// closes the others, and each closed session removes its place here. Late, repeated and reordered registrations of one
/// client therefore change nothing for it.
/// The order of clients is assigned here (``SessionOrder``), at the first registration of each. The edges present it
/// when they register again with the next owner. A superseded instance stays superseded: its late hellos are refused.
/// After a socket breaks, the client has a grace period in which it may return at another node, so that a node's death
/// does not make its devices appear offline. If the owner itself dies, the edges register their sessions with the next
/// owner.
/// Pure: times are passed in; the actor carries out the actions.
package struct PresenceStateMachine: Sendable {
    package struct Configuration: Sendable {
        /// How long a broken session may be resumed before the device counts as offline. Key `sessions.grace`.
        package var grace: Duration = .seconds(3)
        /// The maximum number of subscribers of one device's presence. Key `sessions.subscribers_max`.
        package var subscribersMax = 1024
        /// The maximum number of places of one client. Beyond it the oldest ends. Key `sessions.connections_max`.
        package var placesMax = 8
        /// How long a device without a client and a subscriber stays in memory after an account that has a right to it
        /// has asked for it. Its presence keeps its time meanwhile.
        package var quietTime: Duration = .seconds(600)
        package init() {}
    }

    /// The registration of a session's place.
    package struct Registration: Sendable {
        package var place: SessionPlace
        /// The instance in the client's hello; 0 if it named none. Such a client is one session.
        package var instance: UInt64
        /// The order that an owner assigned to the client before; nil for a new client.
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
        /// Notify the edge that its session was superseded by a client of this order (IV-A5).
        case kick(SessionPlace, by: SessionOrder)
        /// Ask the edge to close the session's socket. The client continues on another.
        case release(SessionPlace)
        /// Push the presence to these places (IV-D10).
        case push(Presence, [SessionPlace])
        /// Call ``tick(now:wallSeconds:)`` at this time.
        case wake(at: MonotonicTime)
        /// There is no client and no subscriber: the actor may be deactivated.
        case idle
    }

    /// What is known of an identity's clients for as long as one of them may present a ticket, even if none is
    /// connected, and after another node becomes the owner.
    package struct Memory: Sendable, Equatable {
        /// The newest order that was assigned or registered.
        package var newest = SessionOrder.none
        /// The instance of the client with that order; 0 if it named none.
        package var instance: UInt64 = 0
        /// Superseded instances, newest last.
        package var superseded: [UInt64] = []
        /// The last sign-in or end of a connection, in Unix seconds; 0 if it is unknown.
        package var seenSeconds: Int64 = 0

        package init(
            newest: SessionOrder = .none, instance: UInt64 = 0, superseded: [UInt64] = [], seenSeconds: Int64 = 0
        ) {
            self.seenSeconds = seenSeconds
            self.newest = newest
            self.instance = instance
            self.superseded = superseded
        }
    }

    private struct Client: Sendable {
        var instance: UInt64
        var order: SessionOrder
        /// The places of its sessions, newest last; empty while it is lost.
        var places: [SessionPlace] = []
        /// The id of its newest session.
        var session = ""
        var lostSince: MonotonicTime?

        /// True if the registration belongs to this client.
        func isSame(as registration: Registration) -> Bool {
            if instance != 0, instance == registration.instance { return true }
            // A resumed session keeps its id, even at an edge that does not support instances.
            let id = registration.place.session
            return session == id || places.contains { $0.session == id }
        }
    }

    private let configuration: Configuration
    private let epoch: Epoch
    private var current: Client?
    private var lastSequence: UInt64 = 0
    /// What must be known after the client's session, and after this owner.
    package private(set) var memory = Memory()
    private var isAsleep = false
    /// Its last client was reported offline here.
    private var wentOffline = false
    package private(set) var presence: Presence
    private var subscribers: [SessionPlace] = []
    /// The time before which no device is reported offline: this owner may be new, and the edges may not have
    /// registered yet.
    private var settlesAt: MonotonicTime?
    /// The last message that keeps the identity in memory for the quiet time; nil if there was none.
    private var quietSince: MonotonicTime?
    /// The time of the call that was requested for the end of the quiet time.
    private var quietWakeAt: MonotonicTime?

    /// The maximum number of superseded instances that are remembered.
    private static let supersededMax = 16
    /// Calls for the end of a quiet time are requested at multiples of this, in nanoseconds: they are many.
    private static let quietStep: UInt64 = 10_000_000_000

    /// - Parameters:
    ///   - epoch: that of the shard at this owner.
    ///   - wallSeconds: the wall clock, for ``presence`` until a session registers.
    package init(configuration: Configuration, epoch: Epoch, now: MonotonicTime, wallSeconds: Int64) {
        self.configuration = configuration
        self.epoch = epoch
        settlesAt = now + configuration.grace
        presence = Presence(online: .offline, time: wallSeconds)
    }

    /// The place of the client's newest session.
    package var place: SessionPlace? { current?.places.last }
    /// The places of all its sessions.
    package var places: [SessionPlace] { current?.places ?? [] }
    package var subscriberCount: Int { subscribers.count }
    /// True if there is a client or a subscriber.
    package var isUsed: Bool { current != nil || !subscribers.isEmpty }

    /// Registers a session. Returns its client's order, or nil if a newer client is known and the session must end.
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
            // A newer client was registered, even if it has left since: earlier tickets open nothing.
            let isNewest = instance != 0 && instance == memory.instance
            guard order >= memory.newest || isNewest else { return (nil, []) }
            if let current {
                // Of equal orders, which no owner assigned, the greater instance wins, or the later client if both have
                // none.
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
        // What other nodes announce again, after a change of the owner, says nothing of the time.
        if registration.order == nil || wentOffline { memory.seenSeconds = wallSeconds }
        wentOffline = false
        actions += update(wallSeconds: wallSeconds)
        return (client.order, actions)
    }

    /// Restores the memory of an earlier owner, or of this one before it was deactivated.
    package mutating func restore(_ earlier: Memory) {
        if earlier.newest > memory.newest { (memory.newest, memory.instance) = (earlier.newest, earlier.instance) }
        memory.seenSeconds = max(memory.seenSeconds, earlier.seenSeconds)
        let known = earlier.superseded.filter { !memory.superseded.contains($0) && $0 != current?.instance }
        memory.superseded = Array((known + memory.superseded).suffix(Self.supersededMax))
    }

    /// An order later than all that were assigned before: the epoch is this owner's own, the sequence follows its
    /// clock.
    private mutating func nextOrder(now: MonotonicTime) -> SessionOrder {
        lastSequence = max(lastSequence + 1, now.nanoseconds)
        let next = SessionOrder(epoch: epoch, sequence: lastSequence)
        // True only if this owner was replaced and has not noticed yet. Its messages are refused then.
        let newest = max(memory.newest, current?.order ?? .none)
        guard newest >= next else { return next }
        // Sequences come from other nodes: the last one has no successor, and then the two clients have equal orders.
        let isLast = newest.sequence >= WireNumber.sequenceMax
        return SessionOrder(epoch: newest.epoch, sequence: isLast ? newest.sequence : newest.sequence + 1)
    }

    private mutating func supersede(_ instance: UInt64) {
        guard instance != 0 else { return }
        memory.superseded.append(instance)
        if memory.superseded.count > Self.supersededMax { memory.superseded.removeFirst() }
    }

    /// Notes that a session's socket is gone. `isResumable` is true if it broke, false if it was ended.
    package mutating func unregister(
        _ place: SessionPlace, isResumable: Bool, now: MonotonicTime, wallSeconds: Int64
    ) -> [Action] {
        subscribers.removeAll { $0 == place }
        guard current?.places.contains(place) == true else { return idleIfUnused() }
        current?.places.removeAll { $0 == place }
        // The client may already be at another node. Then this message is out of date.
        guard current?.places.isEmpty == true else { return [] }
        guard isResumable else {
            current = nil
            return update(wallSeconds: wallSeconds) + idleIfUnused()
        }
        current?.lostSince = now
        return [.wake(at: now + configuration.grace)]
    }

    /// Notes that a node died, and all its sockets with it.
    package mutating func nodeLost(_ node: NodeID, now: MonotonicTime) -> [Action] {
        let count = subscribers.count
        subscribers.removeAll { $0.node == node }
        guard current?.places.contains(where: { $0.node == node }) == true else {
            return subscribers.count < count ? quiet(now: now) : []
        }
        current?.places.removeAll { $0.node == node }
        guard current?.places.isEmpty == true else { return [] }
        current?.lostSince = now
        return [.wake(at: now + configuration.grace)]
    }

    /// Notes that the device sleeps or wakes (`_online` 2).
    package mutating func setAsleep(_ isAsleep: Bool, from place: SessionPlace, wallSeconds: Int64) -> [Action] {
        guard current?.places.contains(where: { $0.session == place.session }) == true else { return [] }
        self.isAsleep = isAsleep
        return update(wallSeconds: wallSeconds)
    }

    /// Subscribes a place to all changes. Returns false if the limit is reached.
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

    /// Notes that a message was handled. An identity that nothing uses does not stay in memory.
    ///
    /// - Parameter isKept: it was a message of an account that has a right to the device. The identity then stays for
    ///   the quiet time.
    package mutating func handled(isKept: Bool, now: MonotonicTime) -> [Action] {
        guard !isUsed else { return [] }
        if isKept { quietSince = now }
        guard let quietSince else { return [.idle] }
        if let quietWakeAt, quietWakeAt > now { return [] }
        return [wakeAfter(quietSince)]
    }

    /// Releases the identity if nothing uses it, and the quiet time is over.
    private mutating func quiet(now: MonotonicTime) -> [Action] {
        guard let quietSince, !isUsed else { return idleIfUnused() }
        guard now - quietSince < configuration.quietTime else {
            (self.quietSince, quietWakeAt) = (nil, nil)
            return [.idle]
        }
        // The call may be one that was requested for something else.
        guard let quietWakeAt, now >= quietWakeAt else { return [] }
        return [wakeAfter(quietSince)]
    }

    private mutating func wakeAfter(_ quietSince: MonotonicTime) -> Action {
        let end = (quietSince + configuration.quietTime).nanoseconds
        let time = MonotonicTime(nanoseconds: (end / Self.quietStep + 1) * Self.quietStep)
        quietWakeAt = time
        return .wake(at: time)
    }

    package mutating func tick(now: MonotonicTime, wallSeconds: Int64) -> [Action] {
        if let settlesAt, now >= settlesAt {
            self.settlesAt = nil
            if current == nil, !subscribers.isEmpty { return [.push(presence, subscribers)] }
        }
        guard let since = current?.lostSince else { return quiet(now: now) }
        guard now - since >= configuration.grace else { return [.wake(at: since + configuration.grace)] }
        current = nil
        return update(wallSeconds: wallSeconds) + quiet(now: now)
    }

    private mutating func update(wallSeconds: Int64) -> [Action] {
        let online: Presence.Online = current == nil ? .offline : isAsleep ? .asleep : .online
        guard online != presence.online else { return [] }
        presence = Presence(online: online, time: wallSeconds)
        if online == .offline { (wentOffline, memory.seenSeconds) = (true, wallSeconds) }
        return subscribers.isEmpty ? [] : [.push(presence, subscribers)]
    }

    /// Nothing while a quiet time runs, which ends with a call.
    private func idleIfUnused() -> [Action] { isUsed || quietSince != nil ? [] : [.idle] }
}
