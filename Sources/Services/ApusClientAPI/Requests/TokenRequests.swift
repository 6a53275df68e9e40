import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import Foundation
import SwiftProtobuf

// Tokens, by operators. A node issues tokens only where it was given the key that signs them.

extension ClientAPI {
    /// Adds the requests that issue and revoke tokens.
    ///
    /// - Parameters:
    ///   - signing: without a key where this node has none to sign with; a token cannot be issued here then (21025).
    ///   - wallSeconds: the cluster's time, in Unix seconds.
    package mutating func addTokenRequests(
        records: any RecordStore, signing: TokenSigning, cluster: ClusterID,
        wallSeconds: @escaping @Sendable () -> Int64
    ) {
        let records = SessionRecords(records)
        on(ClientRevokeTokensRequest.self) { request, _ throws(ApusError) in
            let now = wallSeconds()
            let keep = request.keepSeconds == 0 ? 400 * 86_400 : request.keepSeconds
            try await records.revoke(
                RevocationRecord(try request.subject(now: now), expires: now + keep), wallSeconds: now)
            return ClientRevokeTokensResponse()
        }
        on(ClientIssueTokenRequest.self) { request, _ throws(ApusError) in
            guard let signer = signing.current else { throw ApusError.noSigner }
            let claims = try request.claims(cluster: cluster, now: wallSeconds())
            let token = try signer.sign(claims)
            return .with {
                ($0.token, $0.id, $0.access, $0.expires) = (token, claims.jti ?? "", claims.sub, claims.exp)
            }
        }
    }
}

extension ClientRevokeTokensRequest {
    fileprivate func subject(now: Int64) throws(ApusError) -> RevocationRecord.Subject {
        if case .tokenID(let id)? = subject, !id.isEmpty { return .token(TokenMark.tag(of: id)) }
        let account = try AccountID(checking: account, "the account")
        let before = before == 0 ? now + 1 : before
        switch subject {
        case .identity(let identity)?:
            _ = try AccessID(checking: identity, "the identity")
            return .identity(identity, account, issuedBefore: before)
        case .all(true)?: return .account(account, issuedBefore: before)
        default: throw ApusError(.badParameter, "tokenId, identity or all is expected")
        }
    }
}

extension ClientIssueTokenRequest {
    fileprivate func claims(cluster: ClusterID, now: Int64) throws(ApusError) -> TokenClaims {
        guard let role = Session.Role(rawValue: role), role != .customer else {
            throw ApusError(.badParameter, "the role is device, app or admin")
        }
        let account = try AccountID(checking: account, "the account")
        let named = try devices.map { text throws(ApusError) in try DeviceID(checking: text, "a device's id") }
        guard role != .device || named.count == 1 else {
            throw ApusError(.badParameter, "a device's token names exactly one device")
        }
        guard id.utf8.count <= 255, id.utf8.allSatisfy({ (0x21...0x7e).contains($0) }) else {
            throw ApusError(.badParameter, "the id has at most 255 printable characters and no spaces")
        }
        let name =
            access.isEmpty
            ? (role == .device ? named[0].rawValue : "\(role.rawValue)-\(UUID().uuidString.prefix(8))") : access
        return TokenClaims(
            access: try AccessID(checking: name, "the access id"), account: account, role: role,
            device: role == .device ? named[0] : nil,
            devices: role == .device || named.isEmpty ? nil : named, issuedAt: now,
            lifetime: .seconds(lifetimeSeconds == 0 ? 3600 : lifetimeSeconds), cluster: cluster,
            id: id.isEmpty ? UUID().uuidString : id)
    }
}
