import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import CoreMetrics
import SwiftProtobuf

// The requests of accounts about the codes that devices show.

extension DeviceAuthorizationService {
    func addRequests(to api: inout ClientAPI) {
        api.on(ClientGetAuthorizationRequest.self) { [self] request, call throws(ApusError) in
            try takeAttempt(nil, of: call.session.account)
            let code = try Self.userCode(request.userCode)
            guard let stored = try await records.code(code) else { throw Self.unknown }
            try DeviceCodeStateMachine(stored).check(call.session.account, at: milliseconds)
            return ClientAuthorization(stored)
        }
        api.on(ClientApproveAuthorizationRequest.self) { [self] request, call throws(ApusError) in
            try takeAttempt(nil, of: call.session.account)
            let code = try Self.userCode(request.userCode)
            guard let stored = try await records.code(code) else { throw Self.unknown }
            try DeviceCodeStateMachine(stored).check(call.session.account, at: milliseconds)
            // It comes first: an account that cannot have the device approves nothing. If the node dies in between, the
            // device is bound on the account's word, and has no token yet.
            try await sessions.claim(DeviceID(unchecked: stored.device), for: call.session)
            let approved = try await decide(code, isApproved: true, call)
            self.approved.increment()
            return approved
        }
        api.on(ClientRefuseAuthorizationRequest.self) { [self] request, call throws(ApusError) in
            try takeAttempt(nil, of: call.session.account)
            let refused = try await decide(try Self.userCode(request.userCode), isApproved: false, call)
            self.refused.increment()
            return refused
        }
    }

    private func decide(
        _ code: UserCode, isApproved: Bool, _ call: ClientCall
    ) async throws(ApusError) -> ClientAuthorization {
        let approver = AuthorizationApprover(Authority(call.session))
        return ClientAuthorization(
            try await records.change(code) { machine throws(ApusError) in
                try machine.decide(isApproved: isApproved, by: approver, at: milliseconds)
                return nil
            })
    }

    private static func userCode(_ text: String) throws(ApusError) -> UserCode {
        guard let code = UserCode(text) else {
            throw ApusError(.badParameter, "a code has eight letters, such as WDJB-MJHT")
        }
        return code
    }

    private static var unknown: ApusError {
        ApusError(.targetUnknown, "there is no such code, or it has expired")
    }
}

extension ClientAuthorization {
    fileprivate init(_ stored: AuthorizationStoredCode) {
        self.init()
        userCode = UserCode(stored.userCode)?.description ?? ""
        (device, client) = (stored.device, stored.client)
        (requestedMs, expiresMs) = (stored.createdMs, stored.expiresMs)
        state =
            switch stored.decision {
            case .unspecified: .pending
            case .approved, .used: .approved
            case .refused: .refused
            case .UNRECOGNIZED: .unspecified
            }
    }
}
