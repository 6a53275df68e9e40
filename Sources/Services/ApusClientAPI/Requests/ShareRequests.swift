import ApusContract
import ApusCore
package import ApusSessions
package import ApusStorage
import SwiftProtobuf

// Which accounts may use a device (IV-B8, IV-B10, docs/sharing.md). The owner of the device's session decides.

extension ClientAPI {
    /// Adds the requests that unbind, transfer and share devices.
    package mutating func addShareRequests(_ sessions: SessionService, records: any RecordStore) {
        let records = SessionRecords(records)
        @Sendable func relate(
            _ device: String, _ change: DeviceRelationChange, _ call: ClientCall
        ) async throws(ApusError) {
            let device = try DeviceID(checking: device, "the device's id")
            try await sessions.relate(device, change, for: call.session)
        }
        @Sendable func account(_ text: String) throws(ApusError) -> AccountID {
            try AccountID(checking: text, "the account")
        }
        on(ClientUnbindDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await relate(request.device, .handOver(to: nil, keepsData: request.keepData), call)
            return ClientUnbindDeviceResponse()
        }
        on(ClientTransferDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let next = try account(request.account)
            try await relate(request.device, .handOver(to: next, keepsData: request.keepData), call)
            return ClientTransferDeviceResponse()
        }
        on(ClientShareDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let share = DeviceShare(account: try account(request.account), control: request.control)
            // An integrator, and an operator, decide for their users.
            try await relate(request.device, call.session.role == .app ? .invite(share) : .share(share), call)
            let record = try await records.record(of: DeviceID(unchecked: request.device))
            return .with { $0.invited = record?.invitations.contains(share) ?? false }
        }
        on(ClientAcceptShareRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await relate(request.device, .accept(call.session.account), call)
            return ClientAcceptShareResponse()
        }
        on(ClientListInvitationsRequest.self) { request, call throws(ApusError) in
            let last = try request.pageToken.isEmpty ? nil : DeviceID(checking: request.pageToken, "pageToken")
            let limit = Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500))
            let own = call.session.account
            let found = try await records.invitations(of: own, after: last, limit: limit)
            return .with {
                $0.invitations = found.map { record in
                    .with {
                        ($0.device, $0.account) = (record.device.rawValue, record.account?.rawValue ?? "")
                        $0.control = record.invitations.contains { $0.account == own && $0.control }
                    }
                }
                if found.count == limit { $0.nextPageToken = found.last?.device.rawValue ?? "" }
            }
        }
        on(ClientUnshareDeviceRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await relate(request.device, .unshare(try account(request.account)), call)
            return ClientUnshareDeviceResponse()
        }
        on(ClientListSharesRequest.self) { request, call throws(ApusError) in
            let device = try DeviceID(checking: request.device, "the device's id")
            guard let record = try await records.record(of: device), call.session.mayKnow(record) else {
                throw ApusError(.targetUnknown, "no such device")
            }
            // A guest sees its own share only.
            let isOwner = call.session.role != .app || record.account == call.session.account
            return .with {
                $0.shares = record.shares.filter { isOwner || $0.account == call.session.account }.map { share in
                    .with { ($0.account, $0.control) = (share.account.rawValue, share.control) }
                }
                guard isOwner else { return }
                $0.shares += record.invitations.map { share in
                    .with { ($0.account, $0.control, $0.invited) = (share.account.rawValue, share.control, true) }
                }
            }
        }
    }
}
