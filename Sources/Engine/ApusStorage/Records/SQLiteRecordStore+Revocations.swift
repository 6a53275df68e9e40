package import ApusCore
import GRDB

/// What operators revoked (IV-A6).
extension SQLiteRecordStore {
    package func revoke(_ revocation: RevocationRecord, wallSeconds: Int64) async throws(ApusError) {
        try await file.write { database in
            try database.cachedStatement(sql: "DELETE FROM revocations WHERE expires_s <= ?")
                .execute(arguments: [wallSeconds])
            let count = try Int.fetchOne(database, sql: "SELECT count(*) FROM revocations") ?? 0
            guard count < RecordLimits.revocationCountMax else {
                throw ApusError(.overloaded, "\(count) revocations are kept already; revoke whole accounts")
            }
            let statement = try database.cachedStatement(
                sql: """
                    INSERT INTO revocations (account, identity, token, issued_before_s, expires_s)
                    VALUES (?, ?, ?, ?, ?)
                    """)
            switch revocation.subject {
            case .token(let tag):
                try statement.execute(arguments: [nil, nil, Int64(bitPattern: tag), nil, revocation.expires])
            case .identity(let identity, let account, let before):
                try statement.execute(arguments: [account.rawValue, identity, nil, before, revocation.expires])
            case .account(let account, let before):
                try statement.execute(arguments: [account.rawValue, nil, nil, before, revocation.expires])
            }
        }
    }

    package func revocations(
        since mark: RevocationMark?, wallSeconds: Int64
    ) async throws(ApusError) -> RevocationSet? {
        try await file.access { database in
            // One read of both, so that a revocation that comes between them is not missed later.
            let statement = try database.cachedStatement(
                sql: "SELECT coalesce(max(number), 0) AS newest, count(*) AS count FROM revocations")
            guard let row = try Row.fetchOne(statement) else { return nil }
            let now = RevocationMark(newest: row["newest"], count: row["count"])
            guard now != mark else { return nil }
            let all = try Row.fetchAll(
                database.cachedStatement(sql: "SELECT * FROM revocations WHERE expires_s > ?"),
                arguments: [wallSeconds])
            return RevocationSet(mark: now, records: all.compactMap(Self.revocation))
        }
    }

    /// Nil for a row of a newer version.
    private static func revocation(_ row: Row) -> RevocationRecord? {
        let (account, identity): (String?, String?) = (row["account"], row["identity"])
        let (token, before): (Int64?, Int64?) = (row["token"], row["issued_before_s"])
        let expires: Int64 = row["expires_s"]
        if let token { return RevocationRecord(.token(UInt64(bitPattern: token)), expires: expires) }
        guard let account = account.map(AccountID.init(unchecked:)), let before else { return nil }
        guard let identity else { return RevocationRecord(.account(account, issuedBefore: before), expires: expires) }
        return RevocationRecord(.identity(identity, account, issuedBefore: before), expires: expires)
    }
}
