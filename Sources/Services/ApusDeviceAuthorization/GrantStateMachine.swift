package import ApusCore
import SwiftProtobuf

/// The refresh tokens of one grant (RFC 6749 §6, RFC 9700 §4.14.2): each is used once, and gives the next one. The one
/// before the newest is accepted for a while, since the answer with the newest may have been lost. After that, and any
/// older one, has been copied: it ends the grant.
///
/// Pure.
package struct GrantStateMachine: Sendable {
    /// What a refresh token leads to.
    package enum Refresh: Sendable, Hashable {
        /// The device receives a refresh token of this generation, and a token.
        case renewed(generation: UInt64)
        /// The grant ends, and its tokens are revoked.
        case copied
        /// There is no such grant, or it has ended.
        case refused
    }

    /// How long the refresh token before the newest is accepted, in seconds: a device repeats a request whose answer
    /// was lost sooner.
    package static let graceSeconds: Int64 = 600

    /// Nil if the device has none.
    package private(set) var grant: AuthorizationStoredGrant?

    package init(_ grant: AuthorizationStoredGrant?) { self.grant = grant }

    /// - Parameters:
    ///   - now: Unix seconds.
    ///   - expires: the expiry of the next refresh token, in Unix seconds.
    package mutating func refresh(
        grant id: String, generation: UInt64, account: AccountID, at now: Int64, expires: Int64
    ) -> Refresh {
        guard var known = grant, known.grant.isExactly(id), known.account.isExactly(account.rawValue),
            (1...known.generation).contains(generation), now < known.expiresS
        else { return .refused }
        if generation == known.generation {
            (known.generation, known.renewedS) = (generation + 1, now)
        } else if generation + 1 < known.generation || now - known.renewedS > Self.graceSeconds {
            grant = nil
            return .copied
        }
        known.expiresS = expires
        grant = known
        return .renewed(generation: known.generation)
    }
}
