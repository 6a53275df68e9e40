package import ApusCore

/// The limits of one of a node's tables of channels: a limit on all, a share for each account, and a limit on the
/// sources of one device, so that a device cannot use all of its account's share (D13).
///
/// Pure value: confined to its owner.
package struct ChannelShares: Sendable {
    private var accounts: AccountShares
    private let sourcesMax: Int
    private var sources: [DeviceID: Int] = [:]

    /// - Parameters:
    ///   - capacity: the channels of all accounts.
    ///   - sourcesMax: the channels of one device.
    package init(capacity: Int, sourcesMax: Int) {
        accounts = AccountShares(capacity: capacity)
        self.sourcesMax = sourcesMax
    }

    /// The channels that an account has.
    package func held(by account: AccountID?) -> Int { accounts.held(by: account) }

    /// Takes a place for a further channel of a device. Returns false, and takes none, beyond a limit.
    package mutating func take(for device: DeviceID, of account: AccountID?) -> Bool {
        let count = sources[device] ?? 0
        guard count < sourcesMax, accounts.take(1, for: account) else { return false }
        sources[device] = count + 1
        return true
    }

    /// Releases the place of a removed channel.
    package mutating func give(for device: DeviceID, of account: AccountID?) {
        accounts.change(by: -1, of: account)
        let count = (sources[device] ?? 1) - 1
        sources[device] = count > 0 ? count : nil
    }
}
