import ApusClient
import ApusCore
import ApusSessions

/// Clients of one identity, the nodes that they can reach, and the owner of the identity, in simulated time.
///
/// The machines of the client and of the owner are the real ones. Delays are drawn for each node and step, and re-order
/// what is sent.
struct LinkSimulation {
    struct Line {
        /// There and back, in milliseconds.
        var roundTrip: ClosedRange<UInt64> = 0...0
        /// What varies from one message to the next, in milliseconds.
        var jitter: UInt64 = 0
        /// Of 100 connects.
        var refusedPercent = 0
        /// How long a node takes for TLS, for a hello and for a stream, and the owner to be asked, in milliseconds.
        var work: ClosedRange<UInt64> = 0...0
    }

    private enum Event {
        case tick(client: Int)
        case connected(client: Int, LinkStateMachine.AttemptID, isRefused: Bool)
        case secured(client: Int, LinkStateMachine.AttemptID)
        case registered(client: Int, LinkStateMachine.AttemptID)
        case welcomed(client: Int, LinkStateMachine.AttemptID, session: String)
        case streamOpened(client: Int, LinkStateMachine.AttemptID)
        case keepalive(client: Int, LinkStateMachine.AttemptID)
        case ponged(client: Int, LinkStateMachine.AttemptID, since: UInt64)
        case hungUp(client: Int, LinkStateMachine.AttemptID)
        case goodbye(client: Int, LinkStateMachine.AttemptID, ErrorCode)
    }

    fileprivate struct Connection {
        var node: Int
        var session = ""
        /// The client's side is closed.
        var isDropped = false
        /// The node's side heard of that.
        var isHungUp = false
        var isRegistered = false
        var isKicked = false
    }

    /// What a client came to.
    struct Client {
        var machine: LinkStateMachine
        var instance: UInt64
        fileprivate var connections: [LinkStateMachine.AttemptID: Connection] = [:]
        fileprivate var ticket = ""
        /// When its machine is looked at next.
        fileprivate var alarm = UInt64.max
        var state: LinkState?
        var activations = 0
        var handshakes = 0
        var hellos = 0
    }

    private static let nodesMax = 3
    private(set) var clients: [Client] = []
    private(set) var owner: PresenceStateMachine
    private(set) var now: UInt64 = 1
    private(set) var kickCount = 0
    private let line: Line
    /// One round trip for each node.
    private var roundTrips: [UInt64] = []
    private var random: SeededRandom
    private var queue: [(at: UInt64, number: Int, event: Event)] = []
    private var numbers = 0
    private var orders: [String: SessionOrder] = [:]

    init(seed: UInt64, line: Line, clientCount: Int = 1) {
        self.line = line
        random = SeededRandom(seed: seed)
        owner = PresenceStateMachine(
            configuration: PresenceStateMachine.Configuration(), epoch: 1, now: MonotonicTime(nanoseconds: 0),
            wallSeconds: 0)
        for _ in 0..<Self.nodesMax { roundTrips.append(UInt64.random(in: line.roundTrip, using: &random)) }
        // The last endpoint is the first node again.
        let endpoints = (0...Self.nodesMax).map { HostPort(host: "endpoint\($0)", port: 1) }
        for index in 0..<clientCount {
            clients.append(
                Client(
                    machine: LinkStateMachine(
                        configuration: LinkStateMachine.Configuration(), endpoints: endpoints.shuffled(using: &random),
                        seed: seed &+ UInt64(index)),
                    instance: UInt64(index) + 1))
        }
    }

    /// Starts every client, and lets time go by until there.
    mutating func run(until end: UInt64) {
        for index in clients.indices where clients[index].state == nil && clients[index].connections.isEmpty {
            clients[index].machine.streamsWanted(true, now: time)
            perform(clients[index].machine.start(now: time), index)
            arm(index)
        }
        while let next = queue.indices.min(by: { (queue[$0].at, queue[$0].number) < (queue[$1].at, queue[$1].number) }),
            queue[next].at <= end
        {
            let (at, _, event) = queue.remove(at: next)
            now = max(now, at)
            handle(event)
            for index in clients.indices { arm(index) }
        }
        now = end
    }

    /// As a session does it: only where the alarm would come too late.
    private mutating func arm(_ client: Int) {
        guard let next = clients[client].machine.nextTick(now: time) else { return }
        let at = max(now, (next.nanoseconds + 999_999) / 1_000_000)
        guard at < clients[client].alarm else { return }
        clients[client].alarm = at
        add(.tick(client: client), after: at - now)
    }

    /// The session of the client's active connection, and where it is.
    func activePlace(_ client: Int) -> SessionPlace? {
        guard let id = clients[client].machine.activeID, let connection = clients[client].connections[id] else {
            return nil
        }
        return SessionPlace(node: Self.node(connection.node), session: connection.session)
    }

    private static func node(_ index: Int) -> NodeID {
        NodeID(name: NodeName(unchecked: "n\(index)"), incarnation: 1)
    }

    private var time: MonotonicTime { MonotonicTime(nanoseconds: now * 1_000_000) }

    private mutating func add(_ event: Event, after delay: UInt64) {
        numbers += 1
        queue.append((now + delay, numbers, event))
    }

    private mutating func way(_ node: Int, trips: Double) -> UInt64 {
        UInt64(Double(roundTrips[node]) * trips) + UInt64.random(in: 0...line.jitter, using: &random)
    }

    private mutating func work() -> UInt64 { UInt64.random(in: line.work, using: &random) }

    // MARK: - The client's side

    private mutating func perform(_ actions: [LinkStateMachine.Action], _ client: Int) {
        for action in actions {
            switch action {
            case .connect(let id, let endpoint):
                let node = (Int(endpoint.host.dropFirst(4)) ?? 0) % Self.nodesMax
                clients[client].connections[id] = Connection(node: node)
                let isRefused = Int.random(in: 0..<100, using: &random) < line.refusedPercent
                add(.connected(client: client, id, isRefused: isRefused), after: way(node, trips: 1))
            case .secure(let id):
                guard let node = clients[client].connections[id]?.node else { continue }
                clients[client].handshakes += 1
                let delay = way(node, trips: 1) + work()
                add(.secured(client: client, id), after: delay)
            case .greet(let id):
                guard let node = clients[client].connections[id]?.node else { continue }
                clients[client].hellos += 1
                // A ticket is taken without the owner, which is told later; here the two are registered alike.
                let delay = way(node, trips: 0.5) + work()
                let ticket = clients[client].ticket
                clients[client].connections[id]?.session = ticket.isEmpty ? "\(client)-\(id)" : ticket
                add(.registered(client: client, id), after: delay)
            case .drop(let id):
                guard let node = clients[client].connections[id]?.node else { continue }
                clients[client].connections[id]?.isDropped = true
                add(.hungUp(client: client, id), after: way(node, trips: 0.5))
            case .retire: break
            case .activate(let id):
                guard let connection = clients[client].connections[id] else { continue }
                clients[client].activations += 1
                clients[client].ticket = connection.session
                let delay = way(connection.node, trips: 1)
                add(.ponged(client: client, id, since: now), after: delay)
                add(.streamOpened(client: client, id), after: delay + work())
            case .report(let state):
                clients[client].state = state
            }
        }
    }

    private mutating func handle(_ event: Event) {
        switch event {
        case .tick(let client):
            // One that was set before a sooner one is none.
            guard clients[client].alarm == now else { return }
            clients[client].alarm = .max
            perform(clients[client].machine.tick(now: time), client)
        case .connected(let client, let id, let isRefused):
            guard isOpen(client, id) else { return }
            guard !isRefused else { return closed(client, id, nil) }
            perform(clients[client].machine.connected(id, now: time), client)
        case .secured(let client, let id):
            guard isOpen(client, id) else { return }
            perform(clients[client].machine.secured(id, now: time), client)
        case .registered(let client, let id): register(client, id)
        case .welcomed(let client, let id, _):
            guard isOpen(client, id) else { return }
            perform(clients[client].machine.welcomed(id, LinkStateMachine.Welcome(endpoints: []), now: time), client)
        case .streamOpened(let client, let id):
            guard isOpen(client, id) else { return }
            clients[client].machine.heard(id, now: time)
            clients[client].machine.streamOpened(id, now: time)
            add(.keepalive(client: client, id), after: 80)
        case .keepalive(let client, let id):
            guard isOpen(client, id) else { return }
            clients[client].machine.heard(id, now: time)
            add(.keepalive(client: client, id), after: 60 + UInt64.random(in: 0...(20 + line.jitter), using: &random))
        case .ponged(let client, let id, let since):
            guard isOpen(client, id) else { return }
            clients[client].machine.heard(id, now: time)
            clients[client].machine.ponged(id, roundTrip: .milliseconds(Int64(now - since)))
        case .hungUp(let client, let id):
            clients[client].connections[id]?.isHungUp = true
            unregister(client, id)
        case .goodbye(let client, let id, let code):
            guard isOpen(client, id) else { return }
            closed(client, id, ApusError(code))
        }
    }

    private func isOpen(_ client: Int, _ id: LinkStateMachine.AttemptID) -> Bool {
        clients[client].connections[id]?.isDropped == false
    }

    private mutating func closed(_ client: Int, _ id: LinkStateMachine.AttemptID, _ error: ApusError?) {
        clients[client].connections[id]?.isDropped = true
        clients[client].connections[id]?.isHungUp = true
        perform(clients[client].machine.closed(id, error: error, now: time), client)
    }

    // MARK: - The nodes' side, and the owner

    private mutating func register(_ client: Int, _ id: LinkStateMachine.AttemptID) {
        guard let connection = clients[client].connections[id] else { return }
        let place = SessionPlace(node: Self.node(connection.node), session: connection.session)
        let (order, actions) = owner.register(
            PresenceStateMachine.Registration(
                place: place, instance: clients[client].instance, order: orders[connection.session]), now: time,
            wallSeconds: 0)
        let back = way(connection.node, trips: 0.5)
        guard let order else { return add(.goodbye(client: client, id, .kicked), after: back) }
        orders[connection.session] = order
        clients[client].connections[id]?.isRegistered = true
        add(.welcomed(client: client, id, session: connection.session), after: back)
        for case .kick(let loser, _) in actions { kick(loser) }
        // The client hung up while the owner was asked.
        if connection.isHungUp { unregister(client, id) }
    }

    private mutating func kick(_ place: SessionPlace) {
        for client in clients.indices {
            for id in clients[client].connections.keys.sorted() {
                guard let connection = clients[client].connections[id], connection.session == place.session,
                    Self.node(connection.node) == place.node, connection.isRegistered
                else { continue }
                kickCount += 1
                let delay = way(connection.node, trips: 0.5) + work()
                add(.goodbye(client: client, id, .kicked), after: delay)
            }
        }
    }

    /// A node leaves the owner out of it while another socket of the session is there.
    private mutating func unregister(_ client: Int, _ id: LinkStateMachine.AttemptID) {
        guard let connection = clients[client].connections[id], connection.isRegistered else { return }
        clients[client].connections[id]?.isRegistered = false
        let isShared = clients[client].connections.values.contains {
            $0.isRegistered && $0.node == connection.node && $0.session == connection.session
        }
        guard !isShared else { return }
        let place = SessionPlace(node: Self.node(connection.node), session: connection.session)
        _ = owner.unregister(place, isResumable: true, now: time, wallSeconds: 0)
    }
}
