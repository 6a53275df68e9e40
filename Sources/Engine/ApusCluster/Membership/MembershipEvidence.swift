package import ApusCore

/// The evidence for a verdict about a peer, for the log.
package struct MembershipEvidence: Sendable, Equatable, CustomStringConvertible {
    /// The time since anything arrived from the peer, on datagrams or links.
    package var silence: Duration
    /// The time since its last datagram; nil if none arrived.
    package var sinceDatagram: Duration?
    package var datagramCount: UInt64
    /// The greatest recent lateness of this node's ticks.
    package var ownLateness: Duration
    /// The peer's own lateness, from its last datagram.
    package var peerLateness: Duration
    /// A link to it ended and none has come up since.
    package var isLinkLost: Bool
    /// The last observed state of its process; nil if it runs on another machine or was not inspected.
    package var process: MembershipStateMachine.ProcessState?
    /// The number of bursts of probes that ended while its process waited for a processor or a disk.
    package var waitCount: Int
    /// Probes of the last burst that were sent to it. If it is dead, none was answered in time.
    package var probeCount: Int
    /// Peers that were asked to probe it as well.
    package var asked: [NodeID]
    /// Heartbeats of any peer that this node's socket dropped since it was opened, because they were not read in time.
    package var droppedCount: UInt32 = 0
    /// The revision of the map whose members were counted.
    package var mapRevision: UInt64 = 0

    package var description: String {
        let since = sinceDatagram.map { "\(Self.text($0))" } ?? "never"
        return """
            silence \(Self.text(silence)), last datagram \(since) of \(datagramCount), \
            own lateness \(Self.text(ownLateness)), its lateness \(Self.text(peerLateness)), \
            link \(isLinkLost ? "lost" : "up"), process \(process?.rawValue ?? "not seen"), waits \(waitCount), \
            probes \(probeCount), asked \(asked.map(\.description).joined(separator: " ")), dropped \(droppedCount)
            """
    }

    private static func text(_ span: Duration) -> String { "\(Int(span.milliseconds.rounded())) ms" }
}

/// The largest value of the last second or two.
struct RecentMaximum: Sendable {
    private static let window = Duration.seconds(1)
    private var current = Duration.zero
    private var previous = Duration.zero
    private var windowEnd = MonotonicTime.zero

    /// The value at the last ``note(_:now:)``.
    var value: Duration { max(current, previous) }

    mutating func note(_ value: Duration, now: MonotonicTime) {
        if now >= windowEnd {
            // After a pause of more than a window, earlier values do not count.
            previous = now < windowEnd + Self.window ? current : .zero
            current = .zero
            windowEnd = now + Self.window
        }
        current = max(current, value)
    }
}
