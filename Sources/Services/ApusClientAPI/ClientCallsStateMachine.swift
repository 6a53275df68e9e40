package import ApusCore

/// The requests of one connection that are in progress: which are carried out, which wait for an earlier one, and which
/// were cancelled (D17).
///
/// Requests are carried out concurrently. One with an order key waits for the earlier ones with the same key.
///
/// The client may cancel a request, and its deadline may pass. A cancelled request is not answered, and an overdue one
/// with 10005. One that waits is dropped. One that is carried out keeps its place until it ends, so that cancelling
/// makes no room for more work.
///
/// Bounds: ``callsMax`` requests, including cancelled ones that still run; one more is refused with 10007.
///
/// Pure: confined to its owner; time is a parameter.
package struct ClientCallsStateMachine<Work> {
    /// What is done with a request that came.
    package enum OnRequest {
        case start(Work)
        /// An earlier one with the same key goes first.
        case wait
        case refuse(ApusError)
    }

    /// What is done when a request has ended.
    package struct OnEnded {
        /// The client waits for the answer.
        package var answers: Bool
        /// The next one with the same key.
        package var next: (id: UInt32, work: Work)?
    }

    private enum State {
        case waiting(Work)
        case running
        /// It runs, and its answer is dropped.
        case abandoned
    }

    private struct Call {
        var state: State
        let key: String?
        let deadline: MonotonicTime
    }

    private let callsMax: Int
    private var calls: [UInt32: Call] = [:]
    /// By key: those that are in progress, the one that runs first.
    private var orders: [String: [UInt32]] = [:]

    package init(callsMax: Int) { self.callsMax = callsMax }

    package var count: Int { calls.count }

    /// A request came.
    ///
    /// - Parameter id: the client's number for it.
    package mutating func received(
        _ id: UInt32, key: String?, deadline: MonotonicTime, _ work: Work
    ) -> OnRequest {
        guard calls[id] == nil else {
            return .refuse(ApusError(.badParameter, "a request with this number is in progress"))
        }
        guard calls.count < callsMax else {
            return .refuse(ApusError(.overloaded, "too many requests of this connection are in progress"))
        }
        guard let key else {
            calls[id] = Call(state: .running, key: nil, deadline: deadline)
            return .start(work)
        }
        let isFirst = orders[key] == nil
        orders[key, default: []].append(id)
        calls[id] = Call(state: isFirst ? .running : .waiting(work), key: key, deadline: deadline)
        return isFirst ? .start(work) : .wait
    }

    /// What was started has ended.
    package mutating func ended(_ id: UInt32) -> OnEnded {
        guard let call = calls.removeValue(forKey: id) else { return OnEnded(answers: false, next: nil) }
        var result = OnEnded(answers: false, next: nil)
        if case .running = call.state { result.answers = true }
        guard let key = call.key else { return result }
        orders[key]?.removeAll { $0 == id }
        guard let next = orders[key]?.first, case .waiting(let work)? = calls[next]?.state else {
            if orders[key]?.isEmpty ?? true { orders[key] = nil }
            return result
        }
        calls[next]?.state = .running
        result.next = (next, work)
        return result
    }

    /// The client cancels a request. Returns true if the request runs, so that its task must be cancelled.
    package mutating func cancelled(_ id: UInt32) -> Bool {
        switch calls[id]?.state {
        case .running:
            calls[id]?.state = .abandoned
            return true
        case .waiting:
            drop(id)
            return false
        case .abandoned, nil: return false
        }
    }

    /// Requests whose deadlines have passed, by number: they are answered with 10005, and those that run are cancelled.
    package mutating func overdue(now: MonotonicTime) -> [(id: UInt32, runs: Bool)] {
        var result: [(id: UInt32, runs: Bool)] = []
        for id in calls.keys.sorted() {
            guard let call = calls[id], call.deadline <= now else { continue }
            switch call.state {
            case .running: result.append((id, true))
            case .waiting: result.append((id, false))
            case .abandoned: continue
            }
            _ = cancelled(id)
        }
        return result
    }

    /// The earliest deadline of a request that is waited for.
    package var nextDeadline: MonotonicTime? {
        calls.values.lazy.filter { call in
            if case .abandoned = call.state { false } else { true }
        }.map(\.deadline).min()
    }

    /// The connection has closed: nothing is answered, and waiting requests are dropped.
    ///
    /// - Returns: the numbers of the requests that run.
    package mutating func closed() -> [UInt32] {
        var running: [UInt32] = []
        for id in calls.keys.sorted() {
            switch calls[id]?.state {
            case .running:
                running.append(id)
                calls[id]?.state = .abandoned
            case .waiting: drop(id)
            case .abandoned, nil: break
            }
        }
        return running
    }

    private mutating func drop(_ id: UInt32) {
        guard let call = calls.removeValue(forKey: id), let key = call.key else { return }
        orders[key]?.removeAll { $0 == id }
        if orders[key]?.isEmpty ?? false { orders[key] = nil }
    }
}
