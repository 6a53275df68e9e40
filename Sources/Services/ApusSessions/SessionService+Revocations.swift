import ApusCore
import CoreMetrics
import Logging
import Synchronization

// Ends what an operator revoked: open sessions with their streams, and allocations of this node's relay (IV-A6).
extension SessionService {
    func watchRevocations() async {
        _ = await endRevoked()
        await revocations.watch(
            every: configuration.revocationInterval, wallSeconds: { self.wallSeconds() },
            changed: { await self.endRevoked() })
    }

    /// Reads the revocations now, and ends what they name at this node. The other nodes do so within
    /// ``SessionConfiguration/revocationInterval``. Throws 10021 if the records cannot be read.
    func readRevocations() async throws(ApusError) {
        try await revocations.load(wallSeconds: wallSeconds())
        _ = await endRevoked()
    }

    /// Ends revoked sessions and allocations of this node. Returns false if the relay could not be notified, or if
    /// sessions end later.
    private func endRevoked() async -> Bool {
        let list = revocations.list
        let (revoked, actions) = state.withLock { $0.edge.revoked(by: list) }
        for session in revoked {
            revocations.refused.increment()
            log.notice(
                "A session was ended because its token was revoked",
                metadata: [
                    LogKey.session: "\(session.id)", LogKey.access: "\(session.access)",
                    LogKey.account: "\(session.account)",
                ])
        }
        perform(actions)
        let lost = revocations.takeLost()
        let now = MonotonicTime.now()
        let (count, ends, hasEnds) = state.withLock { state in
            let due = state.edge.endsDue(now: now)
            let (count, ends) = state.edge.withdrawn(lost, now: now)
            return (count, due + ends, state.edge.hasEnds)
        }
        if count > 0 {
            log.info("Sessions were ended to check their rights again", metadata: [LogKey.count: "\(count)"])
        }
        perform(ends)
        guard let relayIssuer else { return !hasEnds }
        let isDelivered = relayIssuer.endRevoked { user, expires in
            guard let user = RelayUser(user, expires: expires)?.authority else { return false }
            return list.revokes(user.token, account: user.account, identities: user.identities)
        }
        return isDelivered && !hasEnds
    }
}
