import ApusCore
import ApusHistory
import ApusLocal
import Foundation

/// A client of the registers of `apus-registers` over REST. It records each operation.
///
/// A request that is not answered is sent again with the same `Idempotency-Key`, at the next node, as a careful app
/// does. The outcome of an operation without an answer in `operationTimeout` is unknown.
///
/// Isolation: used by one task.
struct RegisterClient: Sendable {
    /// How long one attempt may take.
    static let attemptTimeout = Duration.milliseconds(700)
    /// How long an operation is repeated.
    static let operationTimeout = Duration.seconds(10)

    let number: Int
    /// The index of the node that it asks first.
    let first: Int
    let nodes: [HostPort]
    let token: String
    let history: HistoryRecorder

    /// The result of a request that was answered.
    private struct Answer: Decodable {
        var swapped: Bool?
        var value: String?
    }

    private enum Reply {
        case answered(Answer)
        /// Nobody knows whether it was carried out.
        case silent
        case refused(String)
    }

    /// Carries out one operation and records it.
    /// - Returns: the value of the register, if the answer has one.
    /// - Throws: 10018 if the cluster refuses the request as wrong, 10007 if the history is full.
    func operate(
        _ register: Register, _ request: RegisterOperation.Request, timeout: Duration = operationTimeout
    ) async throws(ApusError) -> UInt64? {
        let invocation = try history.invoke(client: number, entity: register.name, request: request)
        switch await send(register, request, timeout: timeout) {
        case .silent:
            history.returned(invocation, .unknown)
            return nil
        case .refused(let why):
            history.returned(invocation, .unknown)
            throw ApusError(.internalFailure, "\(request) of \(register.name): \(why)")
        case .answered(let answer):
            // protobuf's JSON omits a number that is 0.
            let value = answer.value.flatMap { UInt64($0) } ?? 0
            switch request {
            case .read: history.returned(invocation, .value(value))
            case .write: history.returned(invocation, .ok)
            case .compareAndSwap: history.returned(invocation, answer.swapped == true ? .ok : .mismatch(value))
            }
            return value
        }
    }

    private func send(_ register: Register, _ request: RegisterOperation.Request, timeout: Duration) async -> Reply {
        let path = "/v1/registers/\(register.name)"
        let isRecorded = register.isRecorded
        var (method, target, body) = ("POST", "\(path)/swap", String?.none)
        switch request {
        case .read: (method, target) = ("GET", "\(path)?recorded=\(isRecorded)")
        case .write(let value):
            target = "\(path)/write"
            body = #"{"recorded":\#(isRecorded),"value":"\#(value)"}"#
        case .compareAndSwap(let expected, let new):
            body = #"{"recorded":\#(isRecorded),"expected":"\#(expected)","value":"\#(new)"}"#
        }
        let answer = await NodeHTTP.sendRepeatedly(
            method, target, to: nodes, first: first, token: token, key: body == nil ? nil : UUID().uuidString,
            body: body, attemptTimeout: Self.attemptTimeout, timeout: timeout)
        guard let answer else { return .silent }
        guard answer.status == 200, let fields = try? JSONDecoder().decode(Answer.self, from: Data(answer.body))
        else { return .refused("\(answer.status) \(answer.text)") }
        return .answered(fields)
    }
}

/// A register of `apus-registers`.
struct Register: Sendable, Hashable {
    var name: String
    /// In the records; otherwise replicated.
    var isRecorded: Bool
}
