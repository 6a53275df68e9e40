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

    /// An account has more or less than before, whatever the limit says.
    package mutating func change(by delta: Int, of account: AccountID?) {
        used += delta
        let sum = held(by: account) + delta
        held[account] = sum == 0 ? nil : sum
    }
}
