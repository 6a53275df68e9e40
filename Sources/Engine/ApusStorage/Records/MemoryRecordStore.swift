package import ApusCore
import Synchronization

/// Records in memory, for tests and for nodes that keep nothing; lost with the process.
///
/// Concurrency model: the table sits behind a `Mutex`.
package final class MemoryRecordStore: RecordStore {
    private struct Row {
        var record: DeviceRecord?
        var epoch: Epoch
    }

    private let rows = Mutex<[DeviceID: Row]>([:])

    private let revocations = Mutex<(number: Int64, records: [RevocationRecord])>((0, []))
    private let identities = Mutex<[String: IdentityRecord]>([:])

    package init() {}

    package func revoke(_ revocation: RevocationRecord, wallSeconds: Int64) async throws(ApusError) {
        let isAdded = revocations.withLock { kept in
            kept.records.removeAll { $0.expires <= wallSeconds }
            guard kept.records.count < RecordLimits.revocationCountMax else { return false }
            kept = (kept.number + 1, kept.records + [revocation])
            return true
        }
        if !isAdded { throw ApusError(.overloaded, "too many revocations are kept already") }
    }

    package func revocations(
        since mark: RevocationMark?, wallSeconds: Int64
    ) async throws(ApusError) -> RevocationSet? {
        revocations.withLock { kept in
            let now = RevocationMark(newest: kept.number, count: kept.records.count)
            guard now != mark else { return nil }
            return RevocationSet(mark: now, records: kept.records.filter { $0.expires > wallSeconds })
        }
    }

    package func identity(_ identity: String) async throws(ApusError) -> IdentityRecord? {
        identities.withLock { $0[identity] }
    }

    package func save(_ identities: [IdentityRecord], wallSeconds: Int64) async throws(ApusError) {
        self.identities.withLock { kept in
            for new in identities {
                if let old = kept[new.identity], new.isOlder(than: old) { continue }
                kept[new.identity] = new
            }
            kept = kept.filter { $0.value.expires > wallSeconds }
        }
    }

    package func record(of device: DeviceID) async throws(ApusError) -> DeviceRecord? {
        rows.withLock { $0[device]?.record }
    }

    package func save(_ record: DeviceRecord) async throws(ApusError) {
        try write(record, of: record.device, epoch: record.epoch)
    }

    package func bind(_ record: DeviceRecord) async throws(ApusError) -> DeviceRecord {
        let bound: DeviceRecord? = rows.withLock { rows in
            let row = rows[record.device]
            if let known = row?.record, known.account != nil { return known }
            guard row.map({ $0.epoch <= record.epoch }) ?? true else { return nil }
            rows[record.device] = Row(record: record, epoch: record.epoch)
            return record
        }
        guard let bound else { throw ApusError(.staleEpoch) }
        return bound
    }

    package func remove(_ device: DeviceID, epoch: Epoch) async throws(ApusError) {
        try write(nil, of: device, epoch: epoch)
    }

    package func records(
        of account: AccountID, after last: DeviceID?, limit: Int
    ) async throws(ApusError) -> [DeviceRecord] {
        let bound = rows.withLock { $0.values.compactMap(\.record) }
            .filter { record in record.account == account && (last.map { record.device > $0 } ?? true) }
        return Array(bound.sorted { $0.device < $1.device }.prefix(max(0, min(limit, RecordLimits.pageCountMax))))
    }

    private func write(_ record: DeviceRecord?, of device: DeviceID, epoch: Epoch) throws(ApusError) {
        let isFenced = rows.withLock { rows in
            guard rows[device].map({ $0.epoch <= epoch }) ?? true else { return true }
            rows[device] = Row(record: record, epoch: epoch)
            return false
        }
        if isFenced { throw ApusError(.staleEpoch) }
    }
}
