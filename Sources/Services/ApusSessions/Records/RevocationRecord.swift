package import ApusCore
import ApusStorage
import SwiftProtobuf

/// A revocation by an operator (IV-A6): it revokes tokens, and everything that was opened with them.
package struct RevocationRecord: Sendable, Hashable {
    package enum Subject: Sendable, Hashable {
        /// The token with this tag (the first 64 bits of the SHA-256 of its id).
        case token(UInt64)
        /// Tokens of one identity of an account that were issued before a time, in Unix seconds. The identity is an
        /// access id or a device's id.
        case identity(String, AccountID, issuedBefore: Int64)
        /// Tokens of an account that were issued before a time, in Unix seconds.
        case account(AccountID, issuedBefore: Int64)
    }

    /// The maximum number of revocations. One revocation of an account can replace many.
    package static let countMax = 100_000

    package var subject: Subject
    /// The expiry, in Unix seconds: by then all revoked tokens have expired. The record may be removed afterwards.
    package var expires: Int64

    package init(_ subject: Subject, expires: Int64) {
        self.subject = subject
        self.expires = expires
    }

    /// Nil for a subject of a newer release.
    init?(_ body: StoredRevocation) {
        switch body.subject {
        case .token(let tag)?: self.init(.token(tag), expires: body.expiresS)
        case .identity(let of)?:
            self.init(
                .identity(of.identity, AccountID(unchecked: of.account), issuedBefore: of.issuedBeforeS),
                expires: body.expiresS)
        case .account(let of)?:
            self.init(
                .account(AccountID(unchecked: of.account), issuedBefore: of.issuedBeforeS), expires: body.expiresS)
        case nil: return nil
        }
    }

    var message: StoredRevocation {
        .with {
            $0.expiresS = expires
            switch subject {
            case .token(let tag): $0.token = tag
            case .identity(let identity, let account, let before):
                $0.identity = .with {
                    $0.identity = identity
                    $0.account = account.rawValue
                    $0.issuedBeforeS = before
                }
            case .account(let account, let before):
                $0.account = .with {
                    $0.account = account.rawValue
                    $0.issuedBeforeS = before
                }
            }
        }
    }
}

/// The current revocations, with a mark that differs after every change.
package struct RevocationSet: Sendable, Equatable {
    package var mark: RevocationMark
    package var records: [RevocationRecord]
}

/// Shows, by comparison with an earlier mark, whether the revocations have changed.
package struct RevocationMark: Sendable, Hashable {
    /// The version of the record that changes with every revocation; 0 if there is none.
    var version: UInt64
}

extension SessionRecords {
    /// Revocations, one per subject, with an index by expiry.
    static let revocations = RecordCollection<StoredRevocation>(
        "revocations", layout: 1, key: { key(of: $0) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresS))] }], usesReserve: true)

    /// One record that every change of the revocations also writes.
    static let revocationState = RecordCollection<StoredRevocations>(
        "revocation-state", layout: 1, key: { _ in revocationStateKey }, usesReserve: true)

    private static let revocationStateKey = OrderedKey(.text("all"))
    /// The maximum number of expired revocations that a new one removes.
    private static let expiredCountMax = 100
    /// The maximum number of attempts of a revocation if other writes intervene.
    private static let revokeAttemptCountMax = 64

    private static func key(of revocation: StoredRevocation) -> OrderedKey {
        switch revocation.subject {
        case .token(let tag)?: OrderedKey(.unsigned(tag))
        case .identity(let of)?: OrderedKey(.text(of.account), .text(of.identity), .signed(of.issuedBeforeS))
        case .account(let of)?: OrderedKey(.text(of.account), .signed(of.issuedBeforeS))
        case nil: OrderedKey(.unsigned(0), .text("unknown"))
        }
    }

    /// Adds a revocation, and removes some that expired by `wallSeconds`. The revocation is durable on return.
    /// - Parameter countMax: less than ``RevocationRecord/countMax`` for whom some are left to others.
    /// - Throws: 10007 if there are `countMax` revocations already, or too many concurrent ones.
    package func revoke(
        _ revocation: RevocationRecord, wallSeconds: Int64, countMax: Int = RevocationRecord.countMax
    ) async throws(ApusError) {
        let busy = ApusError(.overloaded, "too many concurrent revocations")
        try await store.change(attempts: Self.revokeAttemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            ((), try await revocationStep(revocation, wallSeconds: wallSeconds, countMax))
        }
    }

    private func revocationStep(
        _ revocation: RevocationRecord, wallSeconds: Int64, _ countMax: Int
    ) async throws(ApusError) -> RecordStep {
        let state = try await store.record(Self.revocationState, Self.revocationStateKey)
        let key = Self.key(of: revocation.message)
        let known = try await store.record(Self.revocations, key)
        let expired = try await store.page(
            Self.revocations, by: "expires", below: OrderedKey(.signed(wallSeconds)).end, limit: Self.expiredCountMax
        ).records.filter { $0.key != key }
        let count = Int(state?.body.count ?? 0) - expired.count + (known == nil ? 1 : 0)
        guard count <= countMax else {
            throw ApusError(.overloaded, "\(count - 1) revocations exist already; revoke whole accounts")
        }
        var new = revocation
        new.expires = max(new.expires, known?.body.expiresS ?? new.expires)
        var writes = expired.map { Self.revocations.erase($0.key, fence: .none, if: .version($0.version)) }
        writes.append(
            try Self.revocations.put(new.message, fence: .none, if: known.map { .version($0.version) } ?? .absent))
        writes.append(
            try Self.revocationState.put(
                .with { $0.count = UInt32(clamping: count) }, fence: .none,
                if: state.map { .version($0.version) } ?? .absent))
        return RecordStep(writes)
    }

    /// The revocations, without those that expired by `wallSeconds`; nil if nothing has changed since `mark`.
    package func revocations(
        since mark: RevocationMark?, wallSeconds: Int64
    ) async throws(ApusError) -> RevocationSet? {
        // The mark is read first: later changes then change the next mark.
        let state = try await store.record(Self.revocationState, Self.revocationStateKey)
        let now = RevocationMark(version: state?.version ?? 0)
        guard now != mark else { return nil }
        var records: [RevocationRecord] = []
        var token: RecordToken?
        repeat {
            let page = try await store.page(Self.revocations, after: token)
            records += page.records.compactMap { RevocationRecord($0.body) }.filter { $0.expires > wallSeconds }
            token = page.next
        } while token != nil
        return RevocationSet(mark: now, records: records)
    }

    /// Rows of the table `revocations` of earlier releases.
    static let earlierRevocations = RecordImport(table: "revocations") { rows throws(ApusError) in
        var new: [OrderedKey: RevocationRecord] = [:]
        for row in rows {
            guard let record = RevocationRecord(row: row) else {
                throw ApusError(.stateForeign, "the table of revocations cannot be read")
            }
            let key = key(of: record.message)
            if let known = new[key], known.expires >= record.expires { continue }
            new[key] = record
        }
        var writes: [RecordWrite] = []
        for record in new.values { writes.append(try revocations.put(record.message, fence: .none)) }
        writes.append(try revocationState.put(.with { $0.count = UInt32(clamping: new.count) }, fence: .none))
        return writes
    }
}

extension RevocationRecord {
    fileprivate init?(row: [String: RecordImport.Value]) {
        guard let expires = row.integer("expires_s") else { return nil }
        if let token = row.integer("token") {
            self.init(.token(UInt64(bitPattern: token)), expires: expires)
            return
        }
        guard let account = row.text("account").map(AccountID.init(unchecked:)),
            let before = row.integer("issued_before_s")
        else { return nil }
        guard let identity = row.text("identity") else {
            self.init(.account(account, issuedBefore: before), expires: expires)
            return
        }
        self.init(.identity(identity, account, issuedBefore: before), expires: expires)
    }
}
