package import ApusCore
package import ApusTraversal
import Glibc
package import Logging

/// The addresses and ports for relayed addresses.
package struct RelayAddresses: Sendable {
    /// Addresses that the node relays from; ports are ignored. If there are several of a family, an allocation gets a
    /// random one.
    package var hosts: [TransportAddress]
    /// RFC 8656 §7.2 recommends 49152...65535.
    package var ports: ClosedRange<UInt16>
    /// The size of each socket's kernel buffers, in bytes.
    package var bufferBytes = 512 * 1_024
    /// The most ports that are tried for one allocation.
    package var triesMax = 1_024
    /// The public addresses of ``hosts`` before a NAT. Clients, peers and the machine see only these.
    package var externals = ExternalAddresses()
    /// Sockets of all allocations together, including reserved ones. A further allocation is refused with 508.
    package var socketsMax = Int.max

    package init(hosts: [TransportAddress], ports: ClosedRange<UInt16> = 49_152...65_535) {
        self.hosts = hosts
        self.ports = ports
    }
}

/// A TURN server: the protocol's machine with its sockets, between the planes (D8).
///
/// It opens relayed sockets, holds reserved ports, and converts the machine's actions to the planes' commands. An
/// allocation has one relayed address, or one of each family (ADDITIONAL-ADDRESS-FAMILY): datagram sockets, or
/// listening ones from which it also connects to peers (TCP relaying, RFC 6062).
///
/// **Where to read on.** ``RelayControl`` runs this server on one thread; each ``PacketPlane`` has a thread of its own
/// and relays without asking. ``TurnServerStateMachine`` of ApusTraversal has the protocol's rules. The folders:
///
/// | folder | content |
/// |---|---|
/// | Control | the control thread: requests that are not relayed data, relayed sockets, metrics, the node's orders |
/// | Plane | the packet thread: its loop, its ring of commands and events, its rests |
/// | Datagrams | UDP between clients and peers: reading, sending in batches, ICMP errors, short ways |
/// | Streams | TCP: accepting, the PROXY protocol, clients' connections, connections to peers (RFC 6062) |
/// | Secure | TLS and DTLS of clients |
/// | Allocations | the plane's table of allocations, relayed sockets and their ports |
/// | Limits | unauthenticated clients, rates of users and of the node, connections |
/// | Mirrors | other nodes: what the standby has of this node's allocations, where relays and nodes are |
/// | Tables | memory that the plane's tables are made of |
///
/// Concurrency model: confined to the control thread of ``RelayControl``.
package struct RelayServer: RelayController {
    struct Opened {
        var socket: Int32
        var address: TransportAddress
        var isTCP = false
        /// Of the other family, if there is one.
        var second: (socket: Int32, address: TransportAddress)?

        var addresses: [TransportAddress] { [address] + (second.map { [$0.address] } ?? []) }
    }

    private struct Standing: Equatable {
        var allocations = 0
        var mirrors = 0
        var limited = RelayLimitCounts()
    }

    private struct Unlogged {
        var loggedCount = 0
        var count = 0
        var counters = RelayCounters()
    }

    /// The most log lines about allocations that end with the process. The others share one.
    package static let shutdownLinesMax = 1_000
    /// Allocations that one round of the shutdown ends, so that a plane's ring of events has room for their reports.
    private static let shutdownsPerRound = 256
    /// Ticks of the machine in one round. Each ends a bounded number of allocations.
    private static let ticksPerRound = 4
    private static let wallClockInterval = Duration.seconds(1)
    private static let usageTellingsPerWhole = 10
    /// The most users in ``RelayStanding``.
    package static let standingUsersMax = 50

    var machine: TurnServerStateMachine
    let addresses: RelayAddresses
    private let log: Logger
    /// For log messages that clients can cause.
    let limited: LogLimiter
    /// For log lines about allocations and their traffic, at a limited rate.
    let lives: LogLimiter
    /// Log lines per second about allocations that ended. Further ones are counted.
    package static let linesPerSecondMax = 100
    /// Allocations that ended with the process without a log line of their own.
    private var unlogged = Unlogged()
    var opened: [UInt32: Opened] = [:]
    var reserved: [UInt64: Opened] = [:]
    /// The free ports of each address.
    var ports: [PortPool.Key: PortPool] = [:]
    /// Allocations, including those being opened, with a second socket.
    var secondCount = 0
    /// The last values of the planes' counters of exhaustion.
    private var exhaustions: [UInt8: (times: UInt64, connections: UInt64)] = [:]
    /// The plane and the socket of each allocation; the plane owns the socket.
    var installed: [UInt32: (plane: UInt8, relay: Opened)] = [:]
    /// TCP connections to peers. The machine limits them.
    var peers: [UInt32: PeerPlace] = [:]
    private var wallReadAt: MonotonicTime
    /// The last state that was reported to the metrics.
    private var reported = Standing()
    /// True if the cluster has been notified that no user has an allocation here.
    private var isUsageReported = false
    var random = SystemRandomNumberGenerator()
    var metrics = RelayMetrics()
    let tell: @Sendable (RelayNews) -> Void
    /// Changes of mirrors in this round.
    private var mirrorChanges: [MirrorChange] = []
    var accounts = UserAccounts()
    var shares: RateShares
    var nodeShares: NodeShares
    private var usageTellings = 0
    /// Until this time, suppressed lines may not have been reported.
    private var linesReportedAt = MonotonicTime(nanoseconds: 0)

    /// - Parameters:
    ///   - userRate: the limit of the allocations of one user together at this node, in both directions.
    ///   - nodeShares: the limit of all allocations together, as split over the planes at their start.
    ///   - linesPerSecond: log lines about allocations that ended; further ones are counted.
    ///   - tell: called with events on the control thread; must pass them on and return.
    package init(
        configuration: TurnServerConfiguration, addresses: RelayAddresses, userRate: RelayRate = RelayRate(),
        nodeShares: NodeShares = NodeShares(rate: RelayRate(), planeCount: 1),
        linesPerSecond: Int = Self.linesPerSecondMax, log: Logger,
        tell: @escaping @Sendable (RelayNews) -> Void = { _ in }
    ) {
        let now = MonotonicTime.now()
        var configuration = configuration
        configuration.families = [TransportAddress.Family.v4, .v6].filter { family in
            addresses.hosts.contains { $0.family == family }
        }
        machine = TurnServerStateMachine(
            configuration, random: SystemRandomNumberGenerator(), unixSeconds: Int64(time(nil)), now: now)
        self.addresses = addresses
        self.log = log
        limited = LogLimiter(log)
        lives = LogLimiter(log, linesMax: linesPerSecond, interval: .seconds(1))
        self.tell = tell
        shares = RateShares(rate: userRate)
        self.nodeShares = nodeShares
        wallReadAt = now
    }

    package mutating func handle(
        _ event: PlaneEvent, from plane: UInt8, now: MonotonicTime,
        into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        switch event {
        case .control(let flow, let bytes): perform(machine.receive(bytes, on: flow, at: now), now, &commands)
        case .streamClosed(let flow): perform(machine.streamClosed(flow, at: now), now, &commands)
        case .counters(let id, let traffic, let isFinal):
            let more = metrics.carried(id, traffic, plane: plane, isFinal: isFinal)
            accounts.carried(id, more)
            shares.carried(id, more, plane: plane)
            nodeShares.carried(more, plane: plane)
            let counted = machine.counted(AllocationID(rawValue: id), RelayCounters(traffic), isFinal: isFinal)
            perform(counted, now, &commands)
        case .peerArrived(let id, let peer, let socket): peerArrived(id, peer, socket: socket, now, &commands)
        case .peerConnected(let connection, let socket):
            peerConnected(connection, socket: socket, now, &commands)
        case .peerCarried(let connection, let id, let traffic, let isFinal):
            shares.carried(connection, traffic, plane: plane, isConnection: true)
            nodeShares.carried(traffic, plane: plane)
            peerCarried(connection, id, traffic, isFinal: isFinal, now, &commands)
        case .refused(let id):
            limited.log(
                .warning, "A plane has no room for an allocation", metadata: [LogKey.allocation: "\(id)"])
            perform(machine.close(AllocationID(rawValue: id), at: now), now, &commands)
        case .relayError(let id, let error):
            limited.log(
                .debug, "A relay socket reports an error",
                metadata: [LogKey.allocation: "\(id)", LogKey.error: "errno \(error)"])
        case .peerError(let id, let peer, let icmp):
            let reported = machine.peerUnreachable(
                AllocationID(rawValue: id), peer: addresses.externals.external(of: peer), icmp: icmp,
                transaction: newTransaction(), at: now)
            perform(reported, now, &commands)
        case .plane(let index, let counters):
            metrics.counted(index, counters)
            logExhaustion(index, counters)
            log.trace("Counters of a plane", metadata: [LogKey.node: "\(index)", LogKey.count: "\(counters)"])
        }
    }

    package mutating func tick(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]) {
        if now - wallReadAt >= Self.wallClockInterval {
            commands += shares.rebalance(after: now - wallReadAt)
            commands += nodeShares.rebalance(after: now - wallReadAt)
            wallReadAt = now
            reported = standing
            metrics.stands(
                allocations: reported.allocations, mirrors: reported.mirrors, limited: reported.limited)
            machine.wallClockRead(seconds: Int64(time(nil)), at: now)
            limited.writeLeftOut(now: now)
            lives.writeLeftOut(now: now)
            tellUsage()
        }
        for _ in 0..<Self.ticksPerRound {
            guard let deadline = machine.nextDeadline, deadline <= now else { return }
            perform(machine.tick(at: now), now, &commands)
        }
    }

    /// Reports the users whose allocations changed; from time to time all of them, to repair lost reports.
    private mutating func tellUsage() {
        let all = machine.usage
        let isWhole = usageTellings % Self.usageTellingsPerWhole == 0 || all.isEmpty
        usageTellings += 1
        let changes = machine.takeUsageChanges()
        let usage = (isWhole ? all : changes).map { RelayUsage(user: $0.user, allocations: $0.count) }
        if isWhole || !usage.isEmpty { tell(.usage(usage, isWhole: isWhole)) }
        isUsageReported = all.isEmpty
    }

    package func nextTick(now: MonotonicTime) -> MonotonicTime? {
        let deadline = machine.nextDeadline
        guard standing != reported || !isUsageReported || now < linesReportedAt else { return deadline }
        let report = wallReadAt + Self.wallClockInterval
        return deadline.map { min($0, report) } ?? report
    }

    private var standing: Standing {
        Standing(
            allocations: machine.allocationCount, mirrors: machine.mirrorCount,
            limited: RelayLimitCounts(
                challenges: machine.limitedChallengeCount, bindings: machine.limitedBindingCount,
                proofs: machine.limitedProofCount, allocations: machine.limitedAllocationCount,
                peers: machine.limitedPeerCount))
    }

    // MARK: Actions

    mutating func perform(
        _ actions: [TurnAction], _ now: MonotonicTime, _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        for action in actions { perform(action, now, &commands) }
        tellChanges()
    }

    /// Sends changes for the standby, once for all actions of a round.
    private mutating func tellChanges() {
        guard !mirrorChanges.isEmpty else { return }
        tell(.mirrors(mirrorChanges))
        mirrorChanges.removeAll(keepingCapacity: true)
    }

    private mutating func perform(
        _ action: TurnAction, _ now: MonotonicTime, _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        switch action {
        case .reply(let flow, let bytes): commands.append((flow.plane, .send(flow, bytes)))
        case .closeStream(let flow): commands.append((flow.plane, .closeStream(flow)))
        case .openRelay(let opening): perform(open(opening, now), now, &commands)
        case .closeRelay(let request): closeOpened(request)
        case .closeReserved(let token): close(reserved.removeValue(forKey: token))
        case .install(let id, let flow, _, let request):
            guard let relay = opened.removeValue(forKey: request) else { return }
            installed[id.rawValue] = (flow.plane, relay)
            commands.append((flow.plane, install(id, flow, relay)))
        case .transfer(let id, _, let flow): transfer(id, to: flow, now, &commands)
        case .remove(let id):
            if let place = installed.removeValue(forKey: id.rawValue) {
                if place.relay.second != nil { secondCount -= 1 }
                giveBackPorts(of: place.relay)
                commands.append((place.plane, .remove(allocation: id.rawValue)))
            }
            commands += shares.ended(id.rawValue)
        case .closeFamily(let id, let family): closeFamily(id, family, &commands)
        case .moveFlow, .permit, .revoke, .bindChannel, .unbindChannel, .sendToPeer: edit(action, &commands)
        case .began(let id, let flow, let user, let relayed):
            metrics.began()
            accounts.began(id.rawValue, user: user)
            commands += shares.began(id.rawValue, user: user, plane: flow.plane)
            logBeginning(id, flow, user, relayed)
        case .ended(let life):
            metrics.ended(life)
            accounts.ended(life.allocation.rawValue)
            logEnd(life, now)
        case .mirror(let state, let old): mirrorChanges.append(.kept(state, replacing: old))
        case .unmirror(let ticket): mirrorChanges.append(.ended(ticket))
        case .claim(let number, let ticket, let username): tell(.claim(number, ticket, username: username))
        case .revived(let ticket, let home): tell(.revived(ticket, home: home))
        case .connectPeer, .joinStreams, .closePeer: performPeer(action, now, &commands)
        }
    }

    /// For an indication, which is not answered (RFC 8489 §5).
    mutating func newTransaction() -> TransactionID { TransactionID(high: random.next(), low: random.next()) }

    /// Actions that change an allocation's row.
    private func edit(_ action: TurnAction, _ commands: inout [(plane: UInt8, command: PlaneCommand)]) {
        let externals = addresses.externals
        let id: AllocationID
        let command: PlaneCommand
        switch action {
        case .moveFlow(let allocation, let flow):
            (id, command) = (allocation, .moveFlow(allocation: allocation.rawValue, flow: flow))
        case .permit(let allocation, let peer, let ports):
            (id, command) = (
                allocation,
                .permit(allocation: allocation.rawValue, peer: externals.local(of: peer), ports: ports)
            )
        case .revoke(let allocation, let peer):
            (id, command) = (allocation, .revoke(allocation: allocation.rawValue, peer: externals.local(of: peer)))
        case .bindChannel(let allocation, let number, let peer):
            (id, command) = (
                allocation,
                .bindChannel(allocation: allocation.rawValue, number: number, peer: externals.local(of: peer))
            )
        case .unbindChannel(let allocation, let number):
            (id, command) = (allocation, .unbindChannel(allocation: allocation.rawValue, number: number))
        case .sendToPeer(let allocation, let peer, let bytes, let isUnfragmented):
            (id, command) = (
                allocation,
                .sendToPeer(
                    allocation: allocation.rawValue, peer: externals.local(of: peer), bytes: bytes,
                    isUnfragmented: isUnfragmented)
            )
        default: return
        }
        if let place = installed[id.rawValue] { commands.append((place.plane, command)) }
    }

    /// Moves an allocation to another plane, at which its client arrived. The plane gets a second descriptor of the
    /// same socket, so that neither plane waits for the other and no datagram of a peer is lost.
    private mutating func transfer(
        _ id: AllocationID, to flow: RelayFlow, _ now: MonotonicTime,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        guard let place = installed[id.rawValue] else { return }
        guard let socket = RelaySocket.duplicate(place.relay.socket, of: place.relay.address) else {
            limited.log(
                .warning, "An allocation cannot move to another plane",
                metadata: [LogKey.allocation: "\(id.rawValue)"])
            perform(machine.close(id, at: now), now, &commands)
            return
        }
        var relay = Opened(socket: socket, address: place.relay.address, isTCP: place.relay.isTCP)
        if let second = place.relay.second {
            guard let copy = RelaySocket.duplicate(second.socket, of: second.address) else {
                RelaySocket.close(socket)
                perform(machine.close(id, at: now), now, &commands)
                return
            }
            relay.second = (copy, second.address)
        }
        installed[id.rawValue] = (flow.plane, relay)
        commands.append((place.plane, .remove(allocation: id.rawValue)))
        commands.append((flow.plane, install(id, flow, relay)))
        commands += shares.moved(id.rawValue, to: flow.plane)
    }

    private func install(_ id: AllocationID, _ flow: RelayFlow, _ relay: Opened) -> PlaneCommand {
        .install(
            allocation: id.rawValue, flow: flow, socket: relay.socket, second: relay.second?.socket ?? -1,
            isTCP: relay.isTCP)
    }

    // MARK: Log

    /// Logs connections that a plane refused because there was no descriptor for them.
    private mutating func logExhaustion(_ plane: UInt8, _ counters: PlaneCounters) {
        let before = exhaustions[plane] ?? (0, 0)
        exhaustions[plane] = (counters.exhaustions, counters.exhaustedStreams)
        guard counters.exhaustions > before.times else { return }
        limited.log(
            .warning, "A listener refuses connections: the system gives no descriptor or memory for them",
            metadata: [
                LogKey.listener: "relay", LogKey.count: "\(counters.exhaustedStreams &- before.connections)",
            ])
    }

    private func logBeginning(_ id: AllocationID, _ flow: RelayFlow, _ user: String, _ relayed: [TransportAddress]) {
        lives.log(
            .debug, "An allocation began",
            metadata: [
                LogKey.allocation: "\(id.rawValue)", LogKey.user: "\(user)", LogKey.peer: "\(flow.remote)",
                LogKey.address: "\(relayed.map(\.description).joined(separator: " "))",
            ])
    }

    private mutating func logEnd(_ life: AllocationSummary, _ now: MonotonicTime) {
        if life.reason == .shutdown {
            guard unlogged.loggedCount < Self.shutdownLinesMax else {
                unlogged.count += 1
                unlogged.counters = unlogged.counters + life.counters
                return
            }
            unlogged.loggedCount += 1
        }
        let facts: () -> Logger.Metadata = {
            [
                LogKey.allocation: "\(life.allocation.rawValue)", LogKey.user: "\(life.user)",
                LogKey.peer: "\(life.flow.remote)",
                LogKey.address: "\(life.relayed.map(\.description).joined(separator: " "))",
                LogKey.reason: "\(life.reason.rawValue)",
                LogKey.bytes: "\(life.counters.bytesUp) up, \(life.counters.bytesDown) down",
                LogKey.count: "\(life.counters.packetsUp) up, \(life.counters.packetsDown) down",
                LogKey.milliseconds: "\(Int((now - life.started).milliseconds))",
            ]
        }
        if life.reason == .shutdown {
            log.info("An allocation ended", metadata: facts())
        } else {
            lives.log(.info, "An allocation ended", metadata: facts(), now: now)
            linesReportedAt = now + .seconds(3)
        }
    }
}

// Shutdown.
extension RelayServer {
    package var isEmpty: Bool { machine.allocationCount == 0 && machine.endingCount == 0 }

    package mutating func wind(
        down now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        // Bounded, so that there is room for the planes' reports.
        guard machine.endingCount < Self.shutdownsPerRound else { return }
        perform(machine.shutDown(countMax: Self.shutdownsPerRound, at: now), now, &commands)
    }

    package mutating func finish(now: MonotonicTime) {
        var unsent: [(plane: UInt8, command: PlaneCommand)] = []
        // If planes took too long, the allocations are reported with the counters known so far.
        perform(machine.shutDown(countMax: .max, at: now), now, &unsent)
        perform(machine.endWaiting(), now, &unsent)
        guard unlogged.count > 0 else { return }
        let counters = unlogged.counters
        log.info(
            "More allocations ended with the process",
            metadata: [
                LogKey.count: "\(unlogged.count)", LogKey.reason: "\(AllocationSummary.Reason.shutdown.rawValue)",
                LogKey.bytes: "\(counters.bytesUp) up, \(counters.bytesDown) down",
            ])
    }
}
