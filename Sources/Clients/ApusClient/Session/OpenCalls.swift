package import ApusContract
import ApusCore
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

/// The calls in which a client has a part, as far as its requests and notices say. The newest are kept.
///
/// A call is replicated, and not recorded, so it ends with the death of all nodes that have it. Nobody is left then who
/// could tell its clients: each asks when its subscription of calls begins again.
///
/// Pure value.
package struct OpenCalls: Sendable {
    /// More than a client has at the same time.
    package static let countMax = 16

    package struct Call: Sendable, Equatable {
        package var id: String
        /// The last one that the client was notified of.
        package var stage: ClientCallStage
        package var isOutgoing: Bool
    }

    package private(set) var calls: [Call] = []

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

    private mutating func add(_ call: Call) {
        ended(call.id)
        calls.append(call)
        if calls.count > Self.countMax { calls.removeFirst() }
    }
}

extension ClientSession {
    static let callTopic = "calls/own"
    private static let checkAgain = TimeAmount.seconds(1)

    /// The subscription of calls has begun again: asks whether the cluster still knows those of this client. On the
    /// loop.
    func checkCalls(on connection: ClientConnection) {
        for call in openCalls.withLock({ $0.calls }) {
            let question = Self.event(.confirmed, of: call.id, stage: call.stage)
            connection.ask(ClientReportCallRequest.info.number, question, timeout: nil) { [weak self] result in
                guard case .failure(let error) = result, let self, connection === active else { return }
                if error.code == .callUnknown { return callLost(call.id) }
                guard !Self.isLasting(error) else { return }
                eventLoop.assumeIsolated().scheduleTask(in: Self.checkAgain) { [weak self] in
                    guard let self, connection === active else { return }
                    checkCalls(on: connection)
                }
            }
        }
    }

    private func callLost(_ id: String) {
        guard let notice = openCalls.withLock({ $0.lost(id) }), let topic = topics[Self.callTopic],
            let message: [UInt8] = try? notice.serializedBytes()
        else { return }
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
