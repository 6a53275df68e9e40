package import ApusCore
package import ApusTransport
import ApusWire

/// Runs the failure detector and the clock comparison on the heartbeat thread: it sends their datagrams, inspects
/// processes for them, and reports their findings.
package struct MembershipDriver: HeartbeatDriver {
    /// A finding of the thread. Delivered on the thread; the receiver must not block.
    package enum Finding: Sendable {
        /// Any action except sending, with the evidence about the peer.
        case peer(MembershipStateMachine.Action, MembershipEvidence?)
        /// Emitted every second while there are peers.
        case clocks(ClockStateMachine.Report)
        /// The map must be replaced by an equal one. ``MembershipStateMachine/Input/mapConfirmed(_:isDone:)`` follows.
        case confirmMap(UInt64)
        /// The permission to answer ended, came back, or has been away for longer than the delay of refusals.
        case permission(Permission)
        /// Wake the entities that wait: the permission to answer is back, or requests are refused from now on.
        case answersWait
    }

    /// The state of the permission to answer for entities with kept state.
    package enum Permission: Sendable, Equatable {
        case granted
        case lapsed
        /// It lapsed so long ago that requests are refused.
        case refusing
    }

    package private(set) var machine: MembershipStateMachine
    private var clocks: ClockStateMachine
    private var nextJudgement = MonotonicTime.zero
    private let permission: AnswerPermission
    /// As reported last.
    private var permissionState = Permission.granted
    /// The revision of the map that the machine has.
    package var mapRevision: UInt64 = 0
    private let report: @Sendable (Finding) -> Void

    package init(
        machine: MembershipStateMachine, permission: AnswerPermission = AnswerPermission(),
        report: @escaping @Sendable (Finding) -> Void
    ) {
        self.machine = machine
        self.permission = permission
        clocks = ClockStateMachine(differenceMax: machine.configuration.clockDifferenceMax)
        self.report = report
    }

    package var lateness: Duration { machine.lateness }
    package var droppedCount: UInt32 = 0

    package mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound] {
        if now >= nextJudgement {
            nextJudgement = now + .seconds(1)
            report(.clocks(clocks.judge(wall: UInt64(clamping: WallClock.milliseconds()), now: now)))
        }
        return handle(.tick, now: now)
    }

    package mutating func received(_ arrival: HeartbeatArrival) -> [HeartbeatOutbound] {
        if let vitals = arrival.vitals {
            clocks.heard(
                arrival.sender, clock: vitals.wallMilliseconds, wall: arrival.wallMilliseconds, now: arrival.now)
        }
        return handle(.received(arrival.message, from: arrival.sender, arrival.vitals), now: arrival.now)
    }

    package mutating func handle(_ input: MembershipStateMachine.Input, now: MonotonicTime) -> [HeartbeatOutbound] {
        var outbound: [HeartbeatOutbound] = []
        let actions = machine.handle(input, now: now)
        if case .membersChanged = input { clocks.setPeers(machine.watchedPeers) }
        for action in actions {
            switch action {
            case .send(let message, let receiver): outbound.append(HeartbeatOutbound(message, to: receiver))
            case .inspect(let peer, let process):
                outbound += handle(.inspected(peer, Self.state(of: process)), now: now)
            case .confirmMap(let number): report(.confirmMap(number))
            case .suspected(let peer, _), .recovered(let peer), .discarded(let peer), .confirmedDead(let peer, _),
                .certain(let peer), .half(let peer), .uncertain(let peer), .pathCut(let peer, _),
                .pathRestored(let peer):
                var evidence = machine.evidence(about: peer, now: now)
                evidence?.droppedCount = droppedCount
                evidence?.mapRevision = mapRevision
                report(.peer(action, evidence))
            }
        }
        publishPermission(now: now)
        return outbound
    }

    private mutating func publishPermission(now: MonotonicTime) {
        permission.publish(machine.promises.permissionEnd)
        let isGranted = permission.isGranted(now: now)
        let new: Permission = isGranted ? .granted : permission.refuses(now: now) ? .refusing : .lapsed
        if new != permissionState {
            permissionState = new
            report(.permission(new))
            if new == .refusing { report(.answersWait) }
        }
        if isGranted, permission.hasWaiters { report(.answersWait) }
    }

    private static func state(of process: HeartbeatVitals.Process) -> MembershipStateMachine.ProcessState {
        switch LocalProcess.state(of: process) {
        case .gone: .gone
        case .stopped: .stopped
        case .waiting: .waiting
        case .idle, .unknown: .idle
        }
    }
}
