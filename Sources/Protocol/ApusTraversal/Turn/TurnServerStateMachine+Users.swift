import ApusCore

/// The state of one user at this node, while it has any.
struct TurnUser: Sendable {
    /// Allocations that are live or being opened.
    var allocationCount = 0
    /// New peers that may still be named. They are refilled with time.
    var peerTokens: Double
    var refilledAt: MonotonicTime
}

// Quotas: allocations per user, also in the cluster, and the rate of new peers (D8, D13).
extension TurnServerStateMachine {
    /// The number of allocations of one user that are live or being opened here.
    public func allocationCount(of user: String) -> Int { users[user]?.allocationCount ?? 0 }

    /// Users with an allocation here and their numbers, in the order of their names.
    public var usage: [(user: String, count: Int)] {
        users.keys.sorted().map { ($0, users[$0]?.allocationCount ?? 0) }
    }

    /// Users whose number of allocations changed since the last call, in the order of their names.
    public mutating func takeUsageChanges() -> [(user: String, count: Int)] {
        defer { changedUsers = [] }
        return changedUsers.sorted().map { ($0, allocationCount(of: $0)) }
    }

    /// Replaces the users' allocation counts at the other live nodes, by name. Called about once a second. Between two
    /// calls a user can exceed its cluster quota by what it allocates elsewhere, but never the quota of a node.
    public mutating func othersHave(_ counts: [String: Int]) { allocationsElsewhere = counts }

    /// False if a user is at its limit, here or in the cluster. An allocation from another node was counted there.
    func mayAllocate(_ user: String, isRevived: Bool) -> Bool {
        let count = allocationCount(of: user)
        guard count < configuration.allocationsPerUserMax else { return false }
        guard configuration.allocationsPerClusterUserMax > 0, !isRevived else { return true }
        return count + (allocationsElsewhere[user] ?? 0) < configuration.allocationsPerClusterUserMax
    }

    mutating func holdUser(_ user: String, at now: MonotonicTime) {
        var entry = users[user] ?? TurnUser(peerTokens: Double(configuration.newPeerBurst), refilledAt: now)
        entry.allocationCount += 1
        users[user] = entry
        changedUsers.insert(user)
    }

    mutating func releaseUser(_ user: String) {
        guard let count = users[user]?.allocationCount else { return }
        changedUsers.insert(user)
        if count > 1 {
            users[user]?.allocationCount = count - 1
        } else {
            users[user] = nil
        }
    }

    /// Takes permission for a number of new peers. Returns false if the user names them too fast.
    mutating func takeNewPeers(_ count: Int, of user: String, at now: MonotonicTime) -> Bool {
        guard configuration.newPeersPerSecond > 0, count > 0, var entry = users[user] else { return true }
        let earned = max(0, (now - entry.refilledAt).milliseconds / 1000) * configuration.newPeersPerSecond
        entry.peerTokens = min(Double(configuration.newPeerBurst), entry.peerTokens + earned)
        entry.refilledAt = max(now, entry.refilledAt)
        let isEnough = entry.peerTokens >= Double(count)
        if isEnough { entry.peerTokens -= Double(count) } else { limitedPeerCount &+= UInt64(count) }
        users[user] = entry
        return isEnough
    }
}
