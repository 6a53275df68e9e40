import ApusCore
import ApusTraversal
import CApusNet
import CApusTLS
import Glibc

/// The loop that relays packets: one thread with its own sockets and tables, and nothing shared (D8).
///
/// It relays ChannelData and Send indications of clients with an allocation to their peers, and data of peers to
/// clients as ChannelData or Data indications (RFC 8656 §10 to §12). Every other STUN message is passed to control,
/// which answers with commands.
///
/// A round: wait for readiness, receive in batches (recvmmsg; datagrams that the kernel joined stay joined), find each
/// one's destination in flat tables, and send runs of equal datagrams as one message. This path never allocates memory,
/// counts references, locks or waits. Commands are handled between batches, so rows do not move under a batch that
/// refers to them.
///
/// Concurrency model: created by any thread, then confined to the thread that calls ``run()``. Other threads
/// communicate with it only through the rings of its ``PlaneLink``.
struct PacketPlane: ~Copyable {
    struct Listener {
        var socket: Int32
        var address: TransportAddress
        var isSecure = false
        /// Of a DTLS listener: handles the hellos from unverified addresses.
        var unverified: OpaquePointer?
    }

    /// The subject of a readiness event, in the top byte of its token.
    enum Kind: UInt64 {
        case wake, datagrams, connections, relay, stream, sessions, secondRelay, peerListener, secondPeerListener, peer,
            hotFlow, clock
    }

    /// Rounds of one listener before other sockets are served, and commands between two batches.
    static let listenerRounds = 4
    static let commandsPerRound = 64
    static let readyMax = 256
    /// The interval at which counters and idle connections are checked.
    static let tickMilliseconds = 100
    static let tickInterval = UInt64(tickMilliseconds) * 1_000_000
    static let ticksPerReport = 10

    let configuration: PlaneConfiguration
    let link: PlaneLink
    let poll: Int32
    /// Wakes the plane for its ticks while it has timers.
    let clock: Int32
    let canJoin: Bool
    let ready: UnsafeMutablePointer<apus_ready>
    let datagramListeners: UnsafeMutablePointer<Listener>
    let datagramListenerCount: Int
    let streamListeners: UnsafeMutablePointer<Listener>
    let streamListenerCount: Int
    let sessionListeners: UnsafeMutablePointer<Listener>
    let sessionListenerCount: Int
    /// The buffer of one connection's read, and of indications.
    let streamBuffer: UnsafeMutableRawPointer
    let scratch: UnsafeMutableRawPointer
    /// The buffer of a TLS connection's read, and of a DTLS record.
    let ciphertext: UnsafeMutableRawPointer

    var allocations: AllocationTable
    var streams: StreamTable
    /// Connections to peers (RFC 6062).
    var peers: PeerTable
    var accepting = AcceptPause()
    var buckets: BucketTable
    /// The bucket of all allocations; -1 if the node has no limit.
    var nodeBucket: Int32 = -1
    var errors: ErrorBounds
    var hotFlows: HotFlowTable
    /// The start of this round.
    var now: UInt64
    var isClockRunning = false
    /// Connections of the TLS listener with an incomplete handshake.
    var streamHandshakes: AdmissionStateMachine
    /// Unauthenticated connections.
    var unauthenticated: AdmissionStateMachine
    var sessions: SessionTable
    /// The current certificate of the TLS and DTLS listeners.
    var contexts: EndpointSecurity.Contexts?
    /// Bytes of the streams' buffer that decrypted DTLS datagrams of a batch use.
    var plaintextUsed = 0
    /// DTLS datagrams that the kernel did not accept.
    var sessionsRefused: UInt64 = 0
    let arena = ReceiveArena()
    var arenaUsed = 0
    var scratchUsed = 0
    var output: SendBatch
    var counters = PlaneCounters()
    var reported = PlaneCounters()
    var transaction: UInt64
    var lastTick: UInt64 = 0
    var tickCount = 0
    var rests = RestStateMachine()
    /// Of this round: its number, the received messages, the relayed packets, and whether some were left.
    var round: UInt32 = 0
    var received = 0
    var carried: UInt64 = 0
    var isBehind = false

    static let streamReadMax = 262_144
    static let carryMax = 65_536 + 32
    static let scratchBytes = 262_144

    /// Opens the listeners.
    ///
    /// - Throws: 10019 if an address is in use, 10018 for any other refusal of the system.
    init(configuration: PlaneConfiguration, link: PlaneLink, seed: UInt64) throws(ApusError) {
        self.configuration = configuration
        self.link = link
        canJoin = configuration.usesOffload && apus_can_join() == 1
        poll = apus_poll_open()
        clock = apus_clock_open()
        ready = .allocate(capacity: Self.readyMax)
        ready.initialize(repeating: apus_ready(), count: Self.readyMax)
        streamBuffer = .allocate(byteCount: Self.carryMax + Self.streamReadMax, alignment: 4_096)
        ciphertext = .allocate(byteCount: Self.ciphertextMax, alignment: 4_096)
        scratch = .allocate(byteCount: Self.scratchBytes, alignment: 4_096)
        datagramListenerCount = configuration.datagramAddresses.count
        streamListenerCount =
            configuration.streamAddresses.count
            + (configuration.security == nil ? 0 : configuration.secureStreamAddresses.count)
        sessionListenerCount = configuration.security == nil ? 0 : configuration.secureDatagramAddresses.count
        sessionListeners = .allocate(capacity: sessionListenerCount)
        datagramListeners = .allocate(capacity: datagramListenerCount)
        streamListeners = .allocate(capacity: streamListenerCount)
        let none = Listener(socket: -1, address: TransportAddress(v4: 0, port: 0))
        datagramListeners.initialize(repeating: none, count: datagramListenerCount)
        streamListeners.initialize(repeating: none, count: streamListenerCount)
        sessionListeners.initialize(repeating: none, count: sessionListenerCount)
        allocations = AllocationTable(configuration: configuration, seed: seed)
        buckets = BucketTable(countMax: configuration.allocationsMax + configuration.peersMax + 1, seed: seed &+ 6)
        errors = ErrorBounds(
            rowsMax: configuration.allocationsMax, perSecondMax: configuration.peerErrorsPerSecondMax)
        hotFlows = HotFlowTable(rowsMax: configuration.connectedFlowsMax)
        now = MonotonicTime.now().nanoseconds
        streams = StreamTable(
            rowsMax: configuration.streamsMax, budget: configuration.streamBudget, seed: seed &+ 4)
        peers = PeerTable(rowsMax: configuration.peersMax, seed: seed &+ 7)
        sessions = SessionTable(configuration: configuration, seed: seed &+ 5)
        streamHandshakes = AdmissionStateMachine(perSourceMax: configuration.handshakesPerSourceMax)
        unauthenticated = AdmissionStateMachine(perSourceMax: configuration.unauthenticatedPerSourceMax)
        output = SendBatch(
            segmentMax: configuration.segmentMax,
            canSegment: configuration.usesOffload && apus_can_segment() == 1,
            runCountMax: Int(apus_segments_max()))
        transaction = seed | 1
        contexts = configuration.security?.contexts()
        guard poll >= 0, clock >= 0 else {
            throw ApusError(.internalFailure, "the system cannot create epoll or timer (errno \(-min(poll, clock)))")
        }
        _ = apus_poll_add(poll, clock, Self.readable, Self.token(.clock, 0, 0))
        _ = apus_poll_add(poll, link.plane.descriptor, Self.readable, Self.token(.wake, 0, 0))
        accepting.keepSpares()
        if !configuration.nodeRate.isNone {
            nodeBucket = buckets.join(user: RateShares.nodeUser, at: now)
            limitNode(configuration.nodeRate)
        }
        try openListeners()
    }

    deinit {
        for index in 0..<datagramListenerCount where datagramListeners[index].socket >= 0 {
            apus_close(datagramListeners[index].socket)
        }
        for index in 0..<streamListenerCount where streamListeners[index].socket >= 0 {
            apus_close(streamListeners[index].socket)
        }
        for index in 0..<sessionListenerCount {
            apus_dtls_free(sessionListeners[index].unverified)
            if sessionListeners[index].socket >= 0 { apus_close(sessionListeners[index].socket) }
        }
        for slot in allocations.slots where allocations.rows[slot].isLive {
            apus_close(allocations.rows[slot].socket)
            if allocations.rows[slot].second >= 0 { apus_close(allocations.rows[slot].second) }
        }
        for spare in accepting.spares { apus_close(spare) }
        if poll >= 0 { apus_close(poll) }
        if clock >= 0 { apus_close(clock) }
        ready.deallocate()
        datagramListeners.deallocate()
        streamListeners.deallocate()
        sessionListeners.deallocate()
        streamBuffer.deallocate()
        scratch.deallocate()
        ciphertext.deallocate()
    }

    static var readable: UInt32 { UInt32(APUS_READABLE) }

    static func token(_ kind: Kind, _ generation: UInt32, _ slot: Int) -> UInt64 {
        kind.rawValue << 56 | UInt64(generation & 0xFF_FFFF) << 32 | UInt64(UInt32(truncatingIfNeeded: slot))
    }

    private func openListeners() throws(ApusError) {
        for (index, address) in configuration.datagramAddresses.enumerated() {
            let socket = RelaySocket.openDatagram(
                address, sharesPort: true, joins: canJoin, bufferBytes: configuration.listenerBufferBytes)
            guard socket >= 0 else { throw RelaySocket.error(address, -socket) }
            datagramListeners[index] = Listener(socket: socket, address: RawAddress.local(of: socket) ?? address)
            reportMarks(of: socket)
            _ = apus_poll_add(poll, socket, Self.readable, Self.token(.datagrams, 0, index))
        }
        let plainCount = configuration.streamAddresses.count
        let streamAddresses = configuration.streamAddresses + configuration.secureStreamAddresses
        for (index, address) in streamAddresses.prefix(streamListenerCount).enumerated() {
            let socket = RawAddress(address).withSocketAddress {
                apus_stream_listen($0, RawAddress(address).length, 1, 1_024)
            }
            guard socket >= 0 else { throw RelaySocket.error(address, -socket) }
            streamListeners[index] = Listener(
                socket: socket, address: RawAddress.local(of: socket) ?? address, isSecure: index >= plainCount)
            _ = apus_poll_add(poll, socket, Self.readable, Self.token(.connections, 0, index))
        }
        for (index, address) in configuration.secureDatagramAddresses.prefix(sessionListenerCount).enumerated() {
            let socket = RelaySocket.openDatagram(
                address, sharesPort: true, joins: canJoin, bufferBytes: configuration.listenerBufferBytes)
            guard socket >= 0 else { throw RelaySocket.error(address, -socket) }
            sessionListeners[index] = Listener(
                socket: socket, address: RawAddress.local(of: socket) ?? address, isSecure: true)
            reportMarks(of: socket)
            _ = apus_poll_add(poll, socket, Self.readable, Self.token(.sessions, 0, index))
        }
    }

    /// The listeners' addresses, with the ports that the system chose for 0.
    var boundAddresses: BoundAddresses {
        let plainCount = configuration.streamAddresses.count
        return BoundAddresses(
            datagrams: (0..<datagramListenerCount).map { datagramListeners[$0].address },
            streams: (0..<plainCount).map { streamListeners[$0].address },
            secureStreams: (plainCount..<streamListenerCount).map { streamListeners[$0].address },
            secureDatagrams: (0..<sessionListenerCount).map { sessionListeners[$0].address })
    }

    /// Relays until it is stopped through its link.
    mutating func run() {
        lastTick = MonotonicTime.now().nanoseconds
        apus_rest_prepare()
        while !link.isStopping {
            link.plane.willSleep()
            let isIdle = hasNothing
            if isIdle == isClockRunning {
                isClockRunning = !isIdle
                apus_clock_set(clock, isIdle ? 0 : Int32(Self.tickMilliseconds))
            }
            let mayWait = link.commands.isEmpty && !link.isStopping
            let count = apus_poll_wait(poll, ready, Int32(Self.readyMax), mayWait ? -1 : 0)
            link.plane.didWake()
            now = MonotonicTime.now().nanoseconds
            if isIdle { wake() }
            // Commands first: data for an allocation that moved to another plane belongs to that plane.
            takeCommands()
            var index = 0
            while index < Int(count) {
                dispatch(ready[index])
                index &+= 1
            }
            finishRound()
            let sinceTick = now &- lastTick
            if sinceTick >= Self.tickInterval {
                // Ticks are on a grid, and the clock is set slightly later. Otherwise a wake-up that follows the clock
                // sooner than the last one did would not be due, and its tick would be skipped.
                lastTick = now &- sinceTick % Self.tickInterval
                tick(now)
            }
            endRound()
        }
    }

    /// True if there is nothing to time or to report, so that only a client or a command can cause work.
    private var hasNothing: Bool {
        allocations.count == 0 && streams.count == 0 && sessions.count == 0 && peers.count == 0 && counters == reported
            && counters.connectedFlows == 0 && counters.connections == 0 && counters.sessions == 0
            && counters.peers == 0 && counters.unauthenticated == 0
            && counters.sendDropped == output.dropped &+ sessionsRefused
            && counters.unsegmented == output.unsegmented && accepting.until == nil
    }

    /// Updates the time after an indefinite sleep, before events are handled.
    private mutating func wake() {
        lastTick = now
        takeContexts()
    }

    @inline(__always)
    private mutating func dispatch(_ ready: apus_ready) {
        let slot = Int(ready.token & 0xFFFF_FFFF)
        let generation = UInt32(truncatingIfNeeded: ready.token >> 32) & 0xFF_FFFF
        switch Kind(rawValue: ready.token >> 56) {
        case .relay:
            if allocations.rows[slot].isLive, allocations.rows[slot].generation & 0xFF_FFFF == generation {
                relayReady(slot, allocations.rows[slot].socket, ready.events)
            }
        case .secondRelay:
            if allocations.rows[slot].isLive, allocations.rows[slot].generation & 0xFF_FFFF == generation {
                relayReady(slot, allocations.rows[slot].second, ready.events)
            }
        case .hotFlow:
            if hotFlows.rows[slot].socket >= 0, hotFlows.rows[slot].generation & 0xFF_FFFF == generation {
                relayReady(Int(hotFlows.rows[slot].allocation), hotFlows.rows[slot].socket, ready.events)
            }
        case .datagrams: readListener(slot)
        case .stream:
            if streams.rows[slot].socket >= 0, streams.rows[slot].generation & 0xFF_FFFF == generation {
                streamReady(slot, ready.events)
            }
        case .peer:
            if peers.rows[slot].socket >= 0, peers.rows[slot].generation & 0xFF_FFFF == generation {
                peerReady(slot, ready.events)
            }
        case .peerListener, .secondPeerListener:
            if allocations.rows[slot].isLive, allocations.rows[slot].generation & 0xFF_FFFF == generation {
                acceptPeers(slot, isSecond: ready.token >> 56 == Kind.secondPeerListener.rawValue)
            }
        case .connections: acceptStreams(slot)
        case .sessions: readSessionListener(slot)
        case .wake: link.plane.clear()
        case .clock: apus_wake_clear(clock)
        case nil: break
        }
    }

    @inline(__always)
    private mutating func relayReady(_ slot: Int, _ socket: Int32, _ events: UInt32) {
        if events & UInt32(APUS_FAILED) != 0 { readErrors(slot, socket) }
        readRelay(slot, socket)
    }

    /// Sends this round's batch. The memory that it refers to may be reused afterwards.
    @inline(__always)
    mutating func sendOutput() {
        output.flush()
        arenaUsed = 0
        scratchUsed = 0
    }

    private mutating func finishRound() {
        sendOutput()
        while let slot = streams.nextWrite() { writeStream(slot) }
    }

    /// Twelve bytes of a transaction id for an indication (RFC 8489 §5), which is not answered.
    mutating func nextTransaction() -> UInt64 {
        transaction ^= transaction << 13
        transaction ^= transaction >> 7
        transaction ^= transaction << 17
        return transaction
    }

    // MARK: Counters

    private mutating func tick(_ now: UInt64) {
        tickCount = (tickCount + 1) % Self.ticksPerReport
        // A tenth of the rows each time, so that a tick is short, whatever the number of allocations.
        for slot in allocations.slots where slot % Self.ticksPerReport == tickCount {
            let row = allocations.rows + slot
            guard row.pointee.isLive, row.pointee.traffic != row.pointee.reported else { continue }
            let traffic = row.pointee.traffic
            guard link.event(.counters(allocation: row.pointee.id, traffic, isFinal: false)) else { break }
            row.pointee.reported = traffic
        }
        resumeAccepting(now)
        closeIdleStreams(now)
        endUnauthenticated(now)
        tickPeers(now)
        takeContexts()
        endLateHandshakes(now)
        tickHandshakes(now)
        closeIdleSessions(now)
        guard tickCount == 0 else { return }
        counters.sendDropped = output.dropped &+ sessionsRefused
        counters.connections = UInt64(streams.count)
        counters.sessions = UInt64(sessions.count)
        counters.peers = UInt64(peers.count)
        counters.unauthenticated = UInt64(unauthenticated.count + sessions.unauthenticated.count)
        counters.connectedFlows = UInt64(hotFlows.count)
        counters.unsegmented = output.unsegmented
        if counters != reported, link.event(.plane(index: link.index, counters)) { reported = counters }
    }

    private mutating func closeIdleStreams(_ now: UInt64) {
        let limit = UInt64(configuration.streamIdleMax.nanoseconds)
        for slot in streams.slots where slot % Self.ticksPerReport == tickCount {
            let row = streams.rows + slot
            guard row.pointee.socket >= 0, row.pointee.allocation == FlatTable.none, row.pointee.peer < 0,
                !streamHandshakes.contains(slot)
            else { continue }
            if now &- min(now, row.pointee.lastHeard) > limit { closeStream(slot) }
        }
    }
}
