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

    /// An account has more or less than before, whatever the limit says.
    package mutating func change(by delta: Int, of account: AccountID?) {
        used += delta
        let sum = held(by: account) + delta
        held[account] = sum == 0 ? nil : sum
    }
}
