import ApusCore
import ApusThings
import Synchronization

/// Hooks as this node read them last. A change at another node is visible within ``life``.
///
/// Isolation: any thread.
final class HookCache: Sendable {
    private struct State {
        var isUsed = false
        var lookedAt: MonotonicTime?
        var hooks = RecentCache<String, (hooks: [HookStored], at: MonotonicTime)>(countMax: HookCache.countMax)
    }

    static let life = Duration.seconds(2)
    /// The most customers whose hooks are cached.
    fileprivate static let countMax = 1024
    private let state = Mutex(State())

    /// Whether the cluster has any hook.
    func isUsed(in records: HookRecords) async throws(ApusError) -> Bool {
        let now = MonotonicTime.now()
        let known = state.withLock { state in state.lookedAt.map { now - $0 < Self.life ? state.isUsed : nil } ?? nil }
        if let known { return known }
        let isUsed = try await records.hasHooks()
        state.withLock { ($0.isUsed, $0.lookedAt) = (isUsed, now) }
        return isUsed
    }

    func hooks(of customer: String, in records: HookRecords) async throws(ApusError) -> [HookStored] {
        guard try await isUsed(in: records) else { return [] }
        let now = MonotonicTime.now()
        if let known = state.withLock({ $0.hooks[customer] }), now - known.at < Self.life { return known.hooks }
        let found = try await records.hooks(of: customer)
        state.withLock { $0.hooks[customer] = (found, now) }
        return found
    }

    /// Removes a customer's hooks after this node changed one.
    func forget(_ customer: String) {
        state.withLock { state in
            state.hooks[customer] = nil
            state.lookedAt = nil
        }
    }
}

/// Limits how many messages to servers wait for an answer. A customer has at most half of the places, an account an
/// eighth.
///
/// Pure value.
package struct ServerSlots: Sendable {
    private let countMax: Int
    private var count = 0
    private var customers: [String: Int] = [:]
    private var accounts: [String: Int] = [:]

    package init(countMax: Int) { self.countMax = countMax }

    /// Takes a place. Returns false if the customer, the account or the node has no free place.
    package mutating func take(customer: String, account: String) -> Bool {
        guard count < countMax, customers[customer, default: 0] < max(1, countMax / 2),
            accounts[account, default: 0] < max(1, countMax / 8)
        else { return false }
        count += 1
        customers[customer, default: 0] += 1
        accounts[account, default: 0] += 1
        return true
    }

    package mutating func giveBack(customer: String, account: String) {
        count -= 1
        Self.decrement(&customers, customer)
        Self.decrement(&accounts, account)
    }

    private static func decrement(_ counts: inout [String: Int], _ key: String) {
        guard let count = counts[key] else { return }
        counts[key] = count > 1 ? count - 1 : nil
    }
}
