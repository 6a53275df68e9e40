import ApusClient
import ApusCore
import Synchronization

/// What each kind of call does before the kill, meanwhile and later.
extension CallKillScript {
    func carryOut(_ preparation: Preparation) async throws(CallKillMiss) {
        switch kind {
        case .placing: try await placing(preparation)
        case .placingCancelled: try await placingCancelled(preparation)
        case .ringing, .accepting: try await answering(preparation)
        case .rejecting, .cancelling: try await givingUp(preparation)
        case .timingOut: try await timingOut(preparation)
        case .accepted, .failing: try await connecting(preparation)
        case .connected, .hangingUp: try await hangingUp(preparation)
        case .busy: try await busy(preparation)
        case .declining: try await declining(preparation)
        case .forked: try await forked(preparation)
        // These go on through all rounds: ``CallKillLoad``.
        case .media: break
        }
    }

    private func placing(_ preparation: Preparation) async throws(CallKillMiss) {
        preparation.end()
        try await wait(meanwhile)
        let start = MonotonicTime.now()
        let call = try await ring()
        if let ring = callee.client.notice(.ring, of: call) { ledger.rang(after: ring.time - start) }
        try await accept(call, at: callee)
        try await connect(call, callee)
        try await hangUp(call, callee)
    }

    /// The called device may ring meanwhile. It does not ring after that.
    private func placingCancelled(_ preparation: Preparation) async throws(CallKillMiss) {
        preparation.end()
        try await wait(meanwhile)
        let call = try await place()
        try await end(call, by: caller, []) { (session) throws(ApusError) in try await session.hangUpCall(call) }
        let over = MonotonicTime.now()
        try await wait(window)
        guard let ring = callee.client.notice(.ring, of: call) else { return }
        if ring.time > over { ledger.rangLate(by: ring.time - over) }
        try await end(callee, call, .callCancelled)
    }

    private func answering(_ preparation: Preparation) async throws(CallKillMiss) {
        let call = try await ring()
        preparation.end()
        try await wait(kind == .accepting ? meanwhile : later)
        try await accept(call, at: callee)
        try await connect(call, callee)
        if kind == .accepting { try await wait(later) }
        try await hangUp(call, callee)
    }

    private func givingUp(_ preparation: Preparation) async throws(CallKillMiss) {
        let call = try await ring()
        preparation.end()
        try await wait(meanwhile)
        if kind == .rejecting {
            try await end(call, by: callee, [(caller, .callRejected)]) { (session) throws(ApusError) in
                try await session.rejectCall(call)
            }
        } else {
            try await end(call, by: caller, [(callee, .callCancelled)]) { (session) throws(ApusError) in
                try await session.hangUpCall(call)
            }
        }
    }

    private func timingOut(_ preparation: Preparation) async throws(CallKillMiss) {
        let sent = MonotonicTime.now()
        let call = try await place(timeout: ringTime)
        let answered = MonotonicTime.now()
        try await rings(call)
        preparation.end()
        try await wait(answered + ringTime - (await gate.kill()))
        for (seat, code) in [(caller, ErrorCode.callNotAnswered), (callee, .callTimedOut)] {
            let time = try await end(seat, call, code)
            // The call began between the request and its answer.
            let (early, late) = (sent + ringTime - time, time - answered - ringTime)
            ledger.timedOut(late: late)
            guard early <= CallKillLedger.earlyMax, late <= CallKillLedger.lateMax else {
                throw CallKillMiss(
                    kind: .wrongTime,
                    text: early > .zero ? "\(early.milliseconds) ms early" : "\(late.milliseconds) ms late")
            }
        }
    }

    private func connecting(_ preparation: Preparation) async throws(CallKillMiss) {
        let call = try await ring()
        try await accept(call, at: callee)
        preparation.end()
        guard kind == .failing else {
            try await wait(later)
            try await connect(call, callee)
            return try await hangUp(call, callee)
        }
        try await wait(meanwhile)
        let (one, other) = isOdd ? (callee, caller) : (caller, callee)
        let start = MonotonicTime.now()
        let view = try await step("exception") { () throws(ApusError) in
            try await one.session.reportCallFailed(call, .mediaConnectFailed)
        }
        try expect(view.error?.code == .mediaConnectFailed, "exception: \(view.error?.code.number ?? 0)")
        one.client.endedItself(call)
        ledger.ended(after: try await end(other, call, .mediaConnectFailed) - start)
    }

    private func hangingUp(_ preparation: Preparation) async throws(CallKillMiss) {
        let call = try await ring()
        try await accept(call, at: callee)
        try await connect(call, callee)
        preparation.end()
        try await wait(kind == .hangingUp ? meanwhile : later)
        try await hangUp(call, callee)
    }

    private func busy(_ preparation: Preparation) async throws(CallKillMiss) {
        guard let other, let device = callee.device else { return }
        let call = try await ring()
        try await accept(call, at: callee)
        try await connect(call, callee)
        preparation.end()
        try await wait(meanwhile)
        let second = try await place(from: other, to: [.device(device)], .oneToOne, timeout: .seconds(30))
        try await end(other, second, .calleeBusy)
        try await end(callee, second, .onCalling)
        try expect(callee.client.notice(.ring, of: second) == nil, "a busy device has rung")
        try await wait(later)
        try await hangUp(call, callee)
    }

    /// Type 3: one of two devices rejects, and the other one has the call.
    private func declining(_ preparation: Preparation) async throws(CallKillMiss) {
        let (one, other) = (callees[0], callees[1])
        let call = try await ring(.oneToManySpecial)
        preparation.end()
        try await wait(meanwhile)
        let view = try await step("reject") { () throws(ApusError) in try await one.session.rejectCall(call) }
        try expect(view.isEnded && view.error == nil, "reject: \(view.error?.code.number ?? 0)")
        one.client.endedItself(call)
        try await wait(later)
        try await accept(call, at: other)
        try await connect(call, other)
        try await hangUp(call, other)
    }

    /// Type 2: all apps of an account accept at once.
    private func forked(_ preparation: Preparation) async throws(CallKillMiss) {
        let call = try await place(from: caller, to: [], .oneToMany, timeout: .seconds(90))
        try await rings(call)
        preparation.end()
        try await wait(meanwhile)
        let views = try await step("accept") { () throws(ApusError) in try await accepts(call) }
        let winners = views.filter { $0.view.isAccepted && !$0.view.isEnded }.map(\.seat)
        guard winners.count == 1, let winner = winners.first else {
            throw CallKillMiss(kind: .wrongWinner, text: "\(winners.count) apps have won")
        }
        try await step("accepted") { () throws(ApusError) in _ = try await caller.client.next(.accepted, of: call) }
        for loser in callees where loser !== winner { try await end(loser, call, .answeredByOthers) }
        try await connect(call, winner)
        try await wait(later)
        try await hangUp(call, winner)
    }

    private func accepts(_ call: String) async throws(ApusError) -> [(seat: CallSeat, view: ClientSession.Call)] {
        let results = await withTaskGroup(of: (CallSeat, Result<ClientSession.Call, ApusError>).self) { group in
            for seat in callees {
                group.addTask {
                    do throws(ApusError) {
                        return (seat, .success(try await seat.session.acceptCall(call)))
                    } catch {
                        return (seat, .failure(error))
                    }
                }
            }
            return await group.reduce(into: [(CallSeat, Result<ClientSession.Call, ApusError>)]()) { $0.append($1) }
        }
        var views: [(seat: CallSeat, view: ClientSession.Call)] = []
        for (seat, result) in results { views.append((seat, try result.get())) }
        return views
    }
}

/// A flag that is set once.
final class AtomicFlag: Sendable {
    private let value = Atomic<Bool>(false)
    /// False if it was set before.
    func set() -> Bool { !value.exchange(true, ordering: .relaxed) }
    var isSet: Bool { value.load(ordering: .relaxed) }
}
