import ApusCore
import OrderedCollections

/// Finds cut paths to the members that this node does not watch (D4).
///
/// Links between all members exist, so a path between two members that do not watch each other matters as well. Such a
/// member is examined with direct probes, and without an answer its path is checked by ``PeerPathStateMachine``:
/// - when traffic on its link stops: bytes arrived within `silenceMax` of each other, and then none for `silenceMax`
/// - when a link to it is lost
/// - in turn, one member with each heartbeat, as in SWIM. This covers links without traffic, and costs the same in a
///   cluster of any size.
///
/// An examination says nothing about the member's life. Its watchers decide on that.
///
/// Pure value: confined to its owner, which passes the time and sends the probes.
struct DistantPeersStateMachine: Sendable {
    enum Step: Sendable, Equatable {
        case probe(NodeID)
        /// No probe was answered: check the path.
        case doubted(NodeID)
    }

    private struct Examination: Sendable {
        var began: MonotonicTime
        var sentCount = 0
    }

    /// The probes of an examination beyond those of a burst. There are many examinations, so that few may fail because
    /// of lost datagrams alone.
    static let extraProbeCount = 2

    private let configuration: MembershipConfiguration
    private var peers: [NodeID] = []
    private var next = 0
    private var roundTrip = Duration.zero
    /// The last bytes on links of each member. Only looked up.
    private var lastBytes: [NodeID: MonotonicTime] = [:]
    /// Members with traffic on their links, with the time of the last bytes.
    private var busy: OrderedDictionary<NodeID, MonotonicTime> = [:]
    private var examinations: OrderedDictionary<NodeID, Examination> = [:]

    init(configuration: MembershipConfiguration) { self.configuration = configuration }

    /// Sets the members that this node does not watch.
    mutating func setPeers(_ ids: [NodeID]) {
        guard ids != peers else { return }
        let kept = Set(ids)
        peers = ids
        next = ids.isEmpty ? 0 : next % ids.count
        lastBytes = lastBytes.filter { kept.contains($0.key) }
        busy.removeAll { !kept.contains($0.key) }
        examinations.removeAll { !kept.contains($0.key) }
    }

    /// Bytes of the member arrived on a link.
    mutating func heardOnLink(_ id: NodeID, now: MonotonicTime) {
        examinations[id] = nil
        defer { lastBytes[id] = now }
        guard let last = lastBytes[id], now - last <= configuration.silenceMax else { return }
        guard busy[id] != nil || busy.count < configuration.pathCheckCountMax else { return }
        busy[id] = now
    }

    /// A datagram of the member arrived.
    mutating func heardDatagram(_ id: NodeID) { examinations[id] = nil }

    /// There is a reason to examine the member now.
    mutating func examine(_ id: NodeID, now: MonotonicTime) {
        guard examinations[id] == nil, examinations.count < configuration.pathCheckCountMax else { return }
        examinations[id] = Examination(began: now)
    }

    /// Time has passed.
    ///
    /// - Parameter roundTrip: If heartbeats are sent now, how long answers take that come; otherwise nil.
    mutating func tick(heartbeatDueWith roundTrip: Duration?, now: MonotonicTime) -> [Step] {
        guard !peers.isEmpty else { return [] }
        for id in busy.filter({ now - $0.value > configuration.silenceMax }).keys {
            busy[id] = nil
            examine(id, now: now)
        }
        if let roundTrip {
            self.roundTrip = roundTrip
            examine(peers[next], now: now)
            next = (next + 1) % peers.count
        }
        var steps: [Step] = []
        let probeCount = configuration.probeCount + Self.extraProbeCount
        for id in examinations.keys.elements {
            guard var examination = examinations[id] else { continue }
            let age = now - examination.began
            if age >= configuration.burstDuration * probeCount + self.roundTrip {
                examinations[id] = nil
                steps.append(.doubted(id))
            } else if examination.sentCount < probeCount, age >= configuration.burstDuration * examination.sentCount {
                examination.sentCount += 1
                examinations[id] = examination
                steps.append(.probe(id))
            }
        }
        return steps
    }
}
