import ApusCore

/// Detects that the path to one peer is cut while another node still exchanges packets with both (D4).
///
/// A cut network path looks like a dead peer to the two nodes at its ends, and to nobody else. Probes through helpers
/// keep the peer alive, but its links carry nothing. This machine answers two questions: does the peer answer this node
/// directly, and if not, through which helper does it answer?
///
/// **Check.** A burst of probes goes to the peer, and the same probes go through the helpers. An answer proves both
/// directions of the way that it took, which a heartbeat does not: in a one-way cut one side hears the other's
/// heartbeats. The path is cut if no direct probe was answered within the burst and one through a helper was. A check
/// begins when there is a reason for doubt: the peer was silent and answered a helper, or the peer probes this node
/// through a helper.
///
/// **While the path is cut** a probe goes through the helper with each heartbeat, so that the peer does not fall
/// silent. A check each `pathCheckInterval` tests the direct path, and finds another helper if the present one does not
/// answer. The path is restored when the peer answered every direct probe of `pathRestoreCount` checks in a row. A
/// path that loses packets therefore does not alternate between the two states. If no helper answers, one direct answer
/// is enough.
///
/// Pure value: confined to its owner, which passes the time and sends the probes.
struct PeerPathStateMachine: Sendable {
    enum Step: Sendable, Equatable {
        /// Probe the peer directly.
        case probe(nonce: UInt32)
        /// Ask the helper to probe the peer; nil stands for all present helpers.
        case ask(nonce: UInt32, NodeID?)
        /// The path is cut; the helper exchanges packets with both. Also emitted when the helper changes.
        case cut(via: NodeID)
        case restored
    }

    private struct Check: Sendable {
        var nonce: UInt32
        var began: MonotonicTime
        var sentCount = 0
        /// Direct answers. They count until the next check begins, so that a distant peer's answers are not too late.
        var directCount = 0
        /// The helpers through which an answer came, the fastest first.
        var helpers: [NodeID] = []
        var isUnderWay = true
    }

    private struct Cut: Sendable {
        var helper: NodeID
        /// The last answer through the helper.
        var lastAnswer: MonotonicTime
        /// Checks in a row of which every direct probe was answered.
        var answeredCheckCount = 0
    }

    private let configuration: MembershipConfiguration
    /// The newest check.
    private var check: Check?
    private var isCheckWanted = false
    private var cut: Cut?

    init(configuration: MembershipConfiguration) { self.configuration = configuration }

    /// The helper while the path is cut; nil while the peer can be reached directly.
    var helper: NodeID? { cut?.helper }

    /// True if the path is not cut, and no check is in progress or wanted.
    var isAtRest: Bool { cut == nil && !isCheckWanted && check?.isUnderWay != true }

    /// There is a reason to check the path. Ignored shortly after the last check, and while the path is cut.
    mutating func doubted(now: MonotonicTime) {
        guard cut == nil else { return }
        if let check, now - check.began < configuration.silenceMax { return }
        isCheckWanted = true
    }

    /// The peer answered a direct probe.
    mutating func answered(nonce: UInt32) {
        if check?.nonce == nonce { check?.directCount += 1 }
    }

    /// The peer answered a probe through a helper. Returns false if the probe was not of the newest check, or if that
    /// check is over and the path is not cut.
    mutating func answered(nonce: UInt32, through helper: NodeID, now: MonotonicTime) -> Bool {
        guard var check, check.nonce == nonce, check.isUnderWay || cut != nil else { return false }
        if check.isUnderWay, !check.helpers.contains(helper) { check.helpers.append(helper) }
        self.check = check
        if cut?.helper == helper { cut?.lastAnswer = now }
        return true
    }

    /// Time has passed.
    ///
    /// - Parameters:
    ///   - nonce: The nonce of a check that begins now. No other probe has it.
    ///   - isHeartbeatDue: A heartbeat is sent to the peer now.
    mutating func tick(nonce: UInt32, isHeartbeatDue: Bool, now: MonotonicTime) -> [Step] {
        var steps: [Step] = []
        if isCheckDue(now: now) {
            noteDirectAnswers(&steps)
            check = Check(nonce: nonce, began: now)
            isCheckWanted = false
        }
        guard var current = check else { return steps }
        if current.isUnderWay {
            let gap = configuration.burstDuration / max(1, configuration.probeCount)
            while current.sentCount < configuration.probeCount, now - current.began >= gap * current.sentCount {
                current.sentCount += 1
                steps += [.probe(nonce: current.nonce), .ask(nonce: current.nonce, nil)]
            }
            current.isUnderWay = now - current.began < configuration.burstDuration
            check = current
            if !current.isUnderWay { conclude(current, now: now, &steps) }
        } else if let cut, isHeartbeatDue {
            steps.append(.ask(nonce: current.nonce, cut.helper))
        }
        return steps
    }

    private func isCheckDue(now: MonotonicTime) -> Bool {
        if check?.isUnderWay == true { return false }
        guard let cut, let check else { return isCheckWanted }
        // A helper that does not answer is replaced without a further wait.
        return now - check.began >= configuration.pathCheckInterval
            || (now - cut.lastAnswer > configuration.silenceMax && now - check.began >= configuration.silenceMax)
    }

    /// Evaluates the direct answers to the last check of a path that is cut.
    private mutating func noteDirectAnswers(_ steps: inout [Step]) {
        guard let check, var cut else { return }
        cut.answeredCheckCount = check.directCount >= configuration.probeCount ? cut.answeredCheckCount + 1 : 0
        self.cut = cut
        // Without a helper that answers, a path that works at all is better.
        let isStranded = check.helpers.isEmpty && check.directCount > 0
        guard isStranded || cut.answeredCheckCount >= configuration.pathRestoreCount else { return }
        self.cut = nil
        steps.append(.restored)
    }

    private mutating func conclude(_ check: Check, now: MonotonicTime, _ steps: inout [Step]) {
        guard check.directCount == 0 || cut != nil, let fastest = check.helpers.first else { return }
        if let cut, check.helpers.contains(cut.helper) { return }
        cut = Cut(helper: fastest, lastAnswer: now)
        steps.append(.cut(via: fastest))
    }
}
