import ApusCore

/// What one user has at this node, while it has anything.
struct TurnUser: Sendable {
    /// Allocations that live or are being opened.
    var allocationCount = 0
    /// New peers that may still be named; refilled as time goes by.
    var peerTokens: Double
    var refilledAt: MonotonicTime
}

// Quotas: how many allocations a user has, in the cluster too, and how fast it names new peers (D8, D13).
extension TurnServerStateMachine {
    /// Allocations of one user that live or are being opened here.
    public func allocationCount(of user: String) -> Int { users[user]?.allocationCount ?? 0 }

    /// Users that have an allocation here, with how many, in the order of their names.
    public var usage: [(user: String, count: Int)] {
        users.keys.sorted().map { ($0, users[$0]?.allocationCount ?? 0) }
    }

    /// Users whose number of allocations changed since this was asked last, in the order of their names.
    public mutating func takeUsageChanges() -> [(user: String, count: Int)] {
        defer { changedUsers = [] }
        return changedUsers.sorted().map { ($0, allocationCount(of: $0)) }
    }

    /// What users have at the other nodes that live, by name: told about once a second, and replaced whole. Between two
    /// tellings a user can exceed its quota of the cluster by what it begins elsewhere meanwhile, never the one of a
    /// node.
    public mutating func othersHave(_ counts: [String: Int]) { allocationsElsewhere = counts }

    /// False if a user has as many allocations as it may have, here or in the cluster. One that comes from another
    /// node was counted there.
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

    /// Takes leave for so many new peers; false if the user names them faster than it may.
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
