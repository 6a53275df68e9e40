import ApusClient
import ApusCore

/// The state in which the death of a node meets a call, and what the call does then.
enum CallKillKind: String, CaseIterable, Sendable {
    case placing
    case placingCancelled = "placing_cancelled"
    case ringing
    case accepting
    case rejecting
    case cancelling
    case timingOut = "timing_out"
    case accepted
    case failing
    case connected
    case hangingUp = "hanging_up"
    case busy
    case declining
    case forked
    case media

    var says: String {
        switch self {
        case .placing: "placing; then accepted, connected, hung up"
        case .placingCancelled: "placing; cancelled at once"
        case .ringing: "ringing; accepted later"
        case .accepting: "ringing; accepted meanwhile"
        case .rejecting: "ringing; rejected meanwhile"
        case .cancelling: "ringing; cancelled meanwhile"
        case .timingOut: "ringing; times out meanwhile"
        case .accepted: "accepted; connected later"
        case .failing: "accepted; an exception meanwhile"
        case .connected: "connected; hung up later"
        case .hangingUp: "connected; hung up meanwhile"
        case .busy: "connected; another call to the callee meanwhile"
        case .declining: "ringing at 2; 1 rejects meanwhile, 1 accepts later"
        case .forked: "ringing at 3; all accept at once"
        case .media: "connected, with media through all kills"
        }
    }

    /// Kinds of one caller and one called device.
    static let pairs: [CallKillKind] = [
        .placing, .placingCancelled, .ringing, .accepting, .rejecting, .cancelling, .timingOut, .accepted, .failing,
        .connected, .hangingUp,
    ]

    /// Brought into their state shortly before the kill: they end by themselves soon.
    var isShort: Bool { self == .timingOut || self == .accepted || self == .failing }

    /// The calls in progress of one script.
    var callCount: Int { self == .busy ? 2 : 1 }
}

/// A call that did not go as it should.
struct CallKillMiss: Error {
    enum Kind: String, CaseIterable, Sendable {
        /// It ended otherwise than its script expects, or a request was refused.
        case dropped
        /// No end, or no other notice, within the bound.
        case stuck
        /// No leg has won, or more than one, or the caller has heard of another one.
        case wrongWinner = "wrong_winner"
        /// A time-out that came too early or too late.
        case wrongTime = "wrong_time"
    }

    let kind: Kind
    let text: String
}

/// One call of a round: its parties, and when it acts.
struct CallKillScript: Sendable {
    let kind: CallKillKind
    let caller: CallSeat
    let callees: [CallSeat]
    /// Calls the callee meanwhile, with ``CallKillKind/busy``.
    var other: CallSeat?
    /// Alternates who hangs up.
    let isOdd: Bool
    /// When it acts, from the kill on…
    let meanwhile: Duration
    /// …and later.
    let later: Duration
    /// Everything has happened by then.
    let window: Duration
    /// The time-out of ``CallKillKind/timingOut``.
    let ringTime: Duration
    let gate: KillGate
    let ledger: CallKillLedger

    /// The ring time of calls that are to ring until they are answered.
    private static let longRingTime = Duration.seconds(90)
    /// How long a client may need to return after the death of its node. Until then a call to it is refused (8000).
    private static let returnTime = Duration.seconds(5)
    private static let retryDelay = Duration.milliseconds(100)

    var callee: CallSeat { callees[0] }

    /// Runs the call to its end.
    ///
    /// - Returns: how it has failed; nil if it went as it should.
    func run() async -> CallKillMiss? {
        await gate.enter()
        let preparation = Preparation(gate)
        defer { preparation.end() }
        do throws(CallKillMiss) {
            try await carryOut(preparation)
            return nil
        } catch {
            return error
        }
    }

    /// Releases the permit of a call once.
    final class Preparation: Sendable {
        private let gate: KillGate
        private let isOver = AtomicFlag()
        init(_ gate: KillGate) { self.gate = gate }
        func end() { if isOver.set() { gate.leave() } }
    }

    // MARK: - Steps

    /// Carries out a step. What takes too long is stuck, any other error a drop.
    func step<Value>(
        _ name: String, _ body: () async throws(ApusError) -> Value
    ) async throws(CallKillMiss) -> Value {
        do throws(ApusError) {
            return try await body()
        } catch {
            let isLate = error.code == .deadlineExceeded || error.code == .answerTimedOut
            throw CallKillMiss(kind: isLate ? .stuck : .dropped, text: "\(name): \(error.code.number)")
        }
    }

    func expect(_ isRight: Bool, _ text: @autoclosure () -> String) throws(CallKillMiss) {
        guard !isRight else { return }
        throw CallKillMiss(kind: .dropped, text: text())
    }

    func wait(_ offset: Duration) async throws(CallKillMiss) {
        try await step("wait") { () throws(ApusError) in try await gate.wait(until: offset) }
    }

    /// Places the call, as soon as a client of the called parties is there.
    func place(_ type: ClientSession.CallType = .oneToOne, timeout: Duration? = nil) async throws(CallKillMiss)
        -> String
    {
        let targets = callees.compactMap(\.device).map { ClientSession.CallParty.device($0) }
        return try await place(from: caller, to: targets, type, timeout: timeout ?? Self.longRingTime)
    }

    func place(
        from caller: CallSeat, to targets: [ClientSession.CallParty], _ type: ClientSession.CallType, timeout: Duration
    ) async throws(CallKillMiss) -> String {
        let deadline = MonotonicTime.now() + Self.returnTime
        return try await step("start") { () throws(ApusError) in
            while true {
                do throws(ApusError) {
                    let call = try await caller.session.startCall(to: targets, type: type, timeout: timeout).id
                    ledger.placed(call)
                    return call
                } catch {
                    guard error.code == .targetOffline, MonotonicTime.now() < deadline else { throw error }
                    ledger.refused()
                }
                guard (try? await Task.sleep(for: Self.retryDelay)) != nil else { throw ApusError(.cancelled) }
            }
        }
    }

    func rings(_ call: String) async throws(CallKillMiss) {
        for callee in callees {
            try await step("ring") { () throws(ApusError) in _ = try await callee.client.next(.ring, of: call) }
        }
        try await step("ringing") { () throws(ApusError) in _ = try await caller.client.next(.ringing, of: call) }
    }

    func ring(_ type: ClientSession.CallType = .oneToOne, timeout: Duration? = nil) async throws(CallKillMiss) -> String
    {
        let call = try await place(type, timeout: timeout)
        try await rings(call)
        return call
    }

    func accept(_ call: String, at callee: CallSeat) async throws(CallKillMiss) {
        let view = try await step("accept") { () throws(ApusError) in try await callee.session.acceptCall(call) }
        try expect(view.isAccepted && !view.isEnded, "accept: ended with \(view.error?.code.number ?? 0)")
        try await step("accepted") { () throws(ApusError) in _ = try await caller.client.next(.accepted, of: call) }
    }

    func connect(_ call: String, _ callee: CallSeat) async throws(CallKillMiss) {
        var isConnected = false
        for seat in [callee, caller] {
            let view = try await step("connect") { () throws(ApusError) in
                try await seat.session.reportCallConnected(call)
            }
            isConnected = view.isConnected
        }
        try expect(isConnected, "connect: the call is not connected")
    }

    /// One side ends the call, and the others learn that.
    func end(
        _ call: String, by seat: CallSeat, _ ends: [(seat: CallSeat, code: ErrorCode)],
        _ request: (ClientSession) async throws(ApusError) -> ClientSession.Call
    ) async throws(CallKillMiss) {
        let start = MonotonicTime.now()
        let view = try await step("end") { () throws(ApusError) in try await request(seat.session) }
        try expect(view.isEnded && view.error == nil, "end: \(view.error?.code.number ?? 0)")
        seat.client.endedItself(call)
        for (other, code) in ends { ledger.ended(after: try await end(other, call, code) - start) }
    }

    /// The end of the call as a client learns it.
    @discardableResult
    func end(_ seat: CallSeat, _ call: String, _ code: ErrorCode) async throws(CallKillMiss) -> MonotonicTime {
        let notice = try await step("no end") { () throws(ApusError) in try await seat.client.next(.ended, of: call) }
        try expect(
            notice.error?.code == code,
            "ended with \(notice.error?.code.number ?? 0), and not with \(code.number), at the "
                + (seat === caller ? "caller" : "callee"))
        return notice.time
    }

    func hangUp(_ call: String, _ callee: CallSeat) async throws(CallKillMiss) {
        let (one, other) = isOdd ? (callee, caller) : (caller, callee)
        try await end(call, by: one, [(other, .peerHungUp)]) { (session) throws(ApusError) in
            try await session.hangUpCall(call)
        }
    }
}
