import ApusCore
import ApusWire
import CApusThreads
import CoreMetrics
import Logging
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The code that runs on the heartbeat thread; see ``HeartbeatThread``.
///
/// Concurrency model: confined to the thread that calls ``run()``.
final class HeartbeatLoop<Driver: HeartbeatDriver> {
    private struct PeerState {
        var id: NodeID
        var address: HostPort
        /// Nil until its name is resolved.
        var socketAddress: SocketAddress?
        var window = ReplayWindow()
        /// The peer announced that it reads datagrams of version 2.
        var readsVitals = false
        /// Its certificate is revoked: its datagrams count as silence.
        var isRevoked = false
    }

    /// The most datagrams read in one turn. The others are read in the next turn, after a tick.
    private static var readCountMax: Int { 4096 }

    private let configuration: HeartbeatConfiguration
    private let identity: NodeID
    private let clusterHash: UInt64
    /// Replaced when the cluster's key is changed.
    var seal: HeartbeatSeal
    private(set) var driver: Driver
    private let mailbox: HeartbeatMailbox<Driver>
    private let condition: @Sendable (NodeConditions.Kind, String?) -> Void
    private let logger: Logger
    private let metrics = HeartbeatMetrics()
    private let socket: HeartbeatSocket
    private var repair = SocketRepairStateMachine()
    private var boundAddress: SocketAddress?
    private var process = LocalProcess.current()
    private var peers: [PeerState] = []
    /// Only looked up.
    private var indexes: [NodeID: Int] = [:]
    private var sequence: UInt64 = 0
    private var nextTick: MonotonicTime?
    private var nextFigures = MonotonicTime.zero

    init(
        configuration: HeartbeatConfiguration, identity: NodeID, clusterHash: UInt64, seal: HeartbeatSeal,
        driver: Driver, mailbox: HeartbeatMailbox<Driver>,
        condition: @escaping @Sendable (NodeConditions.Kind, String?) -> Void, logger: Logger
    ) {
        self.configuration = configuration
        self.identity = identity
        self.clusterHash = clusterHash
        self.seal = seal
        self.driver = driver
        self.mailbox = mailbox
        self.condition = condition
        self.logger = logger
        socket = HeartbeatSocket(wake: mailbox.wake)
    }

    /// Opens the socket. Returns its port.
    func open() -> Result<Int, ApusError> {
        let bind = configuration.bind
        let address: SocketAddress
        do {
            address = try SocketAddress.makeAddressResolvingHost(bind.host, port: bind.port)
        } catch {
            return .failure(ApusError(.configurationInvalid, "heartbeats cannot bind to \(bind): \(error)"))
        }
        let number = socket.open(at: address)
        switch number {
        case 0: break
        case EADDRINUSE:
            return .failure(ApusError(.addressInUse, "the heartbeat address \(bind) is in use on UDP"))
        default:
            let reason = String(cString: strerror(number))
            return .failure(ApusError(.configurationInvalid, "heartbeats cannot bind to \(bind): \(reason)"))
        }
        // A socket that is opened again keeps the port, even if the system chose it.
        var bound = address
        bound.port = socket.port
        boundAddress = bound
        return .success(socket.port)
    }

    /// Runs until the mailbox ends.
    func run() {
        hasten()
        while true {
            socket.wait(until: [nextTick, repair.nextAttempt].compactMap { $0 }.min())
            let (work, isEnded) = mailbox.take()
            for body in work { body(self) }
            if isEnded { return socket.close() }
            carryOut(repair.attempt(now: .now()))
            readAll()
            tickWhenDue()
        }
    }

    func close() {
        nextTick = nil
        (peers, indexes) = ([], [:])
        socket.close()
    }

    private func hasten() {
        process.thread = LocalProcess.currentThread()
        let scheduling = apus_thread_hasten()
        metrics.scheduling.record(Int64(scheduling))
        guard scheduling != CInt(APUS_THREAD_REALTIME) else { return }
        logger.info(
            "The heartbeat thread has no real-time priority",
            metadata: [LogKey.reason: "allow it with RLIMIT_RTPRIO or CAP_SYS_NICE where the machine is often busy"])
    }

    // MARK: Peers

    func setPeers(_ wanted: [Peer]) {
        let (earlier, places) = (peers, indexes)
        peers = wanted.map { peer in
            if let known = places[peer.id].map({ earlier[$0] }), known.address == peer.address { return known }
            let literal = try? SocketAddress(ipAddress: peer.address.host, port: peer.address.port)
            return PeerState(id: peer.id, address: peer.address, socketAddress: literal)
        }
        indexes = Dictionary(peers.enumerated().map { ($1.id, $0) }, uniquingKeysWith: { first, _ in first })
        for peer in peers where peer.socketAddress == nil { resolve(peer.address) }
        if nextTick == nil || !peers.isEmpty { nextTick = .now() }
    }

    /// A peer's certificate is revoked, or is accepted again.
    func setRevoked(_ peer: NodeID, _ isRevoked: Bool) {
        guard let index = indexes[peer] else { return }
        peers[index].isRevoked = isRevoked
    }

    private func resolve(_ address: HostPort) {
        let (mailbox, logger) = (mailbox, logger)
        NIOThreadPool.singleton.submit { state in
            guard case .active = state else { return }
            do {
                let resolved = try SocketAddress.makeAddressResolvingHost(address.host, port: address.port)
                _ = mailbox.post { $0.resolved(address, as: resolved) }
            } catch {
                logger.warning(
                    "A peer's heartbeat address cannot be resolved",
                    metadata: [LogKey.address: "\(address)", LogKey.error: "\(error)"])
            }
        }
    }

    private func resolved(_ address: HostPort, as socketAddress: SocketAddress) {
        for index in peers.indices where peers[index].address == address {
            peers[index].socketAddress = socketAddress
        }
    }

    // MARK: Time

    private func tickWhenDue() {
        let now = MonotonicTime.now()
        guard let due = nextTick, now >= due else { return }
        nextTick = now + (peers.isEmpty ? configuration.tickIntervalAlone : configuration.tickInterval)
        if now >= nextFigures { driver.droppedCount = socket.dropCount }
        send(driver.tick(now: now))
        guard now >= nextFigures else { return }
        nextFigures = now + .seconds(1)
        metrics.dropped.record(Int64(driver.droppedCount))
        metrics.lateness.record(driver.lateness.milliseconds / 1000)
    }

    func perform(_ body: (inout Driver, MonotonicTime) -> [HeartbeatOutbound]) {
        send(body(&driver, .now()))
    }

    // MARK: Datagrams

    private func readAll() {
        for _ in 0..<Self.readCountMax {
            switch socket.receive() {
            case .success(nil): return
            case .success(.some(let bytes)): received(bytes)
            case .failure(let error):
                guard !SocketRepairStateMachine.isPassing(error.number) else { return }
                return carryOut(repair.broke(errno: error.number, now: .now()))
            }
        }
    }

    private func received(_ bytes: ByteBuffer) {
        do throws(HeartbeatFault) {
            let datagram = try seal.open(bytes, receiver: identity, clusterHash: clusterHash)
            guard let index = indexes[datagram.sender] else { throw .sender }
            guard !peers[index].isRevoked else { throw .revoked }
            guard peers[index].window.admit(datagram.sequence) else { throw .replayed }
            if datagram.readsVitals { peers[index].readsVitals = true }
            metrics.received.increment()
            send(
                driver.received(
                    HeartbeatArrival(
                        datagram.message, from: datagram.sender, vitals: datagram.vitals, now: .now(),
                        wallMilliseconds: Self.wallMilliseconds())))
        } catch {
            metrics.countIgnored(error)
            logger.trace("A heartbeat datagram was ignored", metadata: [LogKey.reason: "\(error.rawValue)"])
        }
    }

    private func send(_ outbound: [HeartbeatOutbound]) {
        guard !outbound.isEmpty, socket.isOpen else { return }
        let vitals = HeartbeatVitals(
            wallMilliseconds: Self.wallMilliseconds(),
            latenessMilliseconds: UInt16(clamping: driver.lateness.nanoseconds / 1_000_000), process: process)
        var (sentCount, refusedCount, number) = (0, 0, Int32(0))
        for datagram in outbound {
            guard let index = indexes[datagram.receiver], let address = peers[index].socketAddress else { continue }
            sequence += 1
            let bytes = seal.seal(
                HeartbeatDatagram(
                    clusterHash: clusterHash, sequence: sequence, sender: identity, message: datagram.message,
                    vitals: peers[index].readsVitals ? vitals : nil), to: datagram.receiver)
            let result = socket.send(bytes, to: address)
            if result == 0 {
                sentCount += 1
            } else if SocketRepairStateMachine.isPassing(result) {
                (refusedCount, number) = (refusedCount + 1, result)
            } else {
                return carryOut(repair.broke(errno: result, now: .now()))
            }
        }
        metrics.sent.increment(by: Int64(sentCount))
        metrics.refused.increment(by: Int64(refusedCount))
        carryOut(repair.sent(sentCount, refused: refusedCount, errno: number, now: .now()))
    }

    // MARK: The socket

    private func carryOut(_ actions: [SocketRepairStateMachine.Action]) {
        for action in actions {
            switch action {
            case .reopen: reopen()
            case .reportSilent(let number):
                let reason = String(cString: strerror(number))
                logger.warning("The system sends no heartbeats of this node", metadata: [LogKey.error: "\(reason)"])
                condition(
                    .heartbeatsBlocked,
                    "the system sends no heartbeats of this node (\(reason)); check its firewall and network, "
                        + "since its peers declare it dead")
            case .reportHeard: condition(.heartbeatsBlocked, nil)
            }
        }
    }

    private func reopen() {
        guard let boundAddress else { return }
        let number = socket.open(at: boundAddress)
        if number == 0 {
            metrics.reopened.increment()
            carryOut(repair.opened())
        } else {
            carryOut(repair.openFailed(errno: number, now: .now()))
        }
    }

    private static func wallMilliseconds() -> UInt64 { UInt64(clamping: WallClock.milliseconds()) }
}
