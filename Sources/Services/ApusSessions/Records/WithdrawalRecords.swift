package import ApusCore
import ApusStorage
import SwiftProtobuf

/// A right to a device that an account has lost (IV-B10).
package struct DeviceWithdrawal: Sendable, Hashable {
    package var device: DeviceID
    package var account: AccountID
    /// Unix seconds; every grant of that account for the device has expired then.
    package var expires: Int64

    package init(device: DeviceID, account: AccountID, expires: Int64) {
        (self.device, self.account, self.expires) = (device, account, expires)
    }
}

extension SessionRecords {
    /// Lost rights, one record a device, with indexes by the last expiry and by the newest change.
    static let withdrawals = RecordCollection<StoredWithdrawal>(
        "withdrawals", layout: 1, key: { OrderedKey(.text($0.device)) },
        indexes: [
            RecordIndex("expires") { [OrderedKey(.signed($0.accounts.map(\.expiresS).max() ?? 0))] },
            RecordIndex("number") { [OrderedKey(.unsigned($0.accounts.map(\.number).max() ?? 0))] },
        ], usesReserve: true)

    /// One record that every loss also writes. It orders them.
    static let withdrawalState = RecordCollection<StoredWithdrawals>(
        "withdrawal-state", layout: 1, key: { _ in withdrawalStateKey }, usesReserve: true)

    private static let withdrawalStateKey = OrderedKey(.text("all"))
    /// The most lost rights of one device in the record: those of all accounts that may use it, and as many again. One
    /// more is refused with 10007 until the oldest has expired.
    package static let withdrawnMax = 2 * (DeviceRecord.sharesMax + 1)
    /// The same for a change: an account whose device has reached ``withdrawnMax`` does not keep an operator from
    /// disabling it, and each account counts once however often it is disabled.
    static func withdrawnMax(of change: DeviceRelationChange) -> Int {
        if case .disable = change { Self.withdrawnMax + DeviceRecord.sharesMax + 1 } else { Self.withdrawnMax }
    }
    /// The most devices with lost rights that have not expired. One more is refused with 10007.
    package static let withdrawalsMax = 100_000
    /// The most expired records that a new one removes.
    private static let expiredCountMax = 100

    /// The writes that note that accounts have lost their rights to a device. Every node reads them within
    /// ``SessionConfiguration/revocationInterval``.
    ///
    /// - Throws: 10007 beyond ``withdrawnMax(of:)`` or ``withdrawalsMax``.
    func withdrawalWrites(
        of accounts: [AccountID], from device: DeviceID, by change: DeviceRelationChange, now: Int64,
        keepSeconds: Int64
    ) async throws(ApusError) -> [RecordWrite] {
        guard !accounts.isEmpty else { return [] }
        let state = try await store.record(Self.withdrawalState, Self.withdrawalStateKey)
        let key = OrderedKey(.text(device.rawValue))
        let known = try await store.record(Self.withdrawals, key)
        let expired = try await store.page(
            Self.withdrawals, by: "expires", below: OrderedKey(.signed(now)).end, limit: Self.expiredCountMax
        ).records.filter { $0.key != key }
        var all = state?.body ?? .init()
        all.number += 1
        let count = Int(all.count) - expired.count + (known == nil ? 1 : 0)
        all.count = UInt32(clamping: count)
        let names = Set(accounts.map(\.rawValue))
        // An account that loses its right again counts again: each time ends the sessions that have used the device.
        var replaced: Set<String> = []
        if case .disable = change { replaced = names }
        var body = known?.body ?? .with { $0.device = device.rawValue }
        body.accounts.removeAll { $0.expiresS <= now || replaced.contains($0.account) }
        body.accounts += names.sorted().map { name in
            .with { ($0.account, $0.number, $0.expiresS) = (name, all.number, now + keepSeconds) }
        }
        guard body.accounts.count <= Self.withdrawnMax(of: change), count <= Self.withdrawalsMax else {
            throw ApusError(.overloaded, "the rights to devices were changed too often; try again later")
        }
        var writes = expired.map { Self.withdrawals.erase($0.key, fence: .none, if: .version($0.version)) }
        writes.append(
            try Self.withdrawals.put(body, fence: .none, if: known.map { .version($0.version) } ?? .absent))
        writes.append(
            try Self.withdrawalState.put(all, fence: .none, if: state.map { .version($0.version) } ?? .absent))
        return writes
    }

    /// The rights that were lost after the change of this number, and the number of the newest change; nil if there is
    /// none after it.
    package func withdrawals(
        after number: UInt64
    ) async throws(ApusError) -> (lost: [DeviceWithdrawal], number: UInt64)? {
        // The newest number is read first: what follows it is read again the next time.
        let newest = try await store.record(Self.withdrawalState, Self.withdrawalStateKey)?.body.number ?? 0
        guard newest != number else { return nil }
        var lost: [DeviceWithdrawal] = []
        var token: RecordToken?
        repeat {
            let page = try await store.page(
                Self.withdrawals, by: "number", prefix: OrderedKey(.unsigned(number + 1)),
                below: OrderedKey(.unsigned(.max)).end, after: token)
            for body in page.records.map(\.body) {
                lost += body.accounts.filter { $0.number > number }.map {
                    DeviceWithdrawal(
                        device: DeviceID(unchecked: body.device), account: AccountID(unchecked: $0.account),
                        expires: $0.expiresS)
                }
            }
            token = page.next
        } while token != nil
        return (lost, newest)
    }
}

/// The rights that were lost lately, in a form for lookups (IV-B10). A lookup takes constant time. Pure.
package struct WithdrawalList: Sendable, Equatable {
    private var expiries: [DeviceID: [AccountID: Int64]] = [:]

    package init() {}

    package mutating func add(_ lost: [DeviceWithdrawal]) {
        for right in lost {
            let known = expiries[right.device]?[right.account] ?? right.expires
            expiries[right.device, default: [:]][right.account] = max(known, right.expires)
        }
    }

    package mutating func removeExpired(wallSeconds: Int64) {
        expiries = expiries.compactMapValues { accounts in
            let left = accounts.filter { $0.value > wallSeconds }
            return left.isEmpty ? nil : left
        }
    }

    /// True if the account lost a right to the device lately. It may have received another since, so the owner decides.
    package func contains(_ account: AccountID, _ device: DeviceID) -> Bool { expiries[device]?[account] != nil }
}
