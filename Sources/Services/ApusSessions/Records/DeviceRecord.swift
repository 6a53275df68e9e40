package import ApusCluster
package import ApusCore
import ApusStorage
import SwiftProtobuf

/// The durable record of a device (D6, D9).
package struct DeviceRecord: Sendable, Hashable {
    package var device: DeviceID
    /// The account to which the device is bound; nil if it is unbound.
    package var account: AccountID?
    /// The integrator that it is assigned to; nil: none (IV-B8).
    package var customer: CustomerID?
    /// The time of the binding, in Unix milliseconds; nil if it is unbound. For display; never used for decisions.
    package var boundAtUnixMilliseconds: Int64?
    /// The time of the last connection, in Unix milliseconds. For display; never used for decisions.
    package var lastSeenUnixMilliseconds: Int64?
    /// The other accounts that may use it, in the order in which it was shared with them (IV-B10).
    package var shares: [DeviceShare] = []
    /// Accounts that have to accept first. They have no right to the device, and hear nothing of it.
    package var invitations: [DeviceShare] = []
    /// Tokens of the device that were issued before this time, in Unix seconds, are not accepted: it was unbound or
    /// transferred.
    package var tokensAfter: Int64 = 0
    /// An operator or its customer has disabled it: it can neither sign in nor be used (20011, IV-C16). Changes of its
    /// accounts do not enable it.
    package var isDisabled = false
    /// What the cluster, and the device, have kept of the device before this time, in Unix milliseconds, is not its
    /// account's. It grows each time that the device is handed over without its data, and so it is the number of the
    /// data as well: what is stored with an earlier one is wiped (docs/sharing.md). 0: never.
    package var dataSince: UInt64 = 0
    /// The number of the newest change whose event is published by way of the outbox; 0: none.
    package var eventNumber: UInt64 = 0
    /// The epoch of the device's shard under which the record was written: its fencing token.
    package var epoch: Epoch

    package init(
        device: DeviceID, account: AccountID? = nil, boundAtUnixMilliseconds: Int64? = nil,
        lastSeenUnixMilliseconds: Int64? = nil, epoch: Epoch
    ) {
        self.device = device
        self.account = account
        self.boundAtUnixMilliseconds = boundAtUnixMilliseconds
        self.lastSeenUnixMilliseconds = lastSeenUnixMilliseconds
        self.epoch = epoch
    }

    init(_ record: Record<StoredDevice>) { self.init(record.body, epoch: record.fence.epoch) }

    init(_ body: StoredDevice, epoch: Epoch) {
        self.init(
            device: DeviceID(unchecked: body.device),
            account: body.account.isEmpty ? nil : AccountID(unchecked: body.account),
            boundAtUnixMilliseconds: body.hasBoundAtMs ? body.boundAtMs : nil,
            lastSeenUnixMilliseconds: body.hasLastSeenMs ? body.lastSeenMs : nil, epoch: epoch)
        (tokensAfter, isDisabled, dataSince) = (body.tokensAfterS, body.disabled, body.dataSinceMs)
        customer = body.customer.isEmpty ? nil : CustomerID(unchecked: body.customer)
        shares = body.shares.map { DeviceShare($0) }
        invitations = body.invitations.map { DeviceShare($0) }
        eventNumber = body.eventNumber
    }

    var message: StoredDevice {
        .with {
            $0.device = device.rawValue
            $0.account = account?.rawValue ?? ""
            if let boundAtUnixMilliseconds { $0.boundAtMs = boundAtUnixMilliseconds }
            if let lastSeenUnixMilliseconds { $0.lastSeenMs = lastSeenUnixMilliseconds }
            ($0.tokensAfterS, $0.disabled, $0.dataSinceMs) = (tokensAfter, isDisabled, dataSince)
            $0.customer = customer?.rawValue ?? ""
            $0.shares = shares.map(\.message)
            $0.invitations = invitations.map(\.message)
            $0.eventNumber = eventNumber
        }
    }
}

extension DeviceShare {
    fileprivate init(_ body: StoredShare) {
        self.init(account: AccountID(unchecked: body.account), control: body.control)
    }

    fileprivate var message: StoredShare { .with { ($0.account, $0.control) = (account.rawValue, control) } }
}

extension SessionRecords {
    /// Devices, with an index by the accounts that may use them, and by those that are invited.
    static let devices = RecordCollection<StoredDevice>(
        "devices", layout: 3, key: { key(of: $0.device) },
        indexes: [
            RecordIndex("account") { device in
                let accounts = ([device.account] + device.shares.map(\.account)).filter { !$0.isEmpty }
                return (accounts + device.invitations.map { invited($0.account) })
                    .map { OrderedKey(.text($0), .text(device.device)) }
            }
        ])

    /// The maximum number of attempts of a binding if other writes intervene.
    private static let bindAttemptCountMax = 16

    private static func key(of device: String) -> OrderedKey { OrderedKey(.text(device)) }

    /// The device's record; nil if there is none.
    package func record(of device: DeviceID) async throws(ApusError) -> DeviceRecord? {
        try await store.record(Self.devices, Self.key(of: device.rawValue)).map { DeviceRecord($0) }
    }

    /// Writes the record if the device is bound to no account, in one step. Returns the record in the store afterwards,
    /// which is another one if the device was bound before.
    /// - Throws: 8024 if the device and the account are not of one customer; 20011 if the device is unbound and
    ///   disabled; 10013 if a later epoch wrote or removed the record, and the device is unbound.
    package func bind(_ record: DeviceRecord) async throws(ApusError) -> DeviceRecord {
        let key = Self.key(of: record.device.rawValue)
        var refusal = ApusError(.versionConflict)
        let customer = try await customer(of: record.account)
        for _ in 0..<Self.bindAttemptCountMax {
            let found = try await store.record(Self.devices, key)
            if let found, !found.body.account.isEmpty { return DeviceRecord(found) }
            guard refusal.code != .staleEpoch else { break }
            let before = found.map { DeviceRecord($0) }
            guard before?.customer == customer else { throw ApusError(.otherCustomer) }
            // It may have been disabled since the owner read it.
            try before?.checkEnabled()
            do throws(ApusError) {
                try await store.commit(
                    Self.devices.put(
                        record.message, fence: RecordFence(epoch: record.epoch, writer: writer),
                        if: found.map { .version($0.version) } ?? .absent))
                return record
            } catch {
                // The intervening write may have bound the device. Then its record is the answer.
                guard [.versionConflict, .staleEpoch].contains(error.code) else { throw error }
                refusal = error
            }
        }
        throw refusal
    }

    /// Changes who may use a device, or whether it can be used, and notes who has lost a right to it, in one step.
    ///
    /// - Parameters:
    ///   - keepSeconds: how long grants are valid.
    ///   - events: adds the change to the outbox in the same step; nil: the caller publishes its event.
    /// - Returns: the record, and what was added to the outbox: nil if the change has changed nothing.
    /// - Throws: as ``DeviceRecord/apply(_:by:customer:now:)``; 8002 if the device or the customer is not known; 10007
    ///   beyond ``withdrawnMax`` or ``withdrawalsMax``; 10013 if a later epoch wrote the record; 10030 after too many
    ///   other writes.
    package func relate(
        _ device: DeviceID, epoch: Epoch, _ change: DeviceRelationChange, by client: DeviceClient, now: Int64,
        keepSeconds: Int64, events: DeviceEvents? = nil
    ) async throws(ApusError) -> (record: DeviceRecord, entry: OutboxEntry?) {
        let key = Self.key(of: device.rawValue)
        if case .assign(let customer?) = change, try await self.customer(customer) == nil {
            throw ApusError(.targetUnknown, "no such customer")
        }
        let busy = ApusError(.versionConflict, "the device is being changed by others")
        return try await store.change(attempts: Self.bindAttemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> ((record: DeviceRecord, entry: OutboxEntry?), RecordStep?) in
            let found = try await store.record(Self.devices, key)
            var record = found.map { DeviceRecord($0) } ?? DeviceRecord(device: device, epoch: epoch)
            guard found != nil || (change.createsRecord && client == .operator) else {
                throw ApusError(.targetUnknown, "no such device")
            }
            let before = record
            let customer = try await self.customer(of: change.checkedAccount(record.account))
            let lost = try record.apply(change, by: client, customer: customer, now: now)
            guard record != before else { return ((record, nil), nil) }
            record.epoch = epoch
            let entry = try events?.entry(of: change, before: found == nil ? nil : before, &record)
            var write = try Self.devices.put(
                record.message, fence: RecordFence(epoch: epoch, writer: writer),
                if: found.map { .version($0.version) } ?? .absent)
            if !change.waitsForRoom { write.usesReserve = true }
            let others = try await withdrawalWrites(
                of: lost, from: device, by: change, now: now, keepSeconds: keepSeconds)
            let added = if let events, let entry { try events.outbox.writes(entry, epoch) } else { [RecordWrite]() }
            return ((record, entry), RecordStep([write] + others + added))
        }.value
    }

    /// The customer of an account; nil for an account that is no customer's user.
    private func customer(of account: AccountID?) async throws(ApusError) -> CustomerID? {
        guard let account else { return nil }
        return try await user(account)?.customer
    }

    /// The devices that an account may use, by id, after `last`.
    /// - Parameter limit: clamped to ``RecordLimits/pageCountMax``.
    package func records(
        of account: AccountID, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        try await records(indexedBy: account.rawValue, after: last, limit: limit)
    }

    /// The devices to whose use an account is invited, by id, after `last`.
    /// - Parameter limit: clamped to ``RecordLimits/pageCountMax``.
    package func invitations(
        of account: AccountID, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        try await records(indexedBy: Self.invited(account.rawValue), after: last, limit: limit)
    }

    /// No account has a name with a slash.
    private static func invited(_ account: String) -> String { "invited/\(account)" }

    private func records(
        indexedBy name: String, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        let token = last.map { last in
            RecordToken(value: OrderedKey(.text(name), .text(last.rawValue)), key: Self.key(of: last.rawValue))
        }
        let page = try await store.page(
            Self.devices, by: "account", prefix: OrderedKey(.text(name)), after: token, limit: limit)
        return page.records.map { DeviceRecord($0) }
    }

    /// Rows of the table `devices` of earlier releases. A removed device keeps its epoch.
    static let earlierDevices = RecordImport(table: "devices") { rows throws(ApusError) in
        var writes: [RecordWrite] = []
        for row in rows {
            guard let device = row.text("device"), let epoch = row.integer("epoch") else {
                throw ApusError(.stateForeign, "the table of devices cannot be read")
            }
            let fence = RecordFence(epoch: Epoch(truncatingIfNeeded: epoch), writer: "")
            guard row.integer("removed") == 0 else {
                writes.append(devices.remove(key(of: device), fence: fence))
                continue
            }
            let record = DeviceRecord(
                device: DeviceID(unchecked: device), account: row.text("account").map(AccountID.init(unchecked:)),
                boundAtUnixMilliseconds: row.integer("bound_at_ms"),
                lastSeenUnixMilliseconds: row.integer("last_seen_ms"), epoch: fence.epoch)
            writes.append(try devices.put(record.message, fence: fence))
        }
        return writes
    }
}
