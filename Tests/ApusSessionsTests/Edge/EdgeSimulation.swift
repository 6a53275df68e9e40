import ApusCore
import ApusSessions

/// A deliberate error around the machines; the checks of ``EdgeSimulation`` must find each.
enum EdgeMutant: String, Sendable, CaseIterable {
    case none = "does everything right"
    /// What an owner says of a session that is being opened is lost.
    case losesEarlyKicks = "loses kicks that overtake an answer"
    /// An edge sees only every second map.
    case missesMaps = "misses maps"
    /// An ask that failed counts as carried out.
    case takesFailuresForAnswers = "takes a failure for an answer"
    /// The epochs of what owners say are left out.
    case believesFormerOwners = "believes former owners"
    /// Owners of devices do not hear of sessions that left.
    case leavesSubscriptions = "leaves subscriptions of sessions that ended"
    /// A kick does not end the sockets of a session at once, and who comes back finds them.
    case keepsKickedSockets = "keeps a superseded client's sockets"
}

/// Edges whose clients come, go, choose, sleep and listen, before owners that are replaced, over a network that is
/// late, reorders, doubles and loses messages. Owners are ``PresenceStateMachine``. One seed is one run.
///
/// An ask whose time was over may still be carried out, but before those that its edge makes of the same owner
/// afterwards: their link keeps the order.
///
/// In the end nothing fails any more. Then the owners must know exactly what is true at the edges: whose sockets are
/// where, who sleeps, and who listens to whom; and no superseded client has a socket.
struct EdgeSimulation {
    typealias Machine = EdgeSessionStateMachine<Int>

    static let devices = ["cam-1", "cam-2"].map { DeviceID(unchecked: $0) }
    static let apps = ["app-1", "app-2"]
    /// A device that nobody bound.
    static let nobody = DeviceID(unchecked: "nobody")

    /// An identity, whose owner is replaced now and then.
    struct Identity {
        var device: DeviceID?
        var access: String
        var shard: ShardID
        /// By their epochs, the first of which is 1.
        var owners: [Owner] = []
        /// What the owners wrote down.
        var memory = (epoch: Epoch(0), value: PresenceStateMachine.Memory?.none)

        var epoch: Epoch { Epoch(owners.count) }
    }

    struct Owner {
        var epoch: Epoch
        var machine: PresenceStateMachine
        var isMemoryRead = false
        /// It has seen the map that replaced it.
        var isOver = false
    }

    struct Edge {
        var node: NodeID
        var machine: Machine
        /// Of the identities, as it knows them.
        var epochs: [Epoch]
        var mapCount = 0
    }

    /// A place: the edge's number and the session.
    struct Place: Hashable {
        var edge: Int
        var session: String
    }

    struct Link {
        var place: Place
        /// It was told to end, or its client closed it.
        var isEnded = false
    }

    /// Questions of a client about one device, and when the last one began.
    struct Asking {
        var count: Int
        var since: Int
    }

    /// What an owner heard of a place.
    struct Heard: Equatable {
        var epoch: Epoch
        var isAsleep: Bool
    }

    /// Something that an edge asks an owner, and who waits for the answer.
    enum Question {
        case machine(EdgeAsk)
        case opening(Session, link: Int)
        case subscribe(String, DeviceID, UInt64)
        case forget(String, DeviceID, UInt64)
        case sleep(String, Bool, UInt64)
    }

    /// An ask to which the edge waits for no answer any more.
    struct Late {
        var edge: Int
        var life: UInt64
        var identity: Int
        var owner: Int
        var question: Question
    }

    /// Something that is under way.
    enum Flight {
        case ask(edge: Int, Question, life: UInt64)
        case answer(edge: Int, Question, EdgeAnswer, at: Int, life: UInt64)
        case kick(identity: Int, SessionPlace, ErrorCode, SessionOrder?, Epoch)
        case push(identity: Int, [SessionPlace], Epoch)
        case late(edge: Int, identity: Int)
        case tick(identity: Int, Epoch, MonotonicTime)
        case pause(edge: Int, EdgeWait, life: UInt64)
        case closed(link: Int)
    }

    var random: SeededRandom
    let mutant: EdgeMutant
    var now = MonotonicTime(nanoseconds: 1_000_000_000)
    var step = 0
    var identities: [Identity] = []
    var edges: [Edge] = []
    var flights: [Flight] = []
    /// In the order in which they were made.
    var late: [Late] = []
    var links: [Int: Link] = [:]
    var lastLink = 0
    /// Tickets, by session.
    var tickets: [Session] = []
    var revoked: [RevocationRecord] = []
    var sessionCount = 0
    /// Since when a session has had a socket at an edge all the time.
    var presentSince: [Place: Int] = [:]
    /// The session was confirmed since then.
    var confirmed: Set<Place> = []
    /// What a client was told that it hears of, where its own questions did not cross.
    var granted: [Place: Set<DeviceID>] = [:]
    /// Questions of clients about devices, under way.
    var asking: [Place: [DeviceID: Asking]] = [:]
    /// What owners heard last of the sleep of each place, and under which epoch.
    var heard: [SessionPlace: Heard] = [:]
    /// Questions crossed: what the client was told does not say what is true.
    var isCrossed: Set<Place> = []
    /// Openings that failed, and of those the ones whose only word to the owner was lost.
    var refused: Set<Place> = []
    var excused: Set<SessionPlace> = []
    var isCalm = false
    var violations: [String] = []
    /// What the runs reach.
    var counts = Counts()

    struct Counts {
        var kicked = 0
        var released = 0
        var former = 0
        var confirmed = 0
        /// Kicks and releases of sessions that were being opened.
        var early = 0
        /// Asks that were carried out when their time was over, and ones that were carried out twice.
        var late = 0
        var doubled = 0
        /// Sockets that are open at the end, and subscriptions.
        var open = 0
        var subscribed = 0
        /// Places that sleep at the end.
        var asleep = 0
    }

    init(seed: UInt64, mutant: EdgeMutant = .none) {
        random = SeededRandom(seed: seed)
        self.mutant = mutant
        for device in Self.devices {
            identities.append(Identity(device: device, access: "a", shard: ShardID(of: device)))
        }
        for app in Self.apps {
            identities.append(
                Identity(device: nil, access: app, shard: ShardID(key: Self.session("", nil, app).entityKey)))
        }
        for number in identities.indices { addOwner(to: number) }
        for number in 1...3 {
            let node = NodeID(name: NodeName(unchecked: "n\(number)"), incarnation: 1)
            edges.append(makeEdge(node))
        }
    }

    mutating func run() -> [String] {
        for _ in 0..<240 where violations.isEmpty {
            step += 1
            now = now + .milliseconds(10)
            if flights.isEmpty || Int.random(in: 0..<5, using: &random) < 2 { act() } else { deliver() }
        }
        calm()
        if violations.isEmpty { check() }
        return violations
    }

    /// From now on nothing fails, and everybody sees the newest map.
    private mutating func calm() {
        isCalm = true
        for number in identities.indices {
            for owner in identities[number].owners.indices.dropLast() { identities[number].owners[owner].isOver = true }
        }
        for number in edges.indices { showMap(to: number) }
        for _ in 0..<20_000 where violations.isEmpty && !flights.isEmpty {
            step += 1
            deliver()
        }
        if !flights.isEmpty, violations.isEmpty { fail("it does not come to rest") }
    }

    mutating func fail(_ what: String) { violations.append("step \(step): \(what)") }

    mutating func chance(_ percent: Int) -> Bool { Int.random(in: 0..<100, using: &random) < percent }

    // MARK: - What the world is made of

    static func session(_ id: String, _ device: DeviceID?, _ access: String, instance: UInt64 = 0) -> Session {
        Session(
            id: id, role: device == nil ? .app : .device, access: AccessID(unchecked: access),
            account: AccountID(unchecked: "acme"), device: device, sinceMilliseconds: 1, instance: instance,
            token: TokenMark(tag: TokenMark.tag(of: id), issuedAt: 0, expires: .max))
    }

    func makeEdge(_ node: NodeID) -> Edge {
        var configuration = Machine.Configuration()
        configuration.linksMax = 3
        var edge = Edge(node: node, machine: Machine(configuration: configuration), epochs: [])
        edge.epochs = identities.map(\.epoch)
        _ = edge.machine.mapChanged(epoch: epochs(edge.epochs))
        return edge
    }

    func epochs(_ known: [Epoch]) -> (ShardID) -> Epoch {
        let byShard = Dictionary(zip(identities.map(\.shard), known)) { first, _ in first }
        return { byShard[$0] ?? 0 }
    }

    /// Sockets that are open, in the order in which they came.
    var openLinks: [Int] { links.keys.sorted().filter { links[$0]?.isEnded == false } }

    func openLinks(at place: Place) -> [Int] { openLinks.filter { links[$0]?.place == place } }

    func sessionPlace(_ place: Place) -> SessionPlace {
        SessionPlace(node: edges[place.edge].node, session: place.session)
    }

    func edge(of place: SessionPlace) -> Int? { edges.firstIndex { $0.node == place.node } }

    func identity(of session: Session) -> Int {
        identities.firstIndex { identity in
            identity.device == session.device
                && (session.device != nil || identity.access == session.access.rawValue)
        } ?? 0
    }

    /// Which owner a question is for; nil for a device that nobody bound.
    func identity(of question: Question, at edge: Int) -> Int? {
        func device(_ device: DeviceID) -> Int? { identities.firstIndex { $0.device == device } }
        switch question {
        case .machine(let ask):
            switch ask.content {
            case .register, .unregister: return identity(of: ask.session)
            case .subscribe(let id), .forget(let id): return device(id)
            }
        case .opening(let session, _): return identity(of: session)
        case .subscribe(_, let id, _), .forget(_, let id, _): return device(id)
        case .sleep(let session, _, _): return tickets.first { $0.id == session }.map { identity(of: $0) }
        }
    }
}
