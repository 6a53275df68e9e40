import ApusChannels
import ApusCore
import ApusMedia

/// What a deliberate error does to the simulated nodes; the invariants must catch each.
enum Mutant: String, CaseIterable, Sendable {
    case none
    /// The primary acknowledges what it took, before the standby confirmed it.
    case acknowledgesBeforeTheCopy
    /// The standby confirms frames that are not there yet.
    case confirmsBeforeItHolds
    /// A receiver gets its last frame again.
    case resumesFromInsteadOfAfter
    /// An edge asks for what comes some frames after its last one.
    case subscribesTooLate
    /// A node that becomes primary forgets what it held as standby.
    case promotesWithoutRing
    /// The primary asks the publisher to go on one frame too late, and only once.
    case ingestsOneTooLate
    /// The standby takes copies of any term.
    case ignoresTerms
    /// Another standby is named before it has caught up.
    case namesStandbyEarly
    /// The primary takes what one copy confirmed as confirmed by the standby and the candidate.
    case countsOneCopyForAll
    /// A node that nobody watched shows its next viewer what it had then.
    case showsOldPictures
    /// A node does not hand on the configurations that were repeated at the head of its subscription.
    case forgetsRepeatedConfigurations
    /// A camera numbers its runs by its own clock.
    case bringsEpochOfItsClock
    /// A node that takes a copy no more does not say so.
    case dropsCopiesSilently
}

/// A cluster of one channel on a virtual clock: nodes, links, a publisher, viewers, and what goes wrong.
///
/// One seed is one run. Times are in nanoseconds.
final class World {
    static let millisecond: UInt64 = 1_000_000
    static let channel = ChannelID(device: DeviceID(unchecked: "camera"))

    let seed: UInt64
    let mutant: Mutant
    var random: SeededRandom
    private(set) var now: UInt64 = 1_000_000_000
    private var queue = EventQueue()
    private var eventCount = 0
    private(set) var failures: [String] = []
    private(set) var story: [String] = []

    var nodes: [SimulatedNode] = []
    var truth = ChannelStateMachine.Assignment(term: 1, owner: nil, standby: nil)
    /// Lives that the map calls dead.
    var retired: Set<NodeID> = []
    private(set) lazy var publisher = SimulatedPublisher(world: self)
    var viewers: [SimulatedViewer] = []
    /// What each epoch's frames hold, by sequence.
    var published: [UInt32: [UInt64]] = [:]
    private var connections: [Pair: Connection] = [:]
    private var connectionCount = 0
    /// Nodes close their links to the dead when the map says so.
    let closesLinksOnMap: Bool
    /// The largest delay of a link between two nodes.
    let delayMax: UInt64
    var faultsEnd: UInt64 = 0
    /// Of the newest map.
    var revision = 0
    /// Who is to become the standby, by a planned move under way.
    var candidate: NodeID?
    /// The newest key frame that the primary had, every 5 ms.
    var liveHistory: [(time: UInt64, position: FramePosition)] = []
    /// When the standby was last seen to have nearly all that the primary has, under this map.
    var copiedAt: UInt64?

    struct Pair: Hashable {
        var initiator: Int
        var acceptor: Int
    }

    init(seed: UInt64, mutant: Mutant = .none) {
        self.seed = seed
        self.mutant = mutant
        random = SeededRandom(seed: seed)
        closesLinksOnMap = random.next() % 2 == 0
        delayMax = [1, 3, 12][Int(random.next() % 3)] * Self.millisecond
    }

    var time: MonotonicTime { MonotonicTime(nanoseconds: now) }
    var isFailed: Bool { !failures.isEmpty }

    func below(_ bound: Int) -> Int { Int(random.next() % UInt64(bound)) }
    func chance(_ probability: Double) -> Bool { random.nextUnit() < probability }
    func span(_ range: ClosedRange<UInt64>) -> UInt64 {
        (range.lowerBound + random.next() % (range.upperBound - range.lowerBound + 1)) * Self.millisecond
    }

    func fail(_ sentence: @autoclosure () -> String) {
        guard failures.count < 3 else { return }
        failures.append("at \((now - 1_000_000_000) / Self.millisecond) ms: \(sentence())")
    }

    func tell(_ sentence: @autoclosure () -> String) {
        story.append("\((now - 1_000_000_000) / Self.millisecond) ms: \(sentence())")
    }

    // MARK: - Time

    /// Runs something later, whatever happens to nodes.
    func after(_ delay: UInt64, _ body: @escaping () -> Void) { queue.add(at: now + delay, body) }

    /// Runs something at a node: never where it is dead, after it wakes where it is paused.
    func after(_ delay: UInt64, at node: SimulatedNode, _ body: @escaping () -> Void) {
        queue.add(at: now + delay) { node.run(body) }
    }

    /// Runs until nothing is left, a time, or a failure.
    func run(until end: UInt64) {
        while !isFailed, let (time, body) = queue.takeFirst() {
            now = max(now, time)
            if now > end { return }
            eventCount += 1
            guard eventCount < 400_000 else { return fail("the run does not come to rest") }
            body()
        }
    }

    // MARK: - Nodes and links

    func node(_ id: NodeID) -> SimulatedNode? { nodes.first { $0.id == id } }
    var liveNodes: [SimulatedNode] { nodes.filter { $0.isAlive && !retired.contains($0.id) } }
    /// Nodes that a client can reach now.
    var endpoints: [SimulatedNode] { liveNodes.filter { !$0.isPaused } }

    func addNode(named name: String) -> SimulatedNode {
        let lives = nodes.filter { $0.id.name.rawValue == name }.count
        let node = SimulatedNode(
            index: nodes.count, id: NodeID(name: NodeName(unchecked: name), incarnation: UInt64(lives + 1)), world: self
        )
        nodes.append(node)
        return node
    }

    /// The connection that one node opened to another, where it is up.
    func connection(from: SimulatedNode, to id: NodeID) -> Connection? {
        guard let to = node(id), from.isAlive else { return nil }
        let pair = Pair(initiator: from.index, acceptor: to.index)
        if let open = connections[pair] {
            if open.isOpen { return open }
            if now < open.reopensAt { return nil }
        }
        guard to.isAlive, !from.buried.contains(id) else { return nil }
        connectionCount += 1
        let connection = Connection(id: connectionCount, initiator: from, acceptor: to)
        connections[pair] = connection
        return connection
    }

    /// Every connection of a node that is up, in a fixed order.
    func connections(of node: SimulatedNode) -> [Connection] {
        var found: [Connection] = []
        for other in nodes {
            for pair in [
                Pair(initiator: node.index, acceptor: other.index), Pair(initiator: other.index, acceptor: node.index),
            ] {
                if let connection = connections[pair], connection.isOpen { found.append(connection) }
            }
        }
        return found
    }

    /// A connection breaks; each end hears of it a little later, and what is on the way then is lost.
    func cut(_ connection: Connection, noticedWithin milliseconds: ClosedRange<UInt64>) {
        guard connection.isOpen else { return }
        connection.isOpen = false
        connection.reopensAt = now + span(5...50)
        for end in [connection.initiator, connection.acceptor] where end.isAlive {
            let delay = max(span(milliseconds), connection.arrivals[end === connection.initiator ? 1 : 0] > now ? 1 : 0)
            after(delay, at: end) { end.connectionLost(connection) }
        }
    }

    /// Sends over a connection, in order; lost where the other end heard of its end first.
    func send(on connection: Connection, from: SimulatedNode, _ body: @escaping (SimulatedNode) -> Void) {
        guard connection.isOpen else { return }
        let isForward = from === connection.initiator
        let lane = isForward ? 0 : 1
        let to = isForward ? connection.acceptor : connection.initiator
        let delay = 100_000 + random.next() % delayMax
        connection.arrivals[lane] = max(now + delay, connection.arrivals[lane] + 1)
        queue.add(at: connection.arrivals[lane]) {
            to.run { if !to.closed.contains(connection.id) { body(to) } }
        }
    }
}

/// One media lane between two nodes: two directions, each first in, first out.
final class Connection {
    let id: Int
    let initiator: SimulatedNode
    let acceptor: SimulatedNode
    var isOpen = true
    var reopensAt: UInt64 = 0
    /// When the last message of each direction arrives: towards the acceptor, towards the initiator.
    var arrivals: [UInt64] = [0, 0]

    init(id: Int, initiator: SimulatedNode, acceptor: SimulatedNode) {
        self.id = id
        self.initiator = initiator
        self.acceptor = acceptor
    }
}
