package import ApusCore

/// Compares this node's wall clock with its peers' (D4): tokens and tickets are judged by time, and a node whose clock
/// is wrong would end clients that are in the right.
///
/// Each heartbeat carries its sender's wall clock. Less the own clock at its arrival, that is how far the peer's is
/// ahead, less the time that the datagram took: the largest of the last second or two is the nearest. A datagram that
/// waited in a socket lowers a sample and so never counts as a difference while others came in time.
///
/// A node alone cannot say whose clock is wrong, nor can two. With two peers or more, the median of all clocks is the
/// cluster's; a node that is further from it than `differenceMax` goes by the median (``Report/adjustment``), until its
/// own clock is right again. A step of the own clock begins all samples anew.
///
/// Pure: confined to whoever owns it; the caller passes both clocks.
package struct ClockStateMachine: Sendable {
    /// A window of samples; an estimate rests on the current one and the one before.
    static let window = Duration.seconds(1)
    /// A change of the own clock beside the monotonic one that counts as a step.
    static let stepMin = Duration.milliseconds(500)

    package struct Report: Sendable, Equatable {
        /// How far each peer's clock is ahead of this node's, by name; negative where it is behind.
        package var offsets: [Offset] = []
        /// Those of ``offsets`` that differ by more than the bound.
        package var differing: [Offset] = []
        /// This node's clock differs from those of most of its peers, which are two or more.
        package var isAlone = false
        /// What is to be added to the own clock for the cluster's.
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
    /// The own wall clock less the monotonic one.
    private var base: Duration?

    package init(differenceMax: Duration) { self.differenceMax = differenceMax }

    /// Samples of others are dropped.
    package mutating func setPeers(_ ids: [NodeID]) {
        peers = ids.sorted().map { id in peers.first { $0.peer == id } ?? Samples(peer: id) }
    }

    /// A peer's clock came with a datagram; `wall` is the own clock at its arrival, both in Unix milliseconds.
    package mutating func heard(_ peer: NodeID, clock: UInt64, wall: UInt64, now: MonotonicTime) {
        noteStep(wall: wall, now: now)
        guard let index = peers.firstIndex(where: { $0.peer == peer }) else { return }
        // What differs by more than the bound of the clock's type differs, however much it is.
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

    /// What the samples say now; wanted every second.
    package mutating func judge(now: MonotonicTime) -> Report {
        var report = Report()
        for index in peers.indices {
            let isOld = now - peers[index].windowEnd > Self.window
            if isOld { (peers[index].current, peers[index].previous) = (nil, nil) }
            guard let value = peers[index].estimate else {
                peers[index].differs = false
                continue
            }
            // A difference that was reported ends clearly below the bound, so that none at the bound comes and goes.
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

    /// The middle value; of two, the one that is nearer to the own clock.
    private static func median(_ values: [Duration]) -> Duration {
        let sorted = values.sorted()
        let (low, high) = (sorted[(sorted.count - 1) / 2], sorted[sorted.count / 2])
        return abs(low) <= abs(high) ? low : high
    }

    private static func abs(_ span: Duration) -> Duration { span < .zero ? .zero - span : span }
    private func abs(_ span: Duration) -> Duration { Self.abs(span) }
}
