import ApusCore
import CoreMetrics
import Logging
import Synchronization

// What an operator revokes ends here: live sessions with their streams, and allocations of this node's relay (IV-A6).
extension SessionService {
    func watchRevocations() async {
        _ = await endRevoked()
        await revocations.watch(
            every: configuration.revocationInterval, wallSeconds: { self.wallSeconds() },
            changed: { await self.endRevoked() })
    }

    /// Ends what is revoked and is here; false where the relay could not be told.
    private func endRevoked() async -> Bool {
        let list = revocations.list
        let (revoked, actions) = state.withLock { $0.edge.revoked(by: list) }
        for session in revoked {
            revocations.refused.increment()
            log.notice(
                "A session is ended, since its token was revoked",
                metadata: [
                    LogKey.session: "\(session.id)", LogKey.access: "\(session.access)",
                    LogKey.account: "\(session.account)",
                ])
        }
        perform(actions)
        guard let relayIssuer else { return true }
        return relayIssuer.endRevoked { user, expires in
            guard let user = RelayUser(user, expires: expires) else { return false }
            return list.revokes(user.token, account: user.account, identities: [user.access, user.identity])
        }
    }
}
