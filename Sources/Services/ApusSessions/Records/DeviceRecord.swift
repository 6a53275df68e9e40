package import ApusCore
import ApusStorage
import SwiftProtobuf

/// The durable record of a device (D6, D9).
package struct DeviceRecord: Sendable, Hashable {
    package var device: DeviceID
    /// The account to which the device is bound; nil if it is unbound.
    package var account: AccountID?
    /// The time of the binding, in Unix milliseconds; nil if it is unbound. For display; never used for decisions.
    package var boundAtUnixMilliseconds: Int64?
    /// The time of the last connection, in Unix milliseconds. For display; never used for decisions.
    package var lastSeenUnixMilliseconds: Int64?
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

    init(_ record: Record<StoredDevice>) {
        let body = record.body
        self.init(
            device: DeviceID(unchecked: body.device),
            account: body.account.isEmpty ? nil : AccountID(unchecked: body.account),
            boundAtUnixMilliseconds: body.hasBoundAtMs ? body.boundAtMs : nil,
            lastSeenUnixMilliseconds: body.hasLastSeenMs ? body.lastSeenMs : nil, epoch: record.fence.epoch)
    }

    var message: StoredDevice {
        .with {
            $0.device = device.rawValue
            $0.account = account?.rawValue ?? ""
            if let boundAtUnixMilliseconds { $0.boundAtMs = boundAtUnixMilliseconds }
            if let lastSeenUnixMilliseconds { $0.lastSeenMs = lastSeenUnixMilliseconds }
        }
    }
}

extension SessionRecords {
    /// Devices, with an index by account for bound devices.
    static let devices = RecordCollection<StoredDevice>(
        "devices", layout: 1, key: { key(of: $0.device) },
        indexes: [
            RecordIndex("account") { device in
                device.account.isEmpty ? [] : [OrderedKey(.text(device.account), .text(device.device))]
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
    /// - Throws: 10013 if a later epoch wrote or removed the record, and the device is unbound.
    package func bind(_ record: DeviceRecord) async throws(ApusError) -> DeviceRecord {
        let key = Self.key(of: record.device.rawValue)
        var refusal = ApusError(.versionConflict)
        for _ in 0..<Self.bindAttemptCountMax {
            let found = try await store.record(Self.devices, key)
            if let found, !found.body.account.isEmpty { return DeviceRecord(found) }
            guard refusal.code != .staleEpoch else { break }
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

    /// The devices that are bound to an account, by id, after `last`.
    /// - Parameter limit: clamped to ``RecordLimits/pageCountMax``.
    package func records(
        of account: AccountID, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        let token = last.map { last in
            RecordToken(
                value: OrderedKey(.text(account.rawValue), .text(last.rawValue)), key: Self.key(of: last.rawValue))
        }
        let page = try await store.page(
            Self.devices, by: "account", prefix: OrderedKey(.text(account.rawValue)), after: token, limit: limit)
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
