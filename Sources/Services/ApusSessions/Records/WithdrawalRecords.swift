package import ApusCore
import ApusStorage
import SwiftProtobuf

/// A right to a device that an account has lost (IV-B10).
package struct DeviceWithdrawal: Sendable, Hashable {
    package var device: DeviceID
    package var account: AccountID
    /// Differs for each loss.
    package var number: UInt64
    /// Unix seconds; every grant of that account for the device has expired then.
    package var expires: Int64

    package init(device: DeviceID, account: AccountID, number: UInt64, expires: Int64) {
        (self.device, self.account, self.number, self.expires) = (device, account, number, expires)
    }
}

extension SessionRecords {
    /// Lost rights, one record a device, with an index by the newest expiry.
    static let withdrawals = RecordCollection<StoredWithdrawal>(
        "withdrawals", layout: 1, key: { OrderedKey(.text($0.device)) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.accounts.map(\.expiresS).max() ?? 0))] }],
        usesReserve: true)

    /// The most accounts of one device in the record; one more is refused with 10007 until the oldest has expired. The
    /// device's shares, its account, and as many again.
    package static let withdrawnMax = 2 * (DeviceRecord.sharesMax + 1)
    private static let expiredWithdrawalsMax = 100

    /// The writes that note that accounts have lost their rights to a device. Every node reads them within
    /// ``SessionConfiguration/revocationInterval``.
    /// - Throws: 10007 beyond ``withdrawnMax``.
    func withdrawalWrites(
        of accounts: [AccountID], from device: DeviceID, now: Int64, keepSeconds: Int64
    ) async throws(ApusError) -> [RecordWrite] {
        guard !accounts.isEmpty else { return [] }
        let state = try await store.record(Self.revocationState, Self.revocationStateKey)
        let key = OrderedKey(.text(device.rawValue))
        let known = try await store.record(Self.withdrawals, key)
        let expired = try await store.page(
            Self.withdrawals, by: "expires", below: OrderedKey(.signed(now)).end, limit: Self.expiredWithdrawalsMax
        ).records.filter { $0.key != key }
        let names = Set(accounts.map(\.rawValue))
        var body = known?.body ?? .with { $0.device = device.rawValue }
        body.accounts.removeAll { $0.expiresS <= now || names.contains($0.account) }
        body.accounts += names.sorted().map { name in
            .with { ($0.account, $0.number, $0.expiresS) = (name, .random(in: 1...(.max)), now + keepSeconds) }
        }
        guard body.accounts.count <= Self.withdrawnMax else {
            throw ApusError(.overloaded, "the rights to this device were changed too often; try again later")
        }
        var writes = expired.map { Self.withdrawals.erase($0.key, fence: .none, if: .version($0.version)) }
        writes.append(
            try Self.withdrawals.put(body, fence: .none, if: known.map { .version($0.version) } ?? .absent))
        // With its new version, every node reads again.
        writes.append(
            try Self.revocationState.put(
                state?.body ?? .init(), fence: .none, if: state.map { .version($0.version) } ?? .absent))
        return writes
    }

    /// The lost rights that have not expired.
    func withdrawals(wallSeconds: Int64) async throws(ApusError) -> [DeviceWithdrawal] {
        var found: [DeviceWithdrawal] = []
        var token: RecordToken?
        repeat {
            let page = try await store.page(Self.withdrawals, after: token)
            for body in page.records.map(\.body) {
                found += body.accounts.filter { $0.expiresS > wallSeconds }.map {
                    DeviceWithdrawal(
                        device: DeviceID(unchecked: body.device), account: AccountID(unchecked: $0.account),
                        number: $0.number, expires: $0.expiresS)
                }
            }
            token = page.next
        } while token != nil
        return found
    }
}
