package import ApusCore

/// Compares this node's wall clock with its peers' (D4). Tokens and tickets depend on time, so a node with a wrong
/// clock would reject valid clients.
///
/// Each heartbeat carries its sender's wall clock. The difference to the own clock at its arrival is the peer's offset,
/// less the time of transit. The largest sample of the last second or two is the most accurate one. A datagram that
/// waited in a socket gives a lower sample, which does not count as long as others arrived in time.
///
/// A node alone cannot tell whose clock is wrong, nor can two nodes. With two peers or more, the median of all clocks
/// is the cluster's clock. A node that differs from it by more than `differenceMax` uses the median
/// (``Report/adjustment``) until its own clock is correct again. A step of the own clock discards all samples.
///
/// Pure value: confined to its owner, which passes both clocks.
package struct ClockStateMachine: Sendable {
    /// A window of samples. An estimate uses the current window and the previous one.
    static let window = Duration.seconds(1)
    /// The smallest change of the own clock, relative to the monotonic one, that counts as a step.
    static let stepMin = Duration.milliseconds(500)

    package struct Report: Sendable, Equatable {
        /// How far each peer's clock is ahead of this node's, by name; negative if it is behind.
        package var offsets: [Offset] = []
        /// The entries of ``offsets`` that differ by more than the limit.
        package var differing: [Offset] = []
        /// This node's clock differs from those of most of its peers, of which there are at least two.
        package var isAlone = false
        /// What to add to the own clock for the cluster's clock.
        package var adjustment = Duration.zero
    }

    package struct Offset: Sendable, Equatable {
        package var peer: NodeID
        package var value: Duration

        package init(peer: NodeID, value: Duration) {
            self.peer = peer
            self.value = value
        }
    }

    private struct Samples: Sendable {
        var peer: NodeID
        var current: Duration?
        var previous: Duration?
        var windowEnd = MonotonicTime.zero
        var differs = false

        var estimate: Duration? {
            switch (current, previous) {
            case (let current?, let previous?): max(current, previous)
            case (let one, let other): one ?? other
            }
        }
    }

    private let differenceMax: Duration
    private var peers: [Samples] = []
    /// The own wall clock minus the monotonic one.
    private var base: Duration?

    package init(differenceMax: Duration) { self.differenceMax = differenceMax }

    /// Sets the peers. Samples of other nodes are discarded.
    package mutating func setPeers(_ ids: [NodeID]) {
        peers = ids.sorted().map { id in peers.first { $0.peer == id } ?? Samples(peer: id) }
    }

    /// A peer's clock arrived with a datagram. `wall` is the own clock at its arrival. Both are in Unix milliseconds.
    package mutating func heard(_ peer: NodeID, clock: UInt64, wall: UInt64, now: MonotonicTime) {
        noteStep(wall: wall, now: now)
        guard let index = peers.firstIndex(where: { $0.peer == peer }) else { return }
        // Values beyond the range of Int64 are clamped. The result still counts as a difference.
        let difference = Int64(clamping: clock).subtractingReportingOverflow(Int64(clamping: wall))
        let sample = Duration.milliseconds(difference.overflow ? 0 : difference.partialValue)
        if now >= peers[index].windowEnd {
            peers[index].previous = now < peers[index].windowEnd + Self.window ? peers[index].current : nil
            peers[index].current = nil
            peers[index].windowEnd = now + Self.window
        }
        peers[index].current = max(peers[index].current ?? sample, sample)
    }

    private mutating func noteStep(wall: UInt64, now: MonotonicTime) {
        let newBase = Duration.milliseconds(Int64(clamping: wall)) - .nanoseconds(Int64(clamping: now.nanoseconds))
        defer { base = newBase }
        guard let base, abs(newBase - base) > Self.stepMin else { return }
        for index in peers.indices { (peers[index].current, peers[index].previous) = (nil, nil) }
    }

    /// Evaluates the samples. Needed every second.
    ///
    /// - Parameter wall: the own clock, in Unix milliseconds; nil if it has not stepped since the last datagram.
    package mutating func judge(wall: UInt64? = nil, now: MonotonicTime) -> Report {
        if let wall { noteStep(wall: wall, now: now) }
        var report = Report()
        for index in peers.indices {
            let isOld = now - peers[index].windowEnd > Self.window
            if isOld { (peers[index].current, peers[index].previous) = (nil, nil) }
            guard let value = peers[index].estimate else {
                peers[index].differs = false
                continue
            }
            // Hysteresis: a reported difference ends at three quarters of the limit.
            let bound = peers[index].differs ? differenceMax * 3 / 4 : differenceMax
            peers[index].differs = abs(value) > bound
            let offset = Offset(peer: peers[index].peer, value: value)
            report.offsets.append(offset)
            if peers[index].differs { report.differing.append(offset) }
        }
        guard report.offsets.count > 1 else { return report }
        report.isAlone = report.differing.count * 2 > report.offsets.count
        let median = Self.median(report.offsets.map(\.value) + [.zero])
        if abs(median) > differenceMax { report.adjustment = median }
        return report
    }

    /// The median. Of two middle values, the one nearer to the own clock.
    private static func median(_ values: [Duration]) -> Duration {
        let sorted = values.sorted()
        let (low, high) = (sorted[(sorted.count - 1) / 2], sorted[sorted.count / 2])
        return abs(low) <= abs(high) ? low : high
    }

    private static func abs(_ span: Duration) -> Duration { span < .zero ? .zero - span : span }
    private func abs(_ span: Duration) -> Duration { Self.abs(span) }
}
