package import ApusCore
import SwiftProtobuf

/// The states of a device code: pending, approved or refused, and used (RFC 8628 §3.5). It expires in any of them.
///
/// A decision can be changed until the device has fetched its token, by the account that has made it. A code is used
/// once.
///
/// Pure: time comes in, in Unix milliseconds of the cluster's clock.
package struct DeviceCodeStateMachine: Sendable {
    /// What the device receives when it asks for its token.
    package enum Poll: Sendable, Hashable {
        case pending
        case refused
        case expired
        /// The token was issued before.
        case used
        /// The token is to be issued on the word of this approver.
        case approved(AuthorizationApprover)
    }

    package private(set) var code: AuthorizationStoredCode

    package init(_ code: AuthorizationStoredCode) { self.code = code }

    package func hasExpired(at now: Int64) -> Bool { now >= code.expiresMs }

    package func poll(at now: Int64) -> Poll {
        switch code.decision {
        case .used: .used
        case .unspecified, .approved, .refused, .UNRECOGNIZED:
            if hasExpired(at: now) {
                .expired
            } else if case .approved = code.decision {
                .approved(code.approver)
            } else if case .refused = code.decision {
                .refused
            } else {
                .pending
            }
        }
    }

    /// Checks that an account may see the code and decide about it.
    ///
    /// - Throws: 8002 if the code has expired, was used, or was decided by another account. The error does not say
    ///   which.
    package func check(_ account: AccountID, at now: Int64) throws(ApusError) {
        let unknown = ApusError(.targetUnknown, "there is no such code, or it has expired")
        guard !hasExpired(at: now) else { throw unknown }
        switch code.decision {
        case .unspecified: return
        case .approved, .refused: guard code.approver.account == account.rawValue else { throw unknown }
        case .used, .UNRECOGNIZED: throw unknown
        }
    }

    /// - Throws: as ``check(_:at:)``.
    package mutating func decide(
        isApproved: Bool, by approver: AuthorizationApprover, at now: Int64
    ) throws(ApusError) {
        try check(AccountID(unchecked: approver.account), at: now)
        (code.decision, code.approver) = (isApproved ? .approved : .refused, approver)
    }

    /// The token is issued.
    ///
    /// - Precondition: ``poll(at:)`` has returned ``Poll/approved(_:)``.
    package mutating func use() {
        precondition(code.decision == .approved, "a code that is \(code.decision) is used")
        code.decision = .used
    }
}
