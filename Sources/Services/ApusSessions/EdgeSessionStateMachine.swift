package import ApusCore
import DequeModule

/// Something that an edge asks the owner of an identity or of a device.
package struct EdgeAsk: Sendable {
    package enum Content: Sendable, Hashable {
        /// The session is here.
        case register(isAsleep: Bool)
        /// The session has no socket here.
        case unregister
        /// The session wants to hear of the device.
        case subscribe(DeviceID)
        /// The session no longer wants to hear of the device.
        case forget(DeviceID)
    }

    /// Which ask an answer belongs to.
    package let number: UInt64
    /// The session as it was when the ask was made.
    package let session: Session
    package let content: Content
}

/// What became of an ``EdgeAsk``.
package enum EdgeAnswer: Sendable {
    /// The owner has the session, and this is its client's order.
    case registered(SessionOrder)
    /// The owner has carried out what was asked.
    case done
    /// 12003: a newer client is known. Other errors leave open whether it was carried out.
    case failed(ApusError)
}

/// A pause before a session's owner is asked again.
package struct EdgeWait: Sendable {
    package let number: UInt64
    package let session: String
    package let until: MonotonicTime
}

/// The sessions of one edge node, with their sockets, and what the owners of their identities have yet to be told (D6,
/// IV-A5, docs/decisions/7 and 13).
///
/// **A session** begins by a token, and then its owner is asked before its client is answered (``opening(_:_:)``), or
/// by a ticket, and then the owner is told afterwards (``resumed(_:_:)``). Sockets of one session stand beside each
/// other until its client chooses one. A session without a socket stays until its owner knows that.
///
/// **What is told.** The registration of a session, with its sleep, is one fact; each device that it listens to is
/// another. A fact has a version, which grows with every change, and the version that its owner has acknowledged. While
/// they differ the owner is asked, one question of a session at a time, and again after a pause where that fails. An
/// ask says what is true, not what changed, so it may be repeated. What a client asks for itself (leave to listen,
/// sleep) goes to the owner at once; where it may have crossed another ask about the same fact, nobody knows which came
/// last, and the fact is told once more.
///
/// **A new map.** The next owner of a shard knows nothing: facts of the shards whose epochs changed are told again, and
/// a pause ends. What the former owner still says is refused by its epoch.
///
/// **What owners say** may overtake their answers. A kick that comes while the session is being opened is kept, and
/// decides when the answer is there. A session that was ended here has no sockets from that moment, although they take
/// some time to close; so who comes back meanwhile is not confirmed before the owner is asked.
///
/// **Bounds.** `sessionsMax` sessions, `linksMax` sockets of one, of which the oldest ends, and `subscriptionsMax`
/// devices that one listens to.
///
/// Pure: confined to whoever owns it; time comes in. `Link` is whatever stands for a socket.
package struct EdgeSessionStateMachine<Link: Equatable & Sendable>: Sendable {
    package struct Configuration: Sendable {
        /// Sockets of one session beside each other. Key `sessions.connections_max`.
        package var linksMax = 8
        /// Sessions; one more is refused with 10007. Key `sessions.sessions_max`.
        package var sessionsMax = 65_536
        /// Devices that one session listens to; one more is refused with 10007. Key `sessions.subscriptions_max`.
        package var subscriptionsMax = 10_000
        /// The first pause after an ask that failed; each further one is twice as long, up to ``retryDelayMax``.
        package var retryDelay = Duration.milliseconds(50)
        package var retryDelayMax = Duration.seconds(1)

        package init() {}
    }

    /// What the shell does next, in this order.
    package enum Action: Sendable {
        /// End these sockets, and tell their client why.
        case end([Link], ApusError)
        /// The owner knows the session of these sockets as the newest.
        case confirm([Link])
        /// Ask the owner; answer with ``answered(_:_:now:)``.
        case ask(EdgeAsk)
        /// Call ``retryDue(_:)`` then.
        case wait(EdgeWait)
    }

    /// What is true of a session here.
    package struct Held: Sendable, Equatable {
        /// The newest last.
        package var links: [Link]
        package var order: SessionOrder
        package var isAsleep: Bool
        package var isConfirmed: Bool
        /// Sorted.
        package var devices: [DeviceID]
        /// The owners have acknowledged all of it.
        package var isTold: Bool
    }

    private enum Phase: Sendable {
        /// The owner is asked for the first order. What it says meanwhile is kept.
        indirect case opening(kickedBy: SessionOrder, ended: ApusError?)
        case opened
        /// Its owner did not say that it is open. It is told once that there is none, in case that it heard of it.
        case refused
    }

    private enum Work: Sendable {
        case none
        case asking(UInt64, version: UInt64)
        case waiting(UInt64)
    }

    /// Leave to listen to a device.
    private struct Subscription: Sendable {
        var isWanted = false
        /// The client was told that it has it.
        var isGranted = false
        var version: UInt64 = 0
        var toldVersion: UInt64 = 0
        /// The client's own questions to which no answer came yet.
        var askedCount = 0
        var isQueued = false

        var isToBeTold: Bool { version != toldVersion && askedCount == 0 }
    }

    private struct Entry: Sendable {
        /// Grows from session to session: the order in which they are looked at.
        let serial: UInt64
        /// Of its identity.
        let shard: ShardID
        var session: Session
        /// Its sockets, the newest last.
        var links: [Link]
        var phase: Phase
        var isAsleep = false
        /// The client's own words about its sleep to which no answer came yet.
        var sleepCount = 0
        var isConfirmed = false
        /// A registration of an earlier version confirms nothing.
        var confirmingVersion: UInt64 = 0
        var version: UInt64 = 1
        var toldVersion: UInt64 = 0
        var subscriptions: [DeviceID: Subscription] = [:]
        /// Devices whose owners are to be asked, in this order.
        var queue = Deque<DeviceID>()
        var work = Work.none
        var retryDelay: Duration

        var isOpening: Bool { if case .opening = phase { true } else { false } }
        var isWorking: Bool { if case .none = work { false } else { true } }
        /// Nothing is left to tell, and nobody is here.
        var isOver: Bool {
            links.isEmpty && !isOpening && !isWorking && version == toldVersion && sleepCount == 0
                && subscriptions.isEmpty
        }

        /// What its owners are to be asked next, and the version that the answer acknowledges.
        mutating func next() -> (content: EdgeAsk.Content, version: UInt64)? {
            guard !isOpening else { return nil }
            if version != toldVersion {
                if links.isEmpty { return (.unregister, version) }
                // The answer to what the client said of its sleep comes first: it must not take effect after this.
                if sleepCount == 0 { return (.register(isAsleep: isAsleep), version) }
            }
            while let device = queue.popFirst() {
                subscriptions[device]?.isQueued = false
                guard let subscription = subscriptions[device], subscription.isToBeTold else { continue }
                return (subscription.isWanted ? .subscribe(device) : .forget(device), subscription.version)
            }
            return nil
        }
    }

    /// Who is to tell something again where a shard changes hands.
    private struct Interest: Sendable, Hashable {
        let serial: UInt64
        /// Nil where the shard is the session's own identity's.
        let device: DeviceID?
        let session: String

        static func == (left: Self, right: Self) -> Bool { left.serial == right.serial && left.device == right.device }

        func hash(into hasher: inout Hasher) {
            hasher.combine(serial)
            hasher.combine(device)
        }

        /// First the session itself, then its devices.
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
    /// What owners said that may be replaced by now.
    private var words = OwnerWords()
    private var lastSerial: UInt64 = 0
    private var lastNumber: UInt64 = 0

    package init(configuration: Configuration) { self.configuration = configuration }

    /// Sessions with a socket, and those whose owners do not yet know that they have none.
    package var sessionCount: Int { entries.count }

    /// What new maps may concern: sessions, and the devices that each of them listens to. Looks at all shards.
    package var interestCount: Int { interests.reduce(0) { $0 + $1.count } }

    /// Sessions with a socket, the oldest first, and whether there are more. Looks at all sessions.
    ///
    /// - Parameter account: only those of it; empty: of all.
    package func list(account: String, limit: Int) -> (sessions: [Session], hasMore: Bool) {
        let found = entries.values.filter {
            !$0.links.isEmpty && (account.isEmpty || $0.session.account.rawValue == account)
        }.sorted { $0.serial < $1.serial }
        return (found.prefix(limit).map(\.session), found.count > limit)
    }

    package func held(_ session: String) -> Held? {
        guard let entry = entries[session] else { return nil }
        let isTold = entry.version == entry.toldVersion && entry.sleepCount == 0 && !entry.isOpening
        return Held(
            links: entry.links, order: entry.session.order, isAsleep: entry.isAsleep, isConfirmed: entry.isConfirmed,
            devices: entry.subscriptions.filter { $0.value.isWanted }.keys.sorted(),
            isTold: isTold && entry.subscriptions.values.allSatisfy { $0.version == $0.toldVersion })
    }

    // MARK: - Clients come and go

    /// A client is new, and the owner of its identity is asked for its first order; answer with ``opened(_:_:)``.
    ///
    /// The session is in the table meanwhile, so that a kick which overtakes the owner's answer finds it.
    ///
    /// - Returns: 10007 where there are too many sessions. Then nobody is asked.
    package mutating func opening(_ session: Session, _ link: Link) -> ApusError? {
        precondition(entries[session.id] == nil, "a new session has the id of another: \(session.id)")
        guard let entry = makeEntry(session, link, .opening(kickedBy: .none, ended: nil)) else { return Self.isFull }
        entries[session.id] = entry
        // The question that is under way tells it.
        entries[session.id]?.toldVersion = entry.version
        return nil
    }

    /// What the owner said of a new session. It is opened with the order that it was given, or refused with the error
    /// that its client is to be told.
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
            // The owner may have heard of the session, although no answer came: it is told that there is none.
            entries.values[index].phase = .refused
            error = ended ?? failure
        }
        entries.values[index].links = []
        entries.values[index].version += 1
        return (.failure(error), work(at: index))
    }

    /// One more socket of a session that was admitted before, here or at another node. The owner is told later.
    ///
    /// - Returns: `isConfirmed` where the session is here already and was confirmed, so that no newer client is known
    ///   since; 10007 where there are too many sessions.
    package mutating func resumed(
        _ session: Session, _ link: Link
    ) -> (isConfirmed: Result<Bool, ApusError>, actions: [Action]) {
        guard let index = entries.index(forKey: session.id) else {
            guard let entry = makeEntry(session, link, .opened) else { return (.failure(Self.isFull), []) }
            entries[session.id] = entry
            return (.success(false), work(on: session.id))
        }
        if entries.values[index].links.isEmpty {
            // The session may have been superseded, and nobody was there to be kicked.
            entries.values[index].isConfirmed = false
            entries.values[index].confirmingVersion = entries.values[index].version + 1
        }
        if case .refused = entries.values[index].phase { entries.values[index].phase = .opened }
        var ended: [Link] = []
        if session.instance == 0 {
            // Nothing says that the two sockets are of one client.
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

    /// The client chose this socket of its session: earlier ones end. They are not the client's any more, and need not
    /// wait here until the network says so.
    package mutating func chosen(_ session: String, _ link: Link) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].links.count > 1,
            let place = entries.values[index].links.firstIndex(of: link)
        else { return [] }
        let ended = Array(entries.values[index].links[..<place])
        entries.values[index].links.removeFirst(place)
        return Self.end(ended, ApusError(.linkLost, "the client went on over another connection"))
    }

    /// A socket is gone. One that others of the session stand beside changes nothing.
    package mutating func closed(_ session: String, _ link: Link) -> [Action] {
        guard let index = entries.index(forKey: session),
            let place = entries.values[index].links.firstIndex(of: link)
        else { return [] }
        entries.values[index].links.remove(at: place)
        guard entries.values[index].links.isEmpty else { return [] }
        left(at: index)
        return work(at: index)
    }

    /// What operators revoked: the sessions that it ends, the oldest first (IV-A6). Looks at all sessions.
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

    // MARK: - What clients ask for themselves

    /// A session wants to hear of a device: ask the device's owner, and answer with ``subscribed(_:_:_:_:)``.
    ///
    /// - Returns: the number of the question; 10007 over the bound, 10008 where the session has ended.
    package mutating func subscribing(_ session: String, _ device: DeviceID) -> Result<UInt64, ApusError> {
        guard let index = entries.index(forKey: session), !entries.values[index].links.isEmpty else {
            return .failure(ApusError(.linkLost, "the session has ended"))
        }
        if entries.values[index].subscriptions[device] == nil {
            guard entries.values[index].subscriptions.count < configuration.subscriptionsMax else {
                return .failure(ApusError(.overloaded, "the session listens to too many devices"))
            }
            note(Interest(serial: entries.values[index].serial, device: device, session: session))
        }
        return .success(ask(of: device, at: index) { $0.isWanted = true })
    }

    /// What the device's owner said.
    package mutating func subscribed(
        _ session: String, _ device: DeviceID, _ number: UInt64, _ error: ApusError?
    ) -> [Action] {
        guard let index = entries.index(forKey: session),
            var subscription = entries.values[index].subscriptions[device]
        else { return [] }
        subscription.askedCount -= 1
        if let error {
            // One that another socket of the session was given stays.
            if subscription.isWanted, !subscription.isGranted, subscription.askedCount == 0 {
                subscription.isWanted = false
                subscription.version += 1
                // The owner did not take it; with other errors, or where it was asked before, it may have.
                if number != 0, Self.isRefusal(error) { subscription.toldVersion = subscription.version }
            }
        } else {
            subscription.isGranted = subscription.isWanted
            if number == subscription.version { subscription.toldVersion = number }
        }
        entries.values[index].subscriptions[device] = subscription
        settle(device, at: index)
        return work(at: index)
    }

    /// A session no longer wants to hear of a device: tell the device's owner, and answer with ``forgotten(_:_:_:_:)``.
    ///
    /// - Returns: the number of the question; nil where there is nothing to be told.
    package mutating func forgetting(_ session: String, _ device: DeviceID) -> UInt64? {
        guard let index = entries.index(forKey: session), entries.values[index].subscriptions[device] != nil else {
            return nil
        }
        return ask(of: device, at: index) { ($0.isWanted, $0.isGranted) = (false, false) }
    }

    /// What became of it. Where it failed the owner is told until it knows.
    package mutating func forgotten(
        _ session: String, _ device: DeviceID, _ number: UInt64, isDone: Bool
    ) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].subscriptions[device] != nil else {
            return []
        }
        entries.values[index].subscriptions[device]?.askedCount -= 1
        if isDone, number == entries.values[index].subscriptions[device]?.version {
            entries.values[index].subscriptions[device]?.toldVersion = number
        }
        settle(device, at: index)
        return work(at: index)
    }

    /// A device sleeps or wakes: tell the owner, and answer with ``slept(_:_:isDone:)``.
    ///
    /// - Returns: the number of the question; nil where the session has ended.
    package mutating func sleeping(_ session: String, _ isAsleep: Bool) -> UInt64? {
        guard let index = entries.index(forKey: session), !entries.values[index].links.isEmpty,
            !entries.values[index].isOpening
        else { return nil }
        let isAlone = entries.values[index].version == entries.values[index].toldVersion
        entries.values[index].isAsleep = isAsleep
        entries.values[index].sleepCount += 1
        entries.values[index].version += 1
        return isAlone ? entries.values[index].version : 0
    }

    /// What became of it. Where it failed the owner is told until it knows.
    package mutating func slept(_ session: String, _ number: UInt64, isDone: Bool) -> [Action] {
        guard let index = entries.index(forKey: session), entries.values[index].sleepCount > 0 else { return [] }
        entries.values[index].sleepCount -= 1
        if isDone, number == entries.values[index].version { entries.values[index].toldVersion = number }
        return work(at: index)
    }

    // MARK: - The map and the owners

    /// A map came, with these epochs: owners that are new are told what is here.
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
                entries.values[index].retryDelay = configuration.retryDelay
                if case .waiting = entries.values[index].work { entries.values[index].work = .none }
                touched.append(interest.session)
            }
        }
        return touched.flatMap { work(on: $0) }
    }

    /// An owner says that a session was superseded by a client of this order, or is to end with another code.
    ///
    /// A session of a later order stays: the word is old, and its client won since. While it is opened its order is not
    /// known, and ``opened(_:_:)`` decides.
    ///
    /// - Parameter epoch: of the identity's shard at the owner; 0 of nodes that do not say.
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

    /// An owner says that a device's presence changed: the sockets that are to hear of it.
    ///
    /// - Parameter epoch: of the device's shard at the owner; 0 of nodes that do not say.
    package mutating func presenceChanged(_ device: DeviceID, sessions: [String], epoch: Epoch) -> [Link] {
        guard takes(epoch, of: ShardID(of: device)) else { return [] }
        return sessions.flatMap { entries[$0]?.links ?? [] }
    }

    private mutating func takes(_ epoch: Epoch, of shard: ShardID) -> Bool {
        words.takes(epoch, of: shard, known: epochs[Int(shard.rawValue)])
    }

    // MARK: - Telling the owners

    /// What became of an ask. An answer that is no longer waited for is ignored.
    package mutating func answered(_ ask: EdgeAsk, _ answer: EdgeAnswer, now: MonotonicTime) -> [Action] {
        guard let index = entries.index(forKey: ask.session.id),
            case .asking(ask.number, let version) = entries.values[index].work
        else { return [] }
        entries.values[index].work = .none
        let actions: [Action]
        switch ask.content {
        case .register:
            guard let told = registered(at: index, answer, version) else { return pause(at: index, now) }
            actions = told
        case .unregister:
            if case .failed = answer {
                guard case .refused = entries.values[index].phase else { return pause(at: index, now) }
            }
            entries.values[index].toldVersion = version
            actions = []
        case .subscribe(let device), .forget(let device):
            let isTold = listened(device, at: index, answer, version)
            settle(device, at: index)
            guard isTold else { return pause(at: index, now) }
            actions = []
        }
        return actions + work(at: index)
    }

    /// Nil where the owner is to be asked again.
    private mutating func registered(
        at index: Dictionary<String, Entry>.Index, _ answer: EdgeAnswer, _ version: UInt64
    ) -> [Action]? {
        switch answer {
        case .failed(let error) where error.code == .kicked || error.code == .boundToOtherUser:
            entries.values[index].toldVersion = version
            return drop(at: index, error)
        case .failed:
            return nil
        case .registered(let order):
            entries.values[index].session.order = max(entries.values[index].session.order, order)
        case .done:
            break
        }
        entries.values[index].toldVersion = version
        // The owner was asked before the client came back: it did not speak of this socket.
        guard version >= entries.values[index].confirmingVersion, !entries.values[index].isConfirmed,
            !entries.values[index].links.isEmpty
        else { return [] }
        entries.values[index].isConfirmed = true
        return [.confirm(entries.values[index].links)]
    }

    /// False where the owner is to be asked again.
    private mutating func listened(
        _ device: DeviceID, at index: Dictionary<String, Entry>.Index, _ answer: EdgeAnswer, _ version: UInt64
    ) -> Bool {
        if case .failed(let error) = answer {
            guard [.targetUnknown, .illegalRelation].contains(error.code) else { return false }
            // The session may not listen any more, so nothing is left to be told.
            if entries.values[index].subscriptions[device]?.version == version {
                entries.values[index].subscriptions[device]?.isWanted = false
            }
        }
        entries.values[index].subscriptions[device]?.toldVersion = version
        return true
    }

    /// The pause is over.
    package mutating func retryDue(_ wait: EdgeWait) -> [Action] {
        guard let index = entries.index(forKey: wait.session),
            case .waiting(wait.number) = entries.values[index].work
        else { return [] }
        entries.values[index].work = .none
        return work(at: index)
    }

    private mutating func pause(at index: Dictionary<String, Entry>.Index, _ now: MonotonicTime) -> [Action] {
        lastNumber += 1
        let delay = entries.values[index].retryDelay
        entries.values[index].work = .waiting(lastNumber)
        entries.values[index].retryDelay = min(delay * 2, configuration.retryDelayMax)
        return [
            .wait(EdgeWait(number: lastNumber, session: entries.values[index].session.id, until: now + delay))
        ]
    }

    private mutating func work(on session: String) -> [Action] {
        entries.index(forKey: session).map { work(at: $0) } ?? []
    }

    /// Asks what is next, where nothing is under way; forgets a session that is over. The index is void afterwards.
    private mutating func work(at index: Dictionary<String, Entry>.Index) -> [Action] {
        guard !entries.values[index].isWorking else { return [] }
        guard let (content, version) = entries.values[index].next() else {
            entries.values[index].retryDelay = configuration.retryDelay
            if entries.values[index].isOver { remove(at: index) }
            return []
        }
        lastNumber += 1
        entries.values[index].work = .asking(lastNumber, version: version)
        return [.ask(EdgeAsk(number: lastNumber, session: entries.values[index].session, content: content))]
    }

    // MARK: - The table

    private static var isFull: ApusError { ApusError(.overloaded, "this node has too many sessions") }

    /// The owner, or its node, did not take what it was asked.
    private static func isRefusal(_ error: ApusError) -> Bool {
        [.targetUnknown, .illegalRelation, .overloaded].contains(error.code)
    }

    private static func end(_ links: [Link], _ error: ApusError) -> [Action] {
        links.isEmpty ? [] : [.end(links, error)]
    }

    /// Nil over the bound.
    private mutating func makeEntry(_ session: Session, _ link: Link, _ phase: Phase) -> Entry? {
        guard entries.count < configuration.sessionsMax else { return nil }
        lastSerial += 1
        let shard = ShardID(key: session.entityKey)
        interests[Int(shard.rawValue)].insert(Interest(serial: lastSerial, device: nil, session: session.id))
        return Entry(
            serial: lastSerial, shard: shard, session: session, links: [link], phase: phase,
            retryDelay: configuration.retryDelay)
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

    /// Ends a session here. Its client is told at once; while it is opened, its first socket by ``opened(_:_:)`` too.
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

    /// The last socket is gone, and nobody is there to hear of devices.
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

    /// The client asks the owner of a device itself.
    ///
    /// - Returns: the version that the answer acknowledges; 0 where another question about it is under way, or was
    ///   never answered, so that nobody knows which of the two the owner hears last.
    private mutating func ask(
        of device: DeviceID, at index: Dictionary<String, Entry>.Index, _ change: (inout Subscription) -> Void
    ) -> UInt64 {
        var subscription = entries.values[index].subscriptions[device] ?? Subscription()
        let isAlone = subscription.version == subscription.toldVersion
        change(&subscription)
        subscription.version += 1
        subscription.askedCount += 1
        entries.values[index].subscriptions[device] = subscription
        return isAlone ? subscription.version : 0
    }

    /// Has the owner of a device told what changed; forgets the device where nothing is left of it.
    private mutating func settle(_ device: DeviceID, at index: Dictionary<String, Entry>.Index) {
        guard let subscription = entries.values[index].subscriptions[device], subscription.askedCount == 0 else {
            return
        }
        if subscription.isToBeTold {
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
