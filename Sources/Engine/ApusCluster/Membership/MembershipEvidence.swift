package import ApusCore

/// What a verdict about a peer rests on, for the log.
package struct MembershipEvidence: Sendable, Equatable, CustomStringConvertible {
    /// Since anything was heard of the peer, datagrams and links alike.
    package var silence: Duration
    /// Since its last datagram; nil if none came.
    package var sinceDatagram: Duration?
    package var datagramCount: UInt64
    /// How late this node's ticks were lately, at their worst.
    package var ownLateness: Duration
    /// What the peer's last datagram said of its own.
    package var peerLateness: Duration
    /// A link to it ended and none has come up since.
    package var isLinkLost: Bool
    /// What its process was seen doing; nil if it runs on another machine, or was not looked at.
    package var process: MembershipStateMachine.ProcessState?
    /// Bursts that ended with its process waiting for a processor or a disk.
    package var waitCount: Int
    /// Probes of the last burst that were sent to it; none was answered in time where it is dead.
    package var probeCount: Int
    /// Peers that were asked to probe it as well.
    package var asked: [NodeID]
    /// Heartbeats of any peer that this node's socket dropped since it was opened, because nobody read them in time.
    package var droppedCount: UInt32 = 0

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

    /// As of the last ``note(_:now:)``.
    var value: Duration { max(current, previous) }

    mutating func note(_ value: Duration, now: MonotonicTime) {
        if now >= windowEnd {
            // After a pause of more than a window nothing earlier counts.
            previous = now < windowEnd + Self.window ? current : .zero
            current = .zero
            windowEnd = now + Self.window
        }
        current = max(current, value)
    }
}
