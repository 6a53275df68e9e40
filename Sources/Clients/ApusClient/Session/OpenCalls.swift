package import ApusContract
package import ApusCore
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

/// The calls in which a client has a part, as far as its requests and notices say. The newest are kept.
///
/// A call is replicated, and not recorded, so it ends with the death of all nodes that have it. Nobody is left then who
/// could tell its clients: each asks when its subscription of calls begins again. There is one question for a call at a
/// time, also if the subscription begins at several connections. After an error that passes it is asked again after a
/// pause, which doubles.
///
/// Pure value.
package struct OpenCalls: Sendable {
    /// More than a client has at the same time.
    package static let countMax = 16
    /// The pause after the first question that fails.
    package static let pauseMin = Duration.seconds(1)
    /// The longest pause between two questions about a call.
    package static let pauseMax = Duration.seconds(8)

    package struct Call: Sendable, Equatable {
        package var id: String
        /// The last one that the client was notified of.
        package var stage: ClientCallStage
        package var isOutgoing: Bool
    }

    /// What follows from the answer to a question.
    package enum Step: Sendable, Equatable {
        /// There is no further question: the cluster knows the call, or it has ended for this client, or the next
        /// connection asks.
        case done
        /// The call has ended.
        case lost(ClientCallNotice)
        /// ``OpenCalls/again(_:at:active:)`` is due after a pause.
        case again(after: Duration, at: LinkStateMachine.AttemptID)
    }

    private struct Question: Sendable {
        /// The connection at which the subscription of calls began last.
        var connection: LinkStateMachine.AttemptID
        /// It waits for its answer, there or at an earlier connection. Otherwise its pause runs.
        var isSent = true
        var pauses = Backoff(first: OpenCalls.pauseMin, longest: OpenCalls.pauseMax)
    }

    package private(set) var calls: [Call] = []
    /// By call. A question ends with its answer or after its pause, also if its call has ended.
    private var questions: [String: Question] = [:]

    package init() {}

    /// This client has placed a call.
    package mutating func placed(_ id: String) { add(Call(id: id, stage: .ring, isOutgoing: true)) }

    /// This client was notified of a call.
    package mutating func noticed(_ notice: ClientCallNotice) {
        guard notice.stage != .ended else { return ended(notice.call) }
        add(Call(id: notice.call, stage: notice.stage, isOutgoing: notice.outgoing))
    }

    /// This client has reported an event of a call.
    package mutating func reported(_ event: ClientCallEvent, of id: String) {
        switch event {
        case .hungUp, .cancelled, .rejected, .busy, .failed: ended(id)
        default: break
        }
    }

    /// The cluster does not know the call. Returns the notice of its end; nil if it has ended for this client already.
    package mutating func lost(_ id: String) -> ClientCallNotice? {
        guard let call = calls.first(where: { $0.id == id }) else { return nil }
        ended(id)
        return .with {
            ($0.call, $0.stage, $0.outgoing) = (id, .ended, call.isOutgoing)
            ($0.code, $0.reason) = (ErrorCode.mediaDisconnected.number, "lost")
        }
    }

    package mutating func ended(_ id: String) { calls.removeAll { $0.id == id } }

    /// The subscription of calls has begun at a connection. Returns the calls to ask about there.
    package mutating func begin(at connection: LinkStateMachine.AttemptID) -> [Call] {
        var asked: [Call] = []
        for call in calls where questions[call.id]?.connection != connection {
            let isSent = questions[call.id]?.isSent ?? false
            questions[call.id] = Question(connection: connection)
            // The answer at the earlier connection comes first, or the end of that connection.
            if !isSent { asked.append(call) }
        }
        return asked
    }

    /// The question about a call is answered at a connection.
    ///
    /// - Parameters:
    ///   - active: the session's connection; nil if it has none.
    ///   - error: nil if the cluster knows the call.
    package mutating func answered(
        _ id: String, at connection: LinkStateMachine.AttemptID, active: LinkStateMachine.AttemptID?,
        _ error: ApusError?
    ) -> Step {
        guard var question = questions.removeValue(forKey: id), calls.contains(where: { $0.id == id }) else {
            return .done
        }
        guard question.connection == connection else {
            // The subscription has begun at another connection meanwhile.
            question.isSent = false
            questions[id] = question
            return .again(after: .zero, at: question.connection)
        }
        guard connection == active, let error else { return .done }
        if error.code == .callUnknown { return lost(id).map { Step.lost($0) } ?? .done }
        guard !ClientSession.isLasting(error) else { return .done }
        let pause = question.pauses.next()
        question.isSent = false
        questions[id] = question
        return .again(after: pause, at: connection)
    }

    /// The pause of a question is over. Returns the call to ask about; nil if there is no need any more.
    package mutating func again(
        _ id: String, at connection: LinkStateMachine.AttemptID, active: LinkStateMachine.AttemptID?
    ) -> Call? {
        guard var question = questions[id], !question.isSent, question.connection == connection else { return nil }
        guard connection == active, let call = calls.first(where: { $0.id == id }) else {
            questions[id] = nil
            return nil
        }
        question.isSent = true
        questions[id] = question
        return call
    }

    private mutating func add(_ call: Call) {
        ended(call.id)
        calls.append(call)
        if calls.count > Self.countMax { calls.removeFirst() }
    }
}

extension ClientSession {
    static let callTopic = "calls/own"

    /// The subscription of calls has begun again: asks whether the cluster still knows those of this client. On the
    /// loop.
    func checkCalls(on connection: ClientConnection) {
        // The answer of a retiring connection may come after that of the next one.
        guard connection === active else { return }
        for call in openCalls.withLock({ $0.begin(at: connection.id) }) { check(call, on: connection) }
    }

    private func check(_ call: OpenCalls.Call, on connection: ClientConnection) {
        let (id, link) = (call.id, connection.id)
        let question = Self.event(.confirmed, of: id, stage: call.stage)
        connection.ask(ClientReportCallRequest.info.number, question, timeout: nil) { [weak self] result in
            self?.checked(id, at: link, result)
        }
    }

    private func checked(_ id: String, at link: LinkStateMachine.AttemptID, _ result: Result<ByteBuffer, ApusError>) {
        let error: ApusError? = if case .failure(let failure) = result { failure } else { nil }
        let current = active?.id
        switch openCalls.withLock({ $0.answered(id, at: link, active: current, error) }) {
        case .done: break
        case .lost(let notice): callLost(notice)
        case .again(let pause, let link):
            eventLoop.assumeIsolated().scheduleTask(in: TimeAmount(pause)) { [weak self] () -> Void in
                self?.checkAgain(id, at: link)
            }
        }
    }

    private func checkAgain(_ id: String, at link: LinkStateMachine.AttemptID) {
        let current = active?.id
        let call = openCalls.withLock { $0.again(id, at: link, active: current) }
        if let call, let active { check(call, on: active) }
    }

    private func callLost(_ notice: ClientCallNotice) {
        guard let topic = topics[Self.callTopic], let message: [UInt8] = try? notice.serializedBytes() else { return }
        topic.heard(
            .with {
                ($0.topic, $0.type, $0.message) = (Self.callTopic, ClientCallNotice.info.number, Data(message))
            })
    }

    /// Reports an event of a call without waiting.
    func post(_ event: ClientCallEvent, of id: String) {
        openCalls.withLock { $0.reported(event, of: id) }
        post(Self.event(event, of: id))
    }
}
