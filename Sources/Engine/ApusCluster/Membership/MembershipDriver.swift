package import ApusCore
package import ApusTransport
package import ApusWire

/// Puts the failure detector on the heartbeat thread: sends what it wants sent, and reports what it found.
package struct MembershipDriver: HeartbeatDriver {
    package private(set) var machine: MembershipStateMachine
    private let report: @Sendable (MembershipStateMachine.Action) -> Void

    /// - Parameter report: Gets everything but what is to be sent, on the heartbeat thread; it must not block.
    package init(
        machine: MembershipStateMachine, report: @escaping @Sendable (MembershipStateMachine.Action) -> Void
    ) {
        self.machine = machine
        self.report = report
    }

    package mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound] { handle(.tick, now: now) }

    package mutating func received(
        _ message: HeartbeatMessage, from sender: NodeID, now: MonotonicTime
    ) -> [HeartbeatOutbound] {
        handle(.received(message, from: sender), now: now)
    }

    package mutating func handle(_ input: MembershipStateMachine.Input, now: MonotonicTime) -> [HeartbeatOutbound] {
        var outbound: [HeartbeatOutbound] = []
        for action in machine.handle(input, now: now) {
            switch action {
            case .send(let message, let receiver): outbound.append(HeartbeatOutbound(message, to: receiver))
            case .suspected, .recovered, .discarded, .confirmedDead: report(action)
            }
        }
        return outbound
    }
}
