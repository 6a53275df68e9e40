import ApusCalls
import ApusCore
import SwiftProtobuf
import Testing

/// The machine does what the table says, in each phase and for each trigger (CALL-4, CALL-8).
@Suite("The transitions of a call (CALL-4, CALL-8)")
struct CallTransitionTests {
    private static let phases: [CallPhase] = [
        .unspecified, .placing, .calling, .ringing, .recording, .accepted, .connected, .ended,
    ]

    @Test("CALL-8: each phase and trigger has at most one row, each phase can be reached, and each trigger is used")
    func table() {
        let rows = CallTransition.all
        for (index, row) in rows.enumerated() {
            #expect(!rows[..<index].contains { $0.from == row.from && $0.trigger == row.trigger })
            #expect((row.to == .ended) == (row.reason != nil))
        }
        for trigger in CallTrigger.allCases { #expect(rows.contains { $0.trigger == trigger }, "\(trigger)") }
        for phase in Self.phases {
            #expect(rows.contains { $0.to == phase } && rows.contains { $0.from == phase }, "\(phase)")
        }
    }

    @Test("CALL-8: in every phase each trigger leads where the table says, or nowhere", arguments: phases)
    func exhaustive(phase: CallPhase) throws {
        var checked = 0
        for trigger in CallTrigger.allCases {
            let row = CallTransition.row(phase, trigger)
            for type in [CallType.oneToOne, .oneToMany, .oneToManySpecial] {
                var call = try Self.call(in: phase, type, trigger)
                #expect(call.phase == phase)
                guard try Self.provoke(trigger, &call) else {
                    #expect(row == nil, "\(phase.name) has a row for \(trigger), which cannot happen")
                    continue
                }
                let found = call.phase
                #expect(found == row?.to ?? phase, "\(trigger) in \(phase.name) leads to \(found.name)")
                if let reason = row?.reason { #expect(call.machine.state.end.reason == reason) }
                checked += 1
            }
        }
        #expect(checked > 5)
    }

    /// A call in this phase. All legs but one have left where the trigger is about the last one.
    private static func call(in phase: CallPhase, _ type: CallType, _ trigger: CallTrigger) throws -> CallDriver {
        let targets = type == .oneToOne ? [CallDriver.app(1), CallDriver.app(2)] : CallDriver.bells(2)
        // Only what it does itself is tested with an answering machine: the call would not end without one.
        let hasMachine = phase == .recording || trigger == .machineAnswers
        let start = try CallDriver.start(
            type, to: targets, answering: hasMachine ? CallDriver.machine(of: targets[0].party) : nil)
        guard phase != .unspecified else {
            var call = try CallDriver(placing: start)
            call.machine = CallStateMachine()
            return call
        }
        guard phase != .placing else { return try CallDriver(placing: start) }
        var call = try CallDriver(placing: start)
        for claim in call.machine.state.claims { call.happen(.partyClaimed(claim.party)) }
        // Only one leg is left for the triggers of the last one.
        if [.rejected, .allBusy, .nobodyLeft].contains(trigger), phase == .calling || phase == .ringing {
            try call.send(.failed(-2532), 2)
        }
        guard phase != .calling else { return call }
        try call.send(.rang, 1)
        guard phase != .ringing else { return call }
        guard phase != .recording else {
            call.wait(.seconds(30))
            return call
        }
        try call.send(.accepted, 1)
        guard phase != .accepted else {
            if trigger == .bothConnected { try call.send(.connected, 0) }
            return call
        }
        try call.send(.connected, 0)
        try call.send(.connected, 1)
        guard phase == .ended else { return call }
        try call.send(.hungUp, 0)
        return call
    }

    /// Makes the event of the trigger happen; false if there is no such event in the present phase.
    private static func provoke(_ trigger: CallTrigger, _ call: inout CallDriver) throws -> Bool {
        let (phase, state) = (call.phase, call.machine.state)
        let isOpen = phase == .calling || phase == .ringing
        func send(_ event: CallEvent, _ leg: Int) { _ = try? call.send(event, leg) }
        switch trigger {
        case .started:
            guard phase == .unspecified else { return false }
            var actions: [CallAction] = []
            _ = try call.machine.start(CallDriver.start(), at: call.now, &actions)
        case .callerClaimed: call.happen(.partyClaimed(CallDriver.caller.party))
        case .callerBusy:
            guard phase != .calling, phase != .ringing, phase != .recording else { return false }
            call.happen(.partyRefused(CallDriver.caller.party))
        case .glareLost:
            guard phase != .placing else { return false }
            call.happen(.partyRefused(CallDriver.caller.party))
        case .legRang: send(.rang, phase == .ringing ? 2 : 1)
        case .legLeft: send(.wasBusy, 2)
        case .rejected:
            // A reject of the winner hangs up.
            guard state.winner == 0 else { return false }
            send(.rejected, 1)
        case .allBusy:
            for leg in [1, 2] { send(.wasBusy, leg) }
        case .nobodyLeft: for leg in [1, 2] where state.winner == 0 { send(.failed(-2532), leg) }
        case .ringTimedOut:
            // Time brings other triggers when it passes in a later phase.
            guard phase != .accepted, phase != .connected, phase != .recording else { return false }
            if phase != .ended { call.wait(.seconds(30)) }
        case .accepted: send(.accepted, isOpen ? 1 : 2)
        case .cancelled:
            guard state.winner == 0 || phase == .ended, phase != .recording else { return false }
            send(.cancelled, 0)
        case .hungUp:
            guard !isOpen, phase != .placing, phase != .recording else { return false }
            send(.hungUp, 1)
        case .legConnected:
            guard phase != .connected else { return false }
            send(.connected, 0)
        case .bothConnected:
            send(.connected, 0)
            send(.connected, 1)
        case .failed: send(.failed(-2570), 0)
        case .lost:
            guard phase != .unspecified else { return false }
            send(.sessionEnded, 0)
            if phase != .ended { call.wait(.seconds(15)) }
        case .connectTimedOut:
            guard phase == .accepted || phase == .ended else { return false }
            if phase == .accepted { call.wait(.seconds(30)) }
        case .durationEnded:
            guard phase == .accepted || phase == .connected || phase == .ended else { return false }
            guard phase != .accepted else { return try endsByDuration(&call) }
            if phase == .connected { call.wait(.seconds(4 * 3600)) }
        case .machineAnswers:
            guard phase == .calling || phase == .ringing else { return false }
            call.wait(.seconds(30))
        case .messageEnded:
            guard phase == .recording else { return false }
            send(.hungUp, 0)
        case .messageFull:
            guard phase == .recording else { return false }
            call.wait(.seconds(20))
        case .forgotten:
            guard phase == .ended || phase == .unspecified else { return false }
            call.happen(.recordWritten)
            call.wait(.seconds(601))
        }
        return true
    }

    /// A call that is accepted and not connected reaches its longest duration where that is the shorter time.
    private static func endsByDuration(_ call: inout CallDriver) throws -> Bool {
        var configuration = call.machine.configuration
        configuration.durationMax = .seconds(10)
        call.machine = try CallStateMachine(restoring: call.machine.state, configuration)
        call.wait(.seconds(10))
        return true
    }
}
