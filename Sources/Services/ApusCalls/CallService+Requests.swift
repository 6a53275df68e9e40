package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
package import ApusSessions
import Foundation
import SwiftProtobuf

extension CallService {
    /// The longest request: `extra` in JSON.
    private static let requestByteCountMax = 16 << 10

    /// Registers the requests, and the topic.
    package func add(to api: inout ClientAPI) {
        api.add(CallTopics(self))
        addPushRequests(to: &api)
        api.on(ClientStartCallRequest.self, byteCountMax: Self.requestByteCountMax) {
            [self] request, call throws(ApusError) in
            try await start(request, call)
        }
        // In the order in which a client reports them.
        api.on(ClientReportCallRequest.self, orderKey: { $0.call }) { [self] request, call throws(ApusError) in
            try await report(request, call)
        }
        api.on(ClientListCallsRequest.self) { [self] request, call throws(ApusError) in
            let limit = Int(min(request.pageSize == 0 ? 50 : request.pageSize, 500))
            let party = try await CallParty(
                device: request.device, account: request.account, call, records.sessions)
            let page = try await records.page(
                of: party, since: try await oldest(of: party, for: call), after: request.pageToken, limit: limit)
            return .with {
                $0.calls = page.calls.map { ClientCallRecord($0) }
                $0.nextPageToken = page.next
            }
        }
    }

    /// Calls of a device before this time are those of the account to which it belonged then. Unix milliseconds.
    private func oldest(of party: CallParty, for call: ClientCall) async throws(ApusError) -> Int64 {
        guard party.kind == .device, call.session.role != .admin else { return 0 }
        return try await records.sessions.record(of: DeviceID(unchecked: party.id))?.boundAtUnixMilliseconds ?? 0
    }
}

extension CallParty {
    /// The party whose calls, or messages, a request names: a device, or an account.
    ///
    /// - Throws: 12004 for another account, and for one whose token is for certain devices; 8002 for a device that does
    ///   not belong to the account; 20011 for one that is disabled, except for an operator.
    package init(
        device name: String, account: String, _ call: ClientCall, _ records: SessionRecords
    ) async throws(ApusError) {
        let named = name.isEmpty ? call.session.device?.rawValue ?? "" : name
        guard !named.isEmpty else {
            guard call.session.allowedDevices == nil else {
                throw ApusError(.notAllowed, "the token is for certain devices only")
            }
            self = .account(try call.account(named: account))
            return
        }
        let device = try DeviceID(checking: named, "the device's id")
        self = .device(device)
        if device == call.session.device { return }
        guard let record = try await records.record(of: device), call.session.role != .device,
            call.session.mayKnow(record),
            call.session.role == .admin || record.account == call.session.account
        else { throw ApusError(.targetUnknown, "no such device") }
        if call.session.role != .admin { try record.checkEnabled() }
    }
}

/// The topic by which a client takes calls: `calls/own`.
private struct CallTopics: ClientTopicKind {
    let name = CallService.topicKind
    let summary = "The calls of the client that subscribes; the key is `own`."
    let events = [ClientEventKind(ClientCallNotice.self)]
    private let service: CallService

    init(_ service: CallService) { self.service = service }

    func subscribe(_ topic: ClientTopic, after: TopicPosition?, _ call: ClientCall) async throws(ApusError) {
        guard topic.key == CallService.ownKey else { throw ApusError(.notAllowed, "a client takes its own calls only") }
        try await service.listen(call)
    }

    func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) async {
        if let connection = call.connection { service.leave(connection) }
    }

    func ended(_ connection: any ClientConnection) { service.leave(connection) }
}

extension ClientCallInfo {
    init(_ id: CallID, _ view: CallLegView) {
        self.init()
        (call, type, outgoing) = (id.rawValue, UInt32(view.type.rawValue), view.leg == 0)
        (answered, accepted, connected, ended) = (view.answered, view.accepted, view.connected, view.ended)
        (code, reason) = (view.number, view.reason.word)
    }
}

extension ClientCallNotice {
    init(_ notice: CallNotice, nowMs: Int64) {
        self.init()
        (call, type, outgoing) = (notice.call, UInt32(notice.type.rawValue), notice.isCaller)
        stage = ClientCallStage(rawValue: notice.stage.rawValue) ?? .unspecified
        if notice.hasPeer { peer = ClientCallParty(notice.peer) }
        extra = String(decoding: notice.extra, as: UTF8.self)
        timeoutMs = UInt32(clamping: max(0, notice.ringEndMs - nowMs))
        (code, reason, message) = (notice.number, notice.reason.word, notice.message)
    }
}

extension ClientCallParty {
    init(_ party: CallParty) {
        self.init()
        if party.kind == .device { device = party.id } else { account = party.id }
    }
}

extension ClientCallRecord {
    init(_ state: CallState) {
        self.init()
        (call, type) = (state.id, UInt32(state.type.rawValue))
        let parties = state.claims.map { ClientCallParty($0.party) }
        if let first = parties.first { caller = first }
        called = Array(parties.dropFirst())
        if state.winner != 0, Int(state.winner) < state.legs.count {
            let claim = Int(state.legs[Int(state.winner)].claim)
            if claim < parties.count { winner = parties[claim] }
        }
        (startedMs, rangMs, acceptedMs) = (state.startedMs, state.respondedMs, state.acceptedMs)
        (connectedMs, endedMs, reason) = (state.connectedMs, state.endedMs, state.end.reason.word)
        messageMs = state.messageMs
    }
}

extension CallEndReason {
    /// The name in the API; empty for none.
    var word: String {
        switch self {
        case .unspecified: ""
        case .hungUp: "hung_up"
        case .cancelled: "cancelled"
        case .rejected: "rejected"
        case .busy: "busy"
        case .notAnswered: "not_answered"
        case .unreachable: "unreachable"
        case .onCalling: "on_calling"
        case .glare: "glare"
        case .connectTimedOut: "connect_timed_out"
        case .durationEnded: "duration_ended"
        case .lost: "lost"
        case .failed: "failed"
        case .answeredByOthers: "answered_by_others"
        case .messageLeft: "message_left"
        case .UNRECOGNIZED(let number): "reason_\(number)"
        }
    }
}
