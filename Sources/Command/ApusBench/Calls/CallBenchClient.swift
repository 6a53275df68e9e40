import ApusClient
import ApusCore
import Synchronization

/// A client that takes calls, and when it received each notice of them.
///
/// Concurrency model: any thread. A `Mutex` guards what was received and who waits.
final class CallBenchClient: Sendable {
    enum Stage: String, Hashable, Sendable {
        case ring, ringing, accepted, ended
    }

    struct Notice: Sendable {
        let time: MonotonicTime
        /// With the end of a call; nil for a normal one.
        let error: ApusError?
    }

    private struct Wait {
        let stage: Stage
        let deadline: MonotonicTime
        let continuation: CheckedContinuation<Result<Notice, ApusError>, Never>
    }

    private struct State {
        var notices: [String: [Stage: Notice]] = [:]
        /// The calls of ``notices``, the oldest first.
        var calls: [String] = []
        /// By call: one at a time.
        var waits: [String: Wait] = [:]
        var isClosed = false
        var faults = Faults()
    }

    /// What must not happen to a client that takes calls.
    struct Faults: Sendable {
        /// Rings of a call that had rung before, or was over for this client.
        var ghostRings = 0
        /// Other notices that were passed on twice, or came after the end.
        var lateNotices = 0
    }

    /// How long a notice may take. After that its call has failed.
    private static let noticeTimeMax = Duration.seconds(10)
    /// The calls whose notices are kept.
    private static let callsMax = 8

    let session: ClientSession
    private let state = Mutex(State())

    init(_ session: ClientSession) { self.session = session }

    /// Takes calls until the task is cancelled.
    func run() async {
        do {
            for try await notice in session.calls() { received(notice) }
        } catch {
            if !Task.isCancelled { BenchScope.say("a client takes no calls any more: \(error)") }
        }
        close()
    }

    /// Waits until the client takes calls, since it cannot place one before.
    func ready() async throws {
        var last = ApusError(.unavailable)
        for _ in 0..<100 {
            do throws(ApusError) {
                _ = try await session.startCall(to: [.device(DeviceID(unchecked: "nobody"))])
            } catch {
                if error.code == .callRequestFailed { return }
                last = error
            }
            try await Task.sleep(for: .milliseconds(100))
        }
        throw last
    }

    private func received(_ notice: ClientSession.CallNotice) {
        let time = MonotonicTime.now()
        switch notice.stage {
        case .ring: note(.ring, Notice(time: time, error: nil), of: notice.call)
        case .ringing: note(.ringing, Notice(time: time, error: nil), of: notice.call)
        case .accepted, .message: note(.accepted, Notice(time: time, error: nil), of: notice.call)
        case .ended(let error, _): note(.ended, Notice(time: time, error: error), of: notice.call)
        }
    }

    private func note(_ stage: Stage, _ notice: Notice, of call: String) {
        let wait = state.withLock { state -> Wait? in
            if state.notices[call] == nil {
                state.calls.append(call)
                if state.calls.count > Self.callsMax { state.notices[state.calls.removeFirst()] = nil }
            }
            let known = state.notices[call, default: [:]]
            if known[stage] != nil || known[.ended] != nil {
                if stage == .ring { state.faults.ghostRings += 1 } else { state.faults.lateNotices += 1 }
            }
            // The first counts.
            if known[stage] == nil { state.notices[call, default: [:]][stage] = notice }
            guard let wait = state.waits[call], stage == wait.stage || stage == .ended else { return nil }
            return state.waits.removeValue(forKey: call)
        }
        wait?.continuation.resume(returning: Self.result(wait?.stage == stage, notice))
    }

    /// This client has ended the call itself, and the cluster has acknowledged that: it gets no notice of it.
    func endedItself(_ call: String) {
        state.withLock { $0.notices[call, default: [:]][.ended] = Notice(time: .now(), error: nil) }
    }

    /// A notice that has come; nil if it has not.
    func notice(_ stage: Stage, of call: String) -> Notice? { state.withLock { $0.notices[call]?[stage] } }

    /// The calls that have rung here, and when, of those that are kept.
    var rings: [String: MonotonicTime] { state.withLock { $0.notices.compactMapValues { $0[.ring]?.time } } }

    var faults: Faults { state.withLock { $0.faults } }

    /// A call that has ended has no further stage.
    private static func result(_ isWanted: Bool, _ notice: Notice) -> Result<Notice, ApusError> {
        isWanted ? .success(notice) : .failure(notice.error ?? ApusError(.peerHungUp))
    }

    /// The notice of a stage, as soon as it is received.
    ///
    /// - Throws: 10005 if it does not come in time, and the number of the end if the call ends before.
    func next(_ stage: Stage, of call: String) async throws(ApusError) -> Notice {
        let result = await withCheckedContinuation { continuation in
            let known = state.withLock { state -> Result<Notice, ApusError>? in
                if let notice = state.notices[call]?[stage] { return .success(notice) }
                if let end = state.notices[call]?[.ended] { return Self.result(false, end) }
                guard !state.isClosed, state.waits[call] == nil else { return .failure(ApusError(.cancelled)) }
                state.waits[call] = Wait(
                    stage: stage, deadline: .now() + Self.noticeTimeMax, continuation: continuation)
                return nil
            }
            if let known { continuation.resume(returning: known) }
        }
        return try result.get()
    }

    /// Ends what has waited for too long.
    func expire(at now: MonotonicTime) {
        end { $0.deadline <= now }
    }

    private func close() {
        state.withLock { $0.isClosed = true }
        end { _ in true }
    }

    private func end(where isOver: (Wait) -> Bool) {
        let over = state.withLock { state in
            let over = state.waits.filter { isOver($0.value) }
            for call in over.keys { state.waits[call] = nil }
            return over.values.map(\.continuation)
        }
        for continuation in over { continuation.resume(returning: .failure(ApusError(.deadlineExceeded))) }
    }
}
