package import ApusCore

/// The limits of one of a node's tables of channels: a limit on all, a share for each account, and a limit on the
/// sources of one owner, so that a device cannot use all of its account's share (D13).
///
/// Pure value: confined to its owner.
package struct ChannelShares: Sendable {
    private var accounts: AccountShares
    private let sourcesMax: Int
    private var sources: [ChannelOwner: Int] = [:]

    /// - Parameters:
    ///   - capacity: the channels of all accounts.
    ///   - sourcesMax: the channels of one owner.
    package init(capacity: Int, sourcesMax: Int) {
        accounts = AccountShares(capacity: capacity)
        self.sourcesMax = sourcesMax
    }

    /// The channels that an account has.
    package func held(by account: AccountID?) -> Int { accounts.held(by: account) }

    /// Reserves a place for another channel of an owner. Returns false, without effect, beyond a limit.
    package mutating func take(for owner: ChannelOwner, of account: AccountID?) -> Bool {
        let count = sources[owner] ?? 0
        guard count < sourcesMax, accounts.take(1, for: account) else { return false }
        sources[owner] = count + 1
        return true
    }

    /// Releases the place of a removed channel.
    package mutating func give(for owner: ChannelOwner, of account: AccountID?) {
        accounts.change(by: -1, of: account)
        let count = (sources[owner] ?? 1) - 1
        sources[owner] = count > 0 ? count : nil
    }
}
