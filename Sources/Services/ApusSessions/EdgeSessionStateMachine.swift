package import ApusCore
import DequeModule

/// A request of an edge to the owner of an identity or of a device.
package struct EdgeAsk: Sendable {
    package enum Content: Sendable, Hashable {
        /// The session is at this node.
        case register(isAsleep: Bool)
        /// The session has no socket at this node.
        case unregister
        /// The session subscribes to the device.
        case subscribe(DeviceID)
        /// The session ends its subscription to the device.
        case forget(DeviceID)
    }

    /// Matches an answer to its request.
    package let number: UInt64
    /// The session at the time of the request.
    package let session: Session
    package let content: Content
}

/// The result of an ``EdgeAsk``.
package enum EdgeAnswer: Sendable {
    /// The owner has registered the session, and this is its client's order.
    case registered(SessionOrder)
    /// The owner has carried out the request.
    case done
    /// 12003: a newer client is known. After other errors the request may have been carried out or not.
    case failed(ApusError)
}

/// A pause before the owner is asked again.
package struct EdgeWait: Sendable {
    package let number: UInt64
    package let session: String
    package let until: MonotonicTime
}

/// The sessions of one edge node with their sockets, and the facts that the owners of their identities have not
/// acknowledged yet (D6, IV-A5, docs/decisions/7 and 13).
/// **A session** begins with a token or with a ticket. With a token its owner is asked before the client is answered
/// (``opening(_:_:)``). With a ticket the owner is notified afterwards (``resumed(_:_:)``). A session may have several
/// sockets until its client chooses one. A session without a socket stays until its owner has acknowledged that.
/// **Facts.** The registration of a session, with its sleep state, is one fact; each subscription to a device is
/// another. A fact has a version, which grows with every change, and the version that its owner has acknowledged. While
/// they differ the owner is asked, with one request per session at a time, and again after a pause if that fails. A
/// request states the current value, not the change, so it may be repeated. Requests of a client itself (subscriptions,
/// sleep) go to the owner at once. If such a request may have crossed another one about the same fact, their order is
/// unknown, and the fact is sent once more.
/// **A new map.** The next owner of a shard has no state. The facts of shards whose epochs changed are sent again, and
/// pauses end. Messages of the former owner are refused by their epoch.
/// **Messages of owners** may overtake their answers. A kick that arrives while the session is being opened is kept,
/// and decides when the answer arrives. A session that was ended here has no sockets from that moment, although closing
/// them takes some time. A client that returns in the meantime is therefore not confirmed before the owner is asked.
/// **Bounds.** `sessionsMax` sessions, `linksMax` sockets of each (beyond it the oldest ends), and `subscriptionsMax`
/// subscriptions of each. A session that has used more than `subscriptionsMax` devices counts as a user of all.
/// Pure: confined to its owner; times are passed in. `Link` identifies a socket.
package struct EdgeSessionStateMachine<Link: Equatable & Sendable>: Sendable {
    package struct Configuration: Sendable {
        /// The maximum number of concurrent sockets of one session. Key `sessions.connections_max`.
        package var linksMax = 8
        /// The maximum number of sessions. Further ones are refused with 10007. Key `sessions.sessions_max`.
        package var sessionsMax = 65_536
        /// The maximum number of subscriptions of one session. Further ones are refused with 10007. Key
        /// `sessions.subscriptions_max`.
        package var subscriptionsMax = 10_000
        /// The first pause after a failed request. Each further pause is twice as long, up to ``retryDelayMax``.
        package var retryDelay = Duration.milliseconds(50)
        package var retryDelayMax = Duration.seconds(1)

        package init() {}
    }

    /// What the shell does next, in this order.
    package enum Action: Sendable {
        /// Close these sockets, and send their client the error.
        case end([Link], ApusError)
        /// The owner has confirmed the session of these sockets as the newest.
        case confirm([Link])
        /// Ask the owner; answer with ``answered(_:_:now:)``.
        case ask(EdgeAsk)
        /// Call ``retryDue(_:)`` at the given time.
        case wait(EdgeWait)
    }

    /// The state of a session at this node.
    package struct Held: Sendable, Equatable {
        /// Newest last.
        package var links: [Link]
        package var order: SessionOrder
        package var isAsleep: Bool
        package var isConfirmed: Bool
        /// Sorted.
        package var devices: [DeviceID]
        /// True if the owners have acknowledged all facts.
        package var isReported: Bool
    }

    private enum Phase: Sendable {
        /// The owner was asked for the first order. Its messages in the meantime are kept.
        indirect case opening(kickedBy: SessionOrder, ended: ApusError?)
        case opened
        /// The owner did not confirm that it is open. An unregistration is sent once, in case the owner registered it.
        case refused
    }

    private enum Work: Sendable {
        case none
        case asking(UInt64, version: UInt64)
        case waiting(UInt64)
    }

    /// A subscription to a device.
    private struct Subscription: Sendable {
        var isWanted = false
        /// True once the client was notified that the subscription is active.
        var isGranted = false
        var version: UInt64 = 0
        var reportedVersion: UInt64 = 0
        /// The number of the client's own requests that are unanswered.
        var askedCount = 0
        var isQueued = false

        var needsReport: Bool { version != reportedVersion && askedCount == 0 }
    }

    private struct Entry: Sendable {
        /// Grows from session to session. It gives the order in which sessions are processed.
        let serial: UInt64
        /// The shard of its identity.
        let shard: ShardID
        var session: Session
        /// Its sockets, newest last.
        var links: [Link]
        var phase: Phase
        var isAsleep = false
        /// The number of the client's own sleep messages that are unanswered.
        var sleepCount = 0
        var isConfirmed = false
        /// The registration of an earlier version does not confirm the session.
        var confirmingVersion: UInt64 = 0
        var version: UInt64 = 1
        var reportedVersion: UInt64 = 0
        var subscriptions: [DeviceID: Subscription] = [:]
        var used: UsedDevices
        /// The session's requests in progress that change who may use a device.
        var relationCount = 0
        /// Devices whose owners must be asked, in this order.
        var queue = Deque<DeviceID>()
        var work = Work.none
        /// Requests in a row that have failed.
        var failures = 0

        var isOpening: Bool { if case .opening = phase { true } else { false } }
        var isWorking: Bool { if case .none = work { false } else { true } }
        /// True if all facts are acknowledged and there is no socket.
        var isOver: Bool {
            links.isEmpty && !isOpening && !isWorking && version == reportedVersion && sleepCount == 0
                && subscriptions.isEmpty
        }

        /// The next request to an owner, and the version that its answer acknowledges.
        mutating func next() -> (content: EdgeAsk.Content, version: UInt64)? {
            guard !isOpening else { return nil }
            if version != reportedVersion {
                if links.isEmpty { return (.unregister, version) }
                // The answer to the client's sleep message comes first: that message must not take effect after this
                // one.
                if sleepCount == 0 { return (.register(isAsleep: isAsleep), version) }
            }
            while let device = queue.popFirst() {
                subscriptions[device]?.isQueued = false
                guard let subscription = subscriptions[device], subscription.needsReport else { continue }
                return (subscription.isWanted ? .subscribe(device) : .forget(device), subscription.version)
            }
            return nil
        }
    }

    /// A session that must send a fact again when a shard changes its owner.
    private struct Interest: Sendable, Hashable {
        let serial: UInt64
        /// Nil for the shard of the session's own identity.
        let device: DeviceID?
        let session: String

        static func == (left: Self, right: Self) -> Bool { left.serial == right.serial && left.device == right.device }

        func hash(into hasher: inout Hasher) {
            hasher.combine(serial)
            hasher.combine(device)
        }

        /// The session itself sorts first, then its devices.
        static func isBefore(_ left: Self, _ right: Self) -> Bool {
            guard left.serial == right.serial else { return left.serial < right.serial }
            return (left.device?.rawValue ?? "") < (right.device?.rawValue ?? "")
        }
    }

    private let configuration: Configuration
    private var entries: [String: Entry] = [:]
    /// By shard.
    private var interests = [Set<Interest>](repeating: [], count: ShardID.count)
    /// The shards' epochs in the newest map.
    private var epochs = [Epoch](repeating: 0, count: ShardID.count)
    /// The newest epochs in messages of owners. Such messages may be out of date.
    private var ownerMessages = OwnerMessages()
    /// When sessions end that have lost a right, and have such a request in progress.
    private var ends: [String: MonotonicTime] = [:]
    private var lastSerial: UInt64 = 0
    private var lastNumber: UInt64 = 0

    package init(configuration: Configuration) { self.configuration = configuration }

    /// The number of sessions with a socket, or whose owners have not acknowledged that they have none.
    package var sessionCount: Int { entries.count }

    /// The number of sessions and subscriptions that new maps may concern. Visits all shards.
    package var interestCount: Int { interests.reduce(0) { $0 + $1.count } }

    /// The sessions with a socket, oldest first, and whether there are more. Visits all sessions.
    /// - Parameter account: only its sessions; if empty, those of all accounts.
    package func list(account: String, limit: Int) -> (sessions: [Session], hasMore: Bool) {
        let found = entries.values.filter {
            !$0.links.isEmpty && (account.isEmpty || $0.session.account.rawValue == account)
        }.sorted { $0.serial < $1.serial }
        return (found.prefix(limit).map(\.session), found.count > limit)
    }

    package func held(_ session: String) -> Held? {
        guard let entry = entries[session] else { return nil }
        let isReported = entry.version == entry.reportedVersion && entry.sleepCount == 0 && !entry.isOpening
        return Held(
            links: entry.links, order: entry.session.order, isAsleep: entry.isAsleep, isConfirmed: entry.isConfirmed,
            devices: entry.subscriptions.filter { $0.value.isWanted }.keys.sorted(),
            isReported: isReported && entry.subscriptions.values.allSatisfy { $0.version == $0.reportedVersion })
    }

    // MARK: - Connections

    /// Adds the session of a new client. The owner of its identity is asked for its first order; pass the answer to
    /// ``opened(_:_:)``.
    /// The session is in the table in the meantime, so that a kick that overtakes the owner's answer finds it.
    /// - Returns: 10007 if there are too many sessions. Then the owner is not asked.
    package mutating func opening(_ session: Session, _ link: Link) -> ApusError? {
        precondition(entries[session.id] == nil, "a new session has the id of another: \(session.id)")
        guard let entry = makeEntry(session, link, .opening(kickedBy: .none, ended: nil)) else { return Self.isFull }
        entries[session.id] = entry
        // The request in progress registers it.
        entries[session.id]?.reportedVersion = entry.version
        return nil
    }

    /// Processes the owner's answer about a new session. The session is opened with the order of the answer, or refused
    /// with the error for its client.
    package mutating func opened(
        _ id: String, _ answer: Result<SessionOrder, ApusError>
    ) -> (session: Result<Session, ApusError>, actions: [Action]) {
        guard let index = entries.index(forKey: id),
            case .opening(let kickedBy, let ended) = entries.values[index].phase
        else { return (.failure(ApusError(.cancelled)), []) }
        let error: ApusError
        switch answer {
        case .success(let order):
            entries.values[index].session.order = order
            entries.values[index].phase = .opened
            guard let refusal = ended ?? (kickedBy > order ? ApusError(.kicked) : nil) else {
                entries.values[index].isConfirmed = true
                return (.success(entries.values[index].session), work(at: index))
            }
            error = refusal
        case .failure(let failure):
            // The owner may have registered the session even though no answer came, so an unregistration is sent.
            entries.values[index].phase = .refused
            error = ended ?? failure
        }
        entries.values[index].links = []
        entries.values[index].version += 1
        return (.failure(error), work(at: index))
    }

    /// Adds a socket to a session that was admitted before, at this or another node. The owner is notified later.
    /// - Returns: `isConfirmed` is true if the session is already here and was confirmed, and no newer client became
    ///   known since; 10007 if there are too many sessions.
    package mutating func resumed(
        _ session: Session, _ link: Link
    ) -> (isConfirmed: Result<Bool, ApusError>, actions: [Action]) {
        guard let index = entries.index(forKey: session.id) else {
            guard let entry = makeEntry(session, link, .opened) else { return (.failure(Self.isFull), []) }
            entries[session.id] = entry
            return (.success(false), work(on: session.id))
        }
        if entries.values[index].links.isEmpty {
            // The session may have been superseded while it had no socket that could be kicked.
            entries.values[index].isConfirmed = false
            entries.values[index].confirmingVersion = entries.values[index].version + 1
        }
        if case .refused = entries.values[index].phase { entries.values[index].phase = .opened }
        var ended: [Link] = []
        if session.instance == 0 {
            // Nothing shows that the two sockets belong to one client.
            ended = entries.values[index].links
            entries.values[index].links = []
        } else if entries.values[index].links.count >= configuration.linksMax {
            ended = [entries.values[index].links.removeFirst()]
        }
        entries.values[index].links.append(link)
        entries.values[index].session.order = max(entries.values[index].session.order, session.order)
        entries.values[index].version += 1
        let code: ErrorCode = session.instance == 0 ? .kicked : .linkLost
        let isConfirmed = entries.values[index].isConfirmed
        return (
            .success(isConfirmed),
            Self.end(ended, ApusError(code, "the session was resumed on another connection")) + work(at: index)
        )
    }

    /// Notes that the client chose this socket of its session. Earlier ones end at once: the client no longer uses
    /// them, and their time-outs need not be waited for.
    package mutating func chosen(_ session: String, _ link: Link) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].links.count > 1,
            let place = entries.values[index].links.firstIndex(of: link)
        else { return [] }
        let ended = Array(entries.values[index].links[..<place])
        entries.values[index].links.removeFirst(place)
        return Self.end(ended, ApusError(.linkLost, "the client chose another connection"))
    }

    /// Removes a closed socket. If the session has other sockets, nothing else changes.
    package mutating func closed(_ session: String, _ link: Link) -> [Action] {
        guard let index = entries.index(forKey: session),
            let place = entries.values[index].links.firstIndex(of: link)
        else { return [] }
        entries.values[index].links.remove(at: place)
        guard entries.values[index].links.isEmpty else { return [] }
        left(at: index)
        return work(at: index)
    }

    /// Ends the revoked sessions and returns them, oldest first (IV-A6). Visits all sessions.
    package mutating func revoked(by list: RevocationList) -> (sessions: [Session], actions: [Action]) {
        let revoked = entries.values.filter { !$0.links.isEmpty && list.revokes($0.session) }
            .sorted { $0.serial < $1.serial }.map(\.session)
        var actions: [Action] = []
        for session in revoked {
            guard let index = entries.index(forKey: session.id) else { continue }
            actions += end(at: index, ApusError(.tokenInvalid, "the token was revoked"))
        }
        return (revoked, actions)
    }

    /// Notes that a session asks for a right to a device.
    package mutating func uses(_ session: String, _ device: DeviceID) {
        guard let index = entries.index(forKey: session) else { return }
        entries.values[index].used.insert(device)
    }

    /// The time in which a request that costs its own session a right is answered before the session ends.
    package static var relationTime: Duration { .seconds(1) }

    /// Notes that a session has one more request in progress that changes who may use a device, or one less.
    package mutating func relates(_ session: String, _ isBegin: Bool) {
        guard let index = entries.index(forKey: session) else { return }
        let count = entries.values[index].relationCount
        entries.values[index].relationCount = isBegin ? count + 1 : max(0, count - 1)
    }

    /// True while sessions wait for the end of ``relationTime``; see ``endsDue(now:)``.
    package var hasEnds: Bool { !ends.isEmpty }

    /// Ends the sessions whose ``relationTime`` is over.
    package mutating func endsDue(now: MonotonicTime) -> [Action] {
        let due = ends.filter { $0.value <= now }.keys.sorted()
        for session in due { ends[session] = nil }
        return lostRights(due)
    }

    /// Ends the sessions that have used a device to which their account lost a right, and those of the device with
    /// tokens of the account. Their clients connect again, and what they use is checked again (IV-B10). Visits all
    /// sessions.
    ///
    /// A session that transfers, unbinds or leaves a device loses a right by its own request. Its client would not
    /// receive the answer. So a session with such a request in progress ends after ``relationTime``, whatever becomes
    /// of the request.
    package mutating func withdrawn(
        _ lost: [DeviceWithdrawal], now: MonotonicTime
    ) -> (count: Int, actions: [Action]) {
        guard !lost.isEmpty else { return (0, []) }
        let devices = Dictionary(grouping: lost, by: \.account).mapValues { Set($0.map(\.device)) }
        let concerned = entries.values.filter { entry in
            guard !entry.links.isEmpty, let devices = devices[entry.session.account] else { return false }
            return entry.session.device.map { devices.contains($0) } ?? entry.used.isInCommon(with: devices)
        }.sorted { $0.serial < $1.serial }
        for entry in concerned where entry.relationCount > 0 && ends[entry.session.id] == nil {
            ends[entry.session.id] = now + Self.relationTime
        }
        let ended = concerned.map(\.session.id).filter { ends[$0] == nil }
        return (concerned.count, lostRights(ended))
    }

    private mutating func lostRights(_ sessions: [String]) -> [Action] {
        var actions: [Action] = []
        for id in sessions {
            guard let index = entries.index(forKey: id) else { continue }
            actions += end(at: index, ApusError(.linkLost, "the rights to a device were changed"))
        }
        return actions
    }

    // MARK: - Requests of clients

    /// Starts a subscription to a device. Ask the device's owner, and pass the answer to ``subscribed(_:_:_:_:)``.
    /// - Returns: the number of the request; 10007 beyond the limit, 10008 if the session has ended.
    package mutating func subscribing(_ session: String, _ device: DeviceID) -> Result<UInt64, ApusError> {
        guard let index = entries.index(forKey: session), !entries.values[index].links.isEmpty else {
            return .failure(ApusError(.linkLost, "the session has ended"))
        }
        if entries.values[index].subscriptions[device] == nil {
            guard entries.values[index].subscriptions.count < configuration.subscriptionsMax else {
                return .failure(ApusError(.overloaded, "the session has too many subscriptions"))
            }
            note(Interest(serial: entries.values[index].serial, device: device, session: session))
        }
        return .success(ask(of: device, at: index) { $0.isWanted = true })
    }

    /// Processes the answer of the device's owner.
    package mutating func subscribed(
        _ session: String, _ device: DeviceID, _ number: UInt64, _ error: ApusError?
    ) -> [Action] {
        guard let index = entries.index(forKey: session),
            var subscription = entries.values[index].subscriptions[device]
        else { return [] }
        subscription.askedCount -= 1
        if let error {
            // A subscription that another socket of the session was granted stays.
            if subscription.isWanted, !subscription.isGranted, subscription.askedCount == 0 {
                subscription.isWanted = false
                subscription.version += 1
                // The owner did not accept it. After other errors, or if it was asked before, it may have.
                if number != 0, Self.isRefusal(error) { subscription.reportedVersion = subscription.version }
            }
        } else {
            subscription.isGranted = subscription.isWanted
            if number == subscription.version { subscription.reportedVersion = number }
        }
        entries.values[index].subscriptions[device] = subscription
        settle(device, at: index)
        return work(at: index)
    }

    /// Ends a subscription. Notify the device's owner, and pass the result to ``forgotten(_:_:_:_:)``.
    /// - Returns: the number of the request; nil if there is no subscription.
    package mutating func forgetting(_ session: String, _ device: DeviceID) -> UInt64? {
        guard let index = entries.index(forKey: session), entries.values[index].subscriptions[device] != nil else {
            return nil
        }
        return ask(of: device, at: index) { ($0.isWanted, $0.isGranted) = (false, false) }
    }

    /// Processes the result. After a failure the owner is notified again until it acknowledges.
    package mutating func forgotten(
        _ session: String, _ device: DeviceID, _ number: UInt64, isDone: Bool
    ) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].subscriptions[device] != nil else {
            return []
        }
        entries.values[index].subscriptions[device]?.askedCount -= 1
        if isDone, number == entries.values[index].subscriptions[device]?.version {
            entries.values[index].subscriptions[device]?.reportedVersion = number
        }
        settle(device, at: index)
        return work(at: index)
    }

    /// Notes that a device sleeps or wakes. Notify the owner, and pass the result to ``slept(_:_:isDone:)``.
    /// - Returns: the number of the request; nil if the session has ended.
    package mutating func sleeping(_ session: String, _ isAsleep: Bool) -> UInt64? {
        guard let index = entries.index(forKey: session), !entries.values[index].links.isEmpty,
            !entries.values[index].isOpening
        else { return nil }
        let isAlone = entries.values[index].version == entries.values[index].reportedVersion
        entries.values[index].isAsleep = isAsleep
        entries.values[index].sleepCount += 1
        entries.values[index].version += 1
        return isAlone ? entries.values[index].version : 0
    }

    /// True if the device of the session has said that it sleeps.
    package func isAsleep(_ session: String) -> Bool { entries[session]?.isAsleep ?? false }

    /// Processes the result. After a failure the owner is notified again until it acknowledges.
    package mutating func slept(_ session: String, _ number: UInt64, isDone: Bool) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].sleepCount > 0 else { return [] }
        entries.values[index].sleepCount -= 1
        if isDone, number == entries.values[index].version { entries.values[index].reportedVersion = number }
        return work(at: index)
    }

    // MARK: - The map and the owners

    /// Processes the epochs of a new map: facts are sent again to new owners.
    package mutating func mapChanged(epoch: (ShardID) -> Epoch) -> [Action] {
        var touched: [String] = []
        for number in 0..<ShardID.count {
            let shard = ShardID(UInt16(number))
            let new = epoch(shard)
            guard new > epochs[number] else { continue }
            epochs[number] = new
            for interest in interests[number].sorted(by: Interest.isBefore) {
                guard let index = entries.index(forKey: interest.session) else { continue }
                if let device = interest.device {
                    entries.values[index].subscriptions[device]?.version += 1
                    settle(device, at: index)
                } else {
                    entries.values[index].version += 1
                }
                entries.values[index].failures = 0
                if case .waiting = entries.values[index].work { entries.values[index].work = .none }
                touched.append(interest.session)
            }
        }
        return touched.flatMap { work(on: $0) }
    }

    /// Processes an owner's message that a session was superseded by a client of this order, or must end with another
    /// code.
    /// A session of a later order stays: the message is out of date, and its client has won since. While a session is
    /// being opened its order is unknown, and ``opened(_:_:)`` decides.
    /// - Parameter epoch: that of the identity's shard at the owner; 0 from nodes that do not send it.
    package mutating func kicked(
        _ session: String, _ code: ErrorCode, by order: SessionOrder?, epoch: Epoch
    ) -> [Action] {
        guard let index = entries.index(forKey: session), takes(epoch, of: entries.values[index].shard) else {
            return []
        }
        if case .opening(let kickedBy, let ended) = entries.values[index].phase {
            entries.values[index].phase = .opening(
                kickedBy: max(kickedBy, order ?? .none), ended: ended ?? (order == nil ? ApusError(code) : nil))
            return []
        }
        if let order, order < entries.values[index].session.order { return [] }
        return end(at: index, ApusError(code))
    }

    /// Processes an owner's message that a device's presence changed. Returns the sockets that receive it.
    /// - Parameter epoch: that of the device's shard at the owner; 0 from nodes that do not send it.
    package mutating func presenceChanged(_ device: DeviceID, sessions: [String], epoch: Epoch) -> [Link] {
        guard takes(epoch, of: ShardID(of: device)) else { return [] }
        return sessions.flatMap { entries[$0]?.links ?? [] }
    }

    private mutating func takes(_ epoch: Epoch, of shard: ShardID) -> Bool {
        ownerMessages.takes(epoch, of: shard, known: epochs[Int(shard.rawValue)])
    }

    // MARK: - Requests to owners

    /// Processes the result of a request. An answer that is no longer expected is ignored.
    package mutating func answered(_ ask: EdgeAsk, _ answer: EdgeAnswer, now: MonotonicTime) -> [Action] {
        guard let index = entries.index(forKey: ask.session.id),
            case .asking(ask.number, let version) = entries.values[index].work
        else { return [] }
        entries.values[index].work = .none
        let actions: [Action]
        switch ask.content {
        case .register:
            guard let registrations = registered(at: index, answer, version) else { return pause(at: index, now) }
            actions = registrations
        case .unregister:
            if case .failed = answer {
                guard case .refused = entries.values[index].phase else { return pause(at: index, now) }
            }
            entries.values[index].reportedVersion = version
            actions = []
        case .subscribe(let device), .forget(let device):
            let isReported = listened(device, at: index, answer, version)
            settle(device, at: index)
            guard isReported else { return pause(at: index, now) }
            actions = []
        }
        return actions + work(at: index)
    }

    /// Returns nil if the owner must be asked again.
    private mutating func registered(
        at index: Dictionary<String, Entry>.Index, _ answer: EdgeAnswer, _ version: UInt64
    ) -> [Action]? {
        switch answer {
        case .failed(let error)
        where [.kicked, .boundToOtherUser, .tokenInvalid, .deviceDisabled].contains(error.code):
            entries.values[index].reportedVersion = version
            return drop(at: index, error)
        case .failed:
            return nil
        case .registered(let order):
            entries.values[index].session.order = max(entries.values[index].session.order, order)
        case .done:
            break
        }
        entries.values[index].reportedVersion = version
        // The owner was asked before the client returned, so its answer does not concern this socket.
        guard version >= entries.values[index].confirmingVersion, !entries.values[index].isConfirmed,
            !entries.values[index].links.isEmpty
        else { return [] }
        entries.values[index].isConfirmed = true
        return [.confirm(entries.values[index].links)]
    }

    /// Returns false if the owner must be asked again.
    private mutating func listened(
        _ device: DeviceID, at index: Dictionary<String, Entry>.Index, _ answer: EdgeAnswer, _ version: UInt64
    ) -> Bool {
        if case .failed(let error) = answer {
            guard [.targetUnknown, .illegalRelation, .deviceDisabled].contains(error.code) else { return false }
            // The session has no permission any more, so there is nothing left to send.
            if entries.values[index].subscriptions[device]?.version == version {
                entries.values[index].subscriptions[device]?.isWanted = false
            }
        }
        entries.values[index].subscriptions[device]?.reportedVersion = version
        return true
    }

    /// Processes the end of a pause.
    package mutating func retryDue(_ wait: EdgeWait) -> [Action] {
        guard let index = entries.index(forKey: wait.session),
            case .waiting(wait.number) = entries.values[index].work
        else { return [] }
        entries.values[index].work = .none
        return work(at: index)
    }

    private mutating func pause(at index: Dictionary<String, Entry>.Index, _ now: MonotonicTime) -> [Action] {
        lastNumber += 1
        entries.values[index].failures += 1
        let delay = Backoff.wait(
            after: entries.values[index].failures, first: configuration.retryDelay,
            longest: configuration.retryDelayMax)
        entries.values[index].work = .waiting(lastNumber)
        return [
            .wait(EdgeWait(number: lastNumber, session: entries.values[index].session.id, until: now + delay))
        ]
    }

    private mutating func work(on session: String) -> [Action] {
        entries.index(forKey: session).map { work(at: $0) } ?? []
    }

    /// Sends the next request if none is in progress; removes a session that is over. The index is invalid afterwards.
    private mutating func work(at index: Dictionary<String, Entry>.Index) -> [Action] {
        guard !entries.values[index].isWorking else { return [] }
        guard let (content, version) = entries.values[index].next() else {
            entries.values[index].failures = 0
            if entries.values[index].isOver { remove(at: index) }
            return []
        }
        lastNumber += 1
        entries.values[index].work = .asking(lastNumber, version: version)
        return [.ask(EdgeAsk(number: lastNumber, session: entries.values[index].session, content: content))]
    }

    // MARK: - The table

    private static var isFull: ApusError { ApusError(.overloaded, "this node has too many sessions") }

    /// True if the owner, or its node, did not accept the request.
    private static func isRefusal(_ error: ApusError) -> Bool {
        [.targetUnknown, .illegalRelation, .deviceDisabled, .overloaded].contains(error.code)
    }

    private static func end(_ links: [Link], _ error: ApusError) -> [Action] {
        links.isEmpty ? [] : [.end(links, error)]
    }

    /// Returns nil beyond the limit.
    private mutating func makeEntry(_ session: Session, _ link: Link, _ phase: Phase) -> Entry? {
        guard entries.count < configuration.sessionsMax else { return nil }
        lastSerial += 1
        let shard = ShardID(key: session.entityKey)
        interests[Int(shard.rawValue)].insert(Interest(serial: lastSerial, device: nil, session: session.id))
        return Entry(
            serial: lastSerial, shard: shard, session: session, links: [link], phase: phase,
            used: UsedDevices(countMax: configuration.subscriptionsMax))
    }

    private mutating func remove(at index: Dictionary<String, Entry>.Index) {
        let entry = entries.values[index]
        interests[Int(entry.shard.rawValue)]
            .remove(Interest(serial: entry.serial, device: nil, session: entry.session.id))
        entries.remove(at: index)
    }

    private mutating func note(_ interest: Interest) {
        guard let device = interest.device else { return }
        interests[Int(ShardID(of: device).rawValue)].insert(interest)
    }

    /// Ends a session at this node. Its client is notified at once, or by ``opened(_:_:)`` if the session is being
    /// opened.
    private mutating func end(at index: Dictionary<String, Entry>.Index, _ error: ApusError) -> [Action] {
        if case .opening(let kickedBy, let ended) = entries.values[index].phase {
            entries.values[index].phase = .opening(kickedBy: kickedBy, ended: ended ?? error)
        }
        let actions = drop(at: index, error)
        return actions + work(at: index)
    }

    private mutating func drop(at index: Dictionary<String, Entry>.Index, _ error: ApusError) -> [Action] {
        let links = entries.values[index].links
        guard !links.isEmpty else { return [] }
        entries.values[index].links = []
        left(at: index)
        return Self.end(links, error)
    }

    /// Notes that the last socket is gone. All subscriptions end.
    private mutating func left(at index: Dictionary<String, Entry>.Index) {
        entries.values[index].version += 1
        entries.values[index].isConfirmed = false
        for device in entries.values[index].subscriptions.keys.sorted() {
            entries.values[index].subscriptions[device]?.isWanted = false
            entries.values[index].subscriptions[device]?.isGranted = false
            entries.values[index].subscriptions[device]?.version += 1
            settle(device, at: index)
        }
    }

    /// Notes a request that the client itself makes to the owner of a device.
    /// - Returns: the version that the answer acknowledges; 0 if another request about the fact is in progress or was
    ///   never answered, so that their order at the owner is unknown.
    private mutating func ask(
        of device: DeviceID, at index: Dictionary<String, Entry>.Index, _ change: (inout Subscription) -> Void
    ) -> UInt64 {
        var subscription = entries.values[index].subscriptions[device] ?? Subscription()
        let isAlone = subscription.version == subscription.reportedVersion
        change(&subscription)
        subscription.version += 1
        subscription.askedCount += 1
        entries.values[index].subscriptions[device] = subscription
        return isAlone ? subscription.version : 0
    }

    /// Queues the request to the device's owner if the fact changed; removes a subscription that is over.
    private mutating func settle(_ device: DeviceID, at index: Dictionary<String, Entry>.Index) {
        guard let subscription = entries.values[index].subscriptions[device], subscription.askedCount == 0 else {
            return
        }
        if subscription.needsReport {
            guard !subscription.isQueued else { return }
            entries.values[index].subscriptions[device]?.isQueued = true
            entries.values[index].queue.append(device)
        } else if !subscription.isWanted {
            entries.values[index].subscriptions[device] = nil
            let (serial, session) = (entries.values[index].serial, entries.values[index].session.id)
            interests[Int(ShardID(of: device).rawValue)]
                .remove(Interest(serial: serial, device: device, session: session))
        }
    }
}
