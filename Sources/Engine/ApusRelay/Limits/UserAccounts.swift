/// The traffic of users with allocations at this node, for operators. At most as many rows as allocations.
struct UserAccounts: Sendable {
    private struct Account {
        var allocationCount = 0
        var traffic = RelayTraffic()
    }

    private var owners: [UInt32: String] = [:]
    private var accounts: [String: Account] = [:]
    /// The traffic of all allocations since the start.
    private(set) var total = RelayTraffic()

    mutating func began(_ allocation: UInt32, user: String) {
        owners[allocation] = user
        accounts[user, default: Account()].allocationCount += 1
    }

    /// Adds an allocation's traffic.
    mutating func carried(_ allocation: UInt32, _ traffic: RelayTraffic) {
        total += traffic
        if let user = owners[allocation] { accounts[user]?.traffic += traffic }
    }

    mutating func ended(_ allocation: UInt32) {
        guard let user = owners.removeValue(forKey: allocation), let account = accounts[user] else { return }
        if account.allocationCount > 1 {
            accounts[user]?.allocationCount = account.allocationCount - 1
        } else {
            accounts[user] = nil
        }
    }

    var userCount: Int { accounts.count }

    /// The users with the most traffic.
    func top(_ count: Int) -> [RelayUsage] {
        let usage = accounts.map {
            RelayUsage(user: $0.key, allocations: $0.value.allocationCount, traffic: $0.value.traffic)
        }
        let sorted = usage.sorted { left, right in
            let (more, less) = (left.traffic, right.traffic)
            return (more.upBytes &+ more.downBytes, right.user) > (less.upBytes &+ less.downBytes, left.user)
        }
        return Array(sorted.prefix(count))
    }
}
