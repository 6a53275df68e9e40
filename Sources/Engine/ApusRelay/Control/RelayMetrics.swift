package import ApusTraversal
package import CoreMetrics

/// The number of times that the machine limited something, since its start.
package struct RelayLimitCounts: Sendable, Hashable {
    /// Challenges, refusals and answers to Binding that were suppressed because of their source's limit.
    package var challenges: UInt64 = 0
    package var bindings: UInt64 = 0
    /// Requests that were not checked because their source had sent too many wrong credentials.
    package var proofs: UInt64 = 0
    /// Refused allocations and new peers of users over their quota.
    package var allocations: UInt64 = 0
    package var peers: UInt64 = 0

    package init(
        challenges: UInt64 = 0, bindings: UInt64 = 0, proofs: UInt64 = 0, allocations: UInt64 = 0, peers: UInt64 = 0
    ) {
        self.proofs = proofs
        self.challenges = challenges
        self.bindings = bindings
        self.allocations = allocations
        self.peers = peers
    }
}

/// The metrics of a node's relay. Planes report their counters once a second; the differences are added.
///
/// Concurrency model: confined to the control thread.
package struct RelayMetrics: Sendable {
    private let factory: any MetricsFactory
    /// The number of live allocations.
    private let allocations: Gauge
    /// Allocations that were created.
    private let begun: Counter
    /// Packets and bytes of payload; `up` is from clients to peers.
    private let packetsUp: Counter
    private let packetsDown: Counter
    private let bytesUp: Counter
    private let bytesDown: Counter
    /// Answers that were suppressed because of their source's limit: challenges (401, 438) and refusals, and answers to
    /// Binding.
    private let limitedChallenges: Counter
    private let limitedBindings: Counter
    private let limitedProofs: Counter
    /// Requests refused because their user is at its limit of allocations (486), or names new peers too fast (508).
    private let overAllocations: Counter
    private let overPeers: Counter
    /// The number of stored mirrors of other nodes' allocations.
    private let mirrors: Gauge
    /// Runs of packets that the kernel refused to split and that were sent one by one.
    private let unsegmented: Counter
    /// Pauses of relay threads, in which more packets gather.
    private let rests: Counter
    /// Channels with a socket connected to their peer.
    private let connectedFlows: Gauge
    /// Packets between two allocations of one plane.
    private let shortCircuited: Counter
    /// Client connections (TCP and TLS), and DTLS sessions, of all planes.
    private let connections: Gauge
    private let sessions: Gauge
    /// Handshakes of TLS and DTLS by result: `done`, `failed` (or the client left), `late`, `displaced` (by newer ones,
    /// because too many were incomplete).
    private let handshakes: [(counter: Counter, part: @Sendable (PlaneCounters) -> UInt64)]
    /// Unauthenticated connections and sessions: the current number, and those that ended, by reason: `late`, or
    /// `displaced` by others.
    private let unauthenticated: Gauge
    private let unauthenticatedEnded: [(counter: Counter, part: @Sendable (PlaneCounters) -> UInt64)]
    /// Connections to peers (RFC 6062), including those being connected; and those that were `joined` with a client's,
    /// that `failed`, and peers that were `refused` without a permission.
    private let peers: Gauge
    private let peerConnections: [(counter: Counter, part: @Sendable (PlaneCounters) -> UInt64)]
    /// ICMP errors of datagrams to peers: `told` to the client, `limited` because of the allocation's limit per second,
    /// `ignored` without a permission or of another type.
    private let peerErrors: [(counter: Counter, part: @Sendable (PlaneCounters) -> UInt64)]
    /// Packets that planes dropped, by reason. `ring`: a message of an allocation for control found its ring full;
    /// `unauthenticated`: a message of another client did; `too_long`: control does not accept the length; `answer`: an
    /// answer of control; `event`: the notification of the end of a connection or allocation.
    private let dropped: [(counter: Counter, part: @Sendable (PlaneCounters) -> UInt64)]

    /// Connections that were refused because there was no descriptor or memory for them.
    private let exhausted: Counter

    /// The last counters of each plane.
    private var planes: [UInt8: PlaneCounters] = [:]
    /// The last counters of each allocation at each plane that has it: one, or two while it moves.
    private var traffic: [UInt32: [(plane: UInt8, traffic: RelayTraffic)]] = [:]
    private var limits = RelayLimitCounts()

    package init(factory: any MetricsFactory = MetricsSystem.factory) {
        func counter(_ label: String, _ dimensions: [(String, String)] = []) -> Counter {
            Counter(label: label, dimensions: dimensions, factory: factory)
        }
        self.factory = factory
        allocations = Gauge(label: "apus_relay_allocations", factory: factory)
        begun = counter("apus_relay_allocations_total")
        packetsUp = counter("apus_relay_packets_total", [("direction", "up")])
        packetsDown = counter("apus_relay_packets_total", [("direction", "down")])
        bytesUp = counter("apus_relay_bytes_total", [("direction", "up")])
        bytesDown = counter("apus_relay_bytes_total", [("direction", "down")])
        limitedChallenges = counter("apus_relay_limited_total", [("answer", "challenge")])
        limitedBindings = counter("apus_relay_limited_total", [("answer", "binding")])
        limitedProofs = counter("apus_relay_limited_total", [("answer", "proof")])
        overAllocations = counter("apus_relay_over_quota_total", [("quota", "allocations")])
        overPeers = counter("apus_relay_over_quota_total", [("quota", "new_peers")])
        mirrors = Gauge(label: "apus_relay_mirrors", factory: factory)
        exhausted = Counter(
            label: "apus_listener_refused_total", dimensions: [("listener", "relay"), ("reason", "descriptors")],
            factory: factory)
        unsegmented = counter("apus_relay_unsegmented_total")
        shortCircuited = counter("apus_relay_short_circuited_total")
        rests = counter("apus_relay_rests_total")
        connectedFlows = Gauge(label: "apus_relay_connected_flows", factory: factory)
        connections = Gauge(label: "apus_relay_connections", factory: factory)
        sessions = Gauge(label: "apus_relay_dtls_sessions", factory: factory)
        let results: [(String, @Sendable (PlaneCounters) -> UInt64)] = [
            ("done", { $0.handshakes }), ("failed", { $0.handshakesFailed }), ("late", { $0.handshakesLate }),
            ("displaced", { $0.handshakesDisplaced }),
        ]
        handshakes = results.map { result, part in (counter("apus_relay_handshakes_total", [("result", result)]), part)
        }
        unauthenticated = Gauge(label: "apus_relay_unauthenticated", factory: factory)
        let unauthenticatedEnds: [(String, @Sendable (PlaneCounters) -> UInt64)] = [
            ("late", { $0.unauthenticatedLate }), ("displaced", { $0.unauthenticatedDisplaced }),
        ]
        unauthenticatedEnded = unauthenticatedEnds.map { result, part in
            (counter("apus_relay_unauthenticated_ended_total", [("result", result)]), part)
        }
        peers = Gauge(label: "apus_relay_peer_connections", factory: factory)
        let ways: [(String, @Sendable (PlaneCounters) -> UInt64)] = [
            ("joined", { $0.peersJoined }), ("failed", { $0.peersFailed }), ("refused", { $0.peersRefused }),
        ]
        peerConnections = ways.map { result, part in
            (counter("apus_relay_peer_connections_total", [("result", result)]), part)
        }
        let errors: [(String, @Sendable (PlaneCounters) -> UInt64)] = [
            ("told", { $0.peerErrors }), ("limited", { $0.peerErrorsLimited }), ("ignored", { $0.peerErrorsIgnored }),
        ]
        peerErrors = errors.map { result, part in (counter("apus_relay_peer_errors_total", [("result", result)]), part)
        }
        let parts: [(String, @Sendable (PlaneCounters) -> UInt64)] = [
            ("malformed", { $0.malformed }), ("unknown_flow", { $0.unknownFlow }),
            ("unbound_channel", { $0.unboundChannel }), ("not_permitted", { $0.notPermitted }),
            ("ring", { $0.controlDropped }), ("unauthenticated", { $0.unauthenticatedDropped }),
            ("too_long", { $0.controlTooLong }), ("answer", { $0.answersDropped }), ("event", { $0.newsDropped }),
            ("send", { $0.sendDropped }), ("slow_stream", { $0.slowStream }),
            ("refused_stream", { $0.refusedStreams }), ("quota", { $0.overQuota }),
            ("node_quota", { $0.overNodeQuota }),
        ]
        dropped = parts.map { reason, part in (counter("apus_relay_dropped_total", [("reason", reason)]), part) }
    }

    /// An allocation was refused for lack of `ports` or of `descriptors`.
    package func refused(_ reason: String) {
        Counter(
            label: "apus_relay_allocations_refused_total", dimensions: [("reason", reason)], factory: factory
        ).increment()
    }

    /// An allocation was created.
    package func began() { begun.increment() }

    /// An allocation ended. Its counters are removed.
    package mutating func ended(_ life: AllocationSummary) {
        traffic[life.allocation.rawValue] = nil
        Counter(
            label: "apus_relay_allocations_ended_total", dimensions: [("reason", life.reason.rawValue)],
            factory: factory
        ).increment()
    }

    /// The counters of an allocation at a plane. Returns the traffic since the last report.
    @discardableResult
    package mutating func carried(_ id: UInt32, _ now: RelayTraffic, plane: UInt8, isFinal: Bool) -> RelayTraffic {
        var rows = traffic[id] ?? []
        let index = rows.firstIndex { $0.plane == plane }
        let before = index.map { rows[$0].traffic } ?? RelayTraffic()
        add(packetsUp, now.upPackets, before.upPackets)
        add(packetsDown, now.downPackets, before.downPackets)
        add(bytesUp, now.upBytes, before.upBytes)
        add(bytesDown, now.downBytes, before.downBytes)
        if let index { rows.remove(at: index) }
        if !isFinal { rows.append((plane, now)) }
        traffic[id] = rows.isEmpty ? nil : rows
        return now - before
    }

    /// The traffic of a TCP data connection since the last report.
    package func streamed(_ traffic: RelayTraffic) {
        add(bytesUp, traffic.upBytes, 0)
        add(bytesDown, traffic.downBytes, 0)
    }

    /// The counters of a plane.
    package mutating func counted(_ plane: UInt8, _ now: PlaneCounters) {
        let before = planes[plane] ?? PlaneCounters()
        for (counter, part) in dropped + handshakes + peerErrors + peerConnections + unauthenticatedEnded {
            add(counter, part(now), part(before))
        }
        add(unsegmented, now.unsegmented, before.unsegmented)
        add(exhausted, now.exhaustedStreams, before.exhaustedStreams)
        add(shortCircuited, now.shortCircuited, before.shortCircuited)
        add(rests, now.rests, before.rests)
        planes[plane] = now
        connections.record(planes.values.reduce(0) { $0 + $1.connections })
        connectedFlows.record(planes.values.reduce(0) { $0 + $1.connectedFlows })
        peers.record(planes.values.reduce(0) { $0 + $1.peers })
        unauthenticated.record(planes.values.reduce(0) { $0 + $1.unauthenticated })
        sessions.record(planes.values.reduce(0) { $0 + $1.sessions })
    }

    /// The state of the machine.
    package mutating func stands(allocations count: Int, mirrors mirrorCount: Int, limited: RelayLimitCounts) {
        allocations.record(count)
        mirrors.record(mirrorCount)
        add(limitedChallenges, limited.challenges, limits.challenges)
        add(limitedBindings, limited.bindings, limits.bindings)
        add(limitedProofs, limited.proofs, limits.proofs)
        add(overAllocations, limited.allocations, limits.allocations)
        add(overPeers, limited.peers, limits.peers)
        limits = limited
    }

    private func add(_ counter: Counter, _ now: UInt64, _ before: UInt64) {
        guard now > before else { return }
        counter.increment(by: Int64(clamping: now - before))
    }
}
