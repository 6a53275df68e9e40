import ApusCluster
package import ApusCore
import ApusStorage
import SwiftProtobuf

/// The newest client of an identity and its superseded clients. Kept for as long as one of them may present a ticket
/// (IV-A5), and for a device as long as its last connection is of interest.
package struct IdentityRecord: Sendable, Hashable {
    /// The identity's name in its service.
    package var identity: String
    /// The order of its newest client: the epoch under which it was assigned, then a number.
    package var epoch: Epoch
    package var sequence: UInt64
    /// The instance of that client; 0 if it named none.
    package var instance: UInt64
    /// Superseded instances, newest last.
    package var superseded: [UInt64]
    /// The expiry, in Unix seconds. The record may be removed afterwards.
    package var expires: Int64
    /// The last sign-in or end of a connection, in Unix seconds; 0 if it is unknown.
    package var seen: Int64

    package init(
        identity: String, epoch: Epoch, sequence: UInt64, instance: UInt64, superseded: [UInt64], expires: Int64,
        seen: Int64 = 0
    ) {
        self.instance = instance
        self.identity = identity
        self.epoch = epoch
        self.sequence = sequence
        self.superseded = superseded
        self.expires = expires
        self.seen = seen
    }

    init(_ body: StoredIdentity) {
        self.init(
            identity: body.identity, epoch: body.epoch, sequence: body.sequence, instance: body.instance,
            superseded: body.superseded, expires: body.expiresS, seen: body.seenS)
    }

    var message: StoredIdentity {
        .with {
            $0.identity = identity
            $0.epoch = epoch
            $0.sequence = sequence
            $0.instance = instance
            $0.superseded = superseded
            $0.expiresS = expires
            $0.seenS = seen
        }
    }

    /// An older record does not replace a newer one.
    func isOlder(than other: Self) -> Bool { (epoch, sequence) < (other.epoch, other.sequence) }
}

extension SessionRecords {
    /// Identities, with an index by expiry.
    static let identities = RecordCollection<StoredIdentity>(
        "identities", layout: 1, key: { key(ofIdentity: $0.identity) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresS))] }])

    /// The number of identities in one write or removal.
    private static let identityBatchCountMax = 256
    /// The maximum number of attempts to write an identity if other writes intervene.
    private static let identityAttemptCountMax = 4

    private static func key(ofIdentity identity: String) -> OrderedKey { OrderedKey(.text(identity)) }

    /// The record of an identity's clients; nil if there is none.
    package func identity(_ identity: String) async throws(ApusError) -> IdentityRecord? {
        try await store.record(Self.identities, Self.key(ofIdentity: identity)).map { IdentityRecord($0.body) }
    }

    /// When each of these devices signed in last, or its last connection ended, in Unix seconds; 0 if it is unknown.
    package func lastSeen(of devices: [DeviceID]) async throws(ApusError) -> [Int64] {
        var found: [Int64] = []
        for start in stride(from: 0, to: devices.count, by: Self.identityBatchCountMax) {
            let batch = devices[start..<min(start + Self.identityBatchCountMax, devices.count)]
            let keys = batch.map { Self.key(ofIdentity: EntityAddress(kind: .device, key: $0.rawValue).name) }
            found += try await store.records(Self.identities, keys).map { $0?.body.seenS ?? 0 }
        }
        return found
    }

    /// Writes the records of several identities, except those with a newer record in the store. Removes records that
    /// expired by `wallSeconds`.
    package func save(_ identities: [IdentityRecord], wallSeconds: Int64) async throws(ApusError) {
        for start in stride(from: 0, to: identities.count, by: Self.identityBatchCountMax) {
            var rest = Array(identities[start..<min(start + Self.identityBatchCountMax, identities.count)])
            for _ in 0..<Self.identityAttemptCountMax where !rest.isEmpty { rest = try await save(rest) }
            guard rest.isEmpty else { throw ApusError(.versionConflict) }
        }
        try await forgetIdentities(expiredBy: wallSeconds, countMax: identities.count + Self.identityBatchCountMax)
    }

    /// Returns the records whose writes conflicted with another write.
    private func save(_ identities: [IdentityRecord]) async throws(ApusError) -> [IdentityRecord] {
        let found = try await store.records(Self.identities, identities.map { Self.key(ofIdentity: $0.identity) })
        var new: [IdentityRecord] = []
        var steps: [RecordStep] = []
        for (record, known) in zip(identities, found) {
            if let known, record.isOlder(than: IdentityRecord(known.body)) { continue }
            new.append(record)
            let write = try Self.identities.put(
                record.message, fence: RecordFence(epoch: record.epoch, writer: writer),
                if: known.map { .version($0.version) } ?? .absent)
            steps.append(RecordStep(write))
        }
        var missed: [IdentityRecord] = []
        for (record, outcome) in zip(new, await store.commit(steps)) {
            guard case .failure(let error) = outcome else { continue }
            switch error.code {
            case .versionConflict: missed.append(record)
            // A later epoch wrote it, so this record is older.
            case .staleEpoch: break
            default: throw error
            }
        }
        return missed
    }

    private func forgetIdentities(expiredBy wallSeconds: Int64, countMax: Int) async throws(ApusError) {
        var (token, count): (RecordToken?, Int) = (nil, 0)
        repeat {
            let expired = try await store.page(
                Self.identities, by: "expires", below: OrderedKey(.signed(wallSeconds)).end, after: token,
                limit: Self.identityBatchCountMax)
            for outcome in await store.commit(
                expired.records.map { record in
                    RecordStep(Self.identities.erase(record.key, fence: record.fence, if: .version(record.version)))
                })
            {
                guard case .failure(let error) = outcome else { continue }
                // It was written in the meantime, so it has not expired.
                guard [.versionConflict, .staleEpoch].contains(error.code) else { throw error }
            }
            token = expired.next
            count += expired.records.count
        } while token != nil && count < countMax
    }

    /// Rows of the table `identities` of earlier releases.
    static let earlierIdentities = RecordImport(table: "identities") { rows throws(ApusError) in
        var writes: [RecordWrite] = []
        for row in rows {
            guard let identity = row.text("identity"), let epoch = row.integer("epoch"),
                let sequence = row.integer("sequence"), let instance = row.integer("instance"),
                let superseded = row.bytes("superseded"), let expires = row.integer("expires_s")
            else { throw ApusError(.stateForeign, "the table of identities cannot be read") }
            let record = IdentityRecord(
                identity: identity, epoch: Epoch(truncatingIfNeeded: epoch), sequence: shifted(sequence),
                instance: shifted(instance), superseded: numbers(in: superseded), expires: expires)
            writes.append(
                try identities.put(record.message, fence: RecordFence(epoch: record.epoch, writer: "")))
        }
        return writes
    }

    /// SQLite's integers are signed. The table held these numbers shifted, so that they sorted correctly.
    private static func shifted(_ number: Int64) -> UInt64 { UInt64(bitPattern: number) ^ (1 << 63) }

    private static func numbers(in bytes: [UInt8]) -> [UInt64] {
        stride(from: 0, to: bytes.count - bytes.count % 8, by: 8).map { start in
            bytes[start..<(start + 8)].reduce(0) { $0 << 8 | UInt64($1) }
        }
    }
}
