import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import SwiftProtobuf

// The requests of clients. A device uses its own timers, and an app those of a device that it may control.

extension TimerService {
    func addRequests(to api: inout ClientAPI) {
        api.on(ClientSetTimerRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let (device, since) = try await timers(of: request.device, call)
            let due = try Self.due(request)
            return try await set(
                due, request.label, device, call.session.account, since, call.entityCall, timeout: try call.timeLeft())
        }
        api.on(ClientListTimersRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let (device, since) = try await timers(of: request.device, call)
            let list = TimerList.with { $0.dataSinceMs = since }
            let answer = try await ask(list, device, timeout: try call.timeLeft())
            return .with {
                $0.timers = answer.clientTimers
                ($0.version, $0.nowMs) = (answer.version, answer.nowMs)
            }
        }
        api.on(ClientCancelTimerRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let (device, since) = try await timers(of: request.device, call)
            let selection = try TimerSelection(request.id)
            let cancel = TimerCancel.with { ($0.dataSinceMs, $0.which) = (since, selection.message) }
            let answer = try await ask(cancel, device, call.entityCall, timeout: try call.timeLeft())
            return .with { $0.timers = answer.clientTimers }
        }
        api.on(ClientChangeTimerRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let (device, since) = try await timers(of: request.device, call)
            let isPaused = try Self.isPaused(request.change)
            let change = TimerChange.with { ($0.dataSinceMs, $0.id, $0.paused) = (since, request.id, isPaused) }
            return try await ask(change, device, call.entityCall, timeout: try call.timeLeft()).clientTimer()
        }
        api.on(ClientStopRingingRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let (device, since) = try await timers(of: request.device, call)
            let stop = TimerStop.with { $0.dataSinceMs = since }
            let answer = try await ask(stop, device, call.entityCall, timeout: try call.timeLeft())
            return .with { $0.timers = answer.clientTimers }
        }
    }

    /// The device that a request concerns, after the check of the right to its timers, and the time since which its
    /// data belongs to its account.
    private func timers(
        of text: String, _ call: ClientCall
    ) async throws(ApusError) -> (device: DeviceID, since: UInt64) {
        let device = try Self.device(text, call.session)
        return (device, try await generation(of: device, for: call.session))
    }

    /// The device of the session, or the named one if the client is not a device. Throws 12004 and 21031.
    private static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has access to its own timers only")
        }
        return own
    }

    /// - Throws: 21031 unless the request has a duration or a time.
    private static func due(_ request: ClientSetTimerRequest) throws(ApusError) -> TimerDue {
        switch (request.durationMs, request.dueMs) {
        case (1..., 0): .after(.milliseconds(request.durationMs))
        case (0, 1...): .at(request.dueMs)
        default: throw ApusError(.badParameter, "a timer has a duration, and an alarm clock a time")
        }
    }

    /// - Throws: 21031 if the change is not one of the two.
    private static func isPaused(_ change: ClientTimerChange) throws(ApusError) -> Bool {
        switch change {
        case .pause: true
        case .resume: false
        case .unspecified, .UNRECOGNIZED: throw ApusError(.badParameter, "the change is to pause or to resume")
        }
    }
}

extension TimerSelection {
    /// - Throws: 21031 if the text is neither a number, `ringing` nor `all`.
    fileprivate init(_ text: String) throws(ApusError) {
        switch text {
        case "ringing": self = .ringing
        case "all": self = .all
        default:
            guard let id = UInt32(text), "\(id)" == text, (1...TimerStateMachine.Limits.idMax).contains(id) else {
                throw ApusError(.badParameter, "a timer is named by its number, or by `ringing` or `all`")
            }
            self = .id(id)
        }
    }
}
