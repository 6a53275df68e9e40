/// What accounts have of something that a node has a bounded amount of, and how much more each may have (D13).
///
/// An account may have at most eight ninths of what the others leave: the dynamic threshold of shared packet buffers
/// (Choudhury, Hahne 1998). One account alone has most of it; several large ones have equal parts; and there is always
/// a rest for one that comes later, without anything being taken from those that came before.
///
/// Pure: confined to whoever owns it.
package struct AccountShares: Sendable {
    package let capacity: Int
    /// What all accounts have together.
    package private(set) var used = 0
    private var held: [AccountID?: Int] = [:]

    package init(capacity: Int) { self.capacity = capacity }

    /// What an account has; nil stands for those that an earlier version's node does not name.
    package func held(by account: AccountID?) -> Int { held[account] ?? 0 }

    /// The most that an account may have as long as the others have what they have.
    package func limit(of account: AccountID?) -> Int {
        max(0, capacity - (used - held(by: account))) * 8 / 9
    }

    /// Takes some for an account; false, with nothing taken, beyond its limit. Its first is taken while there is room.
    package mutating func take(_ count: Int, for account: AccountID?) -> Bool {
        let sum = held(by: account) + count
        guard used + count <= capacity, sum <= limit(of: account) || sum == count else { return false }
        change(by: count, of: account)
        return true
    }

    /// One of an account's holders has more or less of what is taken back from who has too much, as bytes of rings are.
    ///
    /// What it has beyond its limit it gives back at once and is not counted. The account's other holders may have too
    /// much until they are counted again. That is not at another account's cost: none is told to keep less than a ninth
    /// of the capacity divided by the accounts that have any.
    ///
    /// - Parameters:
    ///   - old: what the holder had when it was counted last.
    ///   - new: what it has.
    ///   - most: what a holder has where there is room.
    ///   - holderCount: holders of the account, each of which may have an equal part where there is none.
    /// - Returns: what the holder may have, and what it is counted with.
    package mutating func recount(
        from old: Int, to new: Int, most: Int, of account: AccountID?, holderCount: Int
    ) -> (limit: Int, counted: Int) {
        let others = self.held(by: account) - old
        let accountCount = held.count + (held[account] == nil ? 1 : 0)
        let share = max((capacity - (used - self.held(by: account))) * 8 / 9, capacity / (9 * accountCount))
        let limit = others + new + most <= share ? most : min(most, share / max(1, holderCount))
        let counted = min(new, limit)
        change(by: counted - old, of: account)
        return (limit, counted)
    }

    /// An account has more or less than before, whatever the limit says.
    package mutating func change(by delta: Int, of account: AccountID?) {
        used += delta
        let sum = held(by: account) + delta
        held[account] = sum == 0 ? nil : sum
    }
}
