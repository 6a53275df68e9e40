/// The accounts' shares of a bounded resource of a node (D13).
///
/// An account may have at most eight ninths of what the others leave: the dynamic threshold of shared packet buffers
/// (Choudhury, Hahne 1998). A single account can use most of the resource, and several large ones get equal parts.
/// There is always a rest for a new account, without anything being taken from existing ones.
///
/// Pure value: confined to its owner.
package struct AccountShares: Sendable {
    package let capacity: Int
    /// The sum over all accounts.
    package private(set) var used = 0
    private var held: [AccountID?: Int] = [:]

    package init(capacity: Int) { self.capacity = capacity }

    /// An account's amount. Nil stands for accounts that a node of an earlier version does not name.
    package func held(by account: AccountID?) -> Int { held[account] ?? 0 }

    /// The most that an account may have at the current amounts of the others.
    package func limit(of account: AccountID?) -> Int {
        max(0, capacity - (used - held(by: account))) * 8 / 9
    }

    /// Adds to an account's amount. Returns false, and adds nothing, beyond its limit. An account's first unit is
    /// accepted while there is room.
    package mutating func take(_ count: Int, for account: AccountID?) -> Bool {
        let sum = held(by: account) + count
        guard used + count <= capacity, sum <= limit(of: account) || sum == count else { return false }
        change(by: count, of: account)
        return true
    }

    /// Counts one of an account's holders again, and bounds it. For amounts that a holder gives back at once, such as
    /// the bytes of a ring.
    ///
    /// The holder is counted with at most its limit. The account's other holders may be above theirs until they are
    /// counted again. Other accounts do not pay for that: a limit is never below a ninth of the capacity divided by the
    /// number of accounts that hold any.
    ///
    /// - Parameters:
    ///   - old: the holder's amount when it was counted last.
    ///   - new: its amount now.
    ///   - most: a holder's limit while the account is within its share.
    ///   - holderCount: the account's holders. Above its share, each may have an equal part of the share.
    /// - Returns: the holder's limit, and the amount that it is counted with.
    package mutating func recount(
        from old: Int, to new: Int, most: Int, of account: AccountID?, holderCount: Int
    ) -> (limit: Int, counted: Int) {
        let others = self.held(by: account) - old
        let accountCount = held.count + (held[account] == nil ? 1 : 0)
        let share = max(limit(of: account), capacity / (9 * accountCount))
        let limit = others + new + most <= share ? most : min(most, share / max(1, holderCount))
        let counted = min(new, limit)
        change(by: counted - old, of: account)
        return (limit, counted)
    }

    /// Changes an account's amount, whatever the limit.
    package mutating func change(by delta: Int, of account: AccountID?) {
        used += delta
        let sum = held(by: account) + delta
        held[account] = sum == 0 ? nil : sum
    }
}
