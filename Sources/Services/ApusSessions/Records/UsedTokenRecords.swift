import ApusCore
import ApusStorage
import SwiftProtobuf

extension SessionRecords {
    /// Tokens for one use that were used (IV-A3), with an index by expiry.
    static let usedTokens = RecordCollection<StoredUsedToken>(
        "used-tokens", layout: 1, key: { OrderedKey(.unsigned($0.tag)) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresS))] }])

    /// The most expired records that a new one removes.
    private static let expiredUseCountMax = 100

    /// Notes that a client uses a token for one use. Durable on return.
    ///
    /// - Parameter instance: the client's instance. A client whose answer was lost may use the token again; 0 stands
    ///   for a client that cannot.
    /// - Throws: 12001 if another client has used it.
    func use(_ token: TokenMark, instance: UInt64, wallSeconds: Int64) async throws(ApusError) {
        let body = StoredUsedToken.with {
            ($0.tag, $0.instance, $0.expiresS) = (token.tag, instance, token.expires)
        }
        let expired = try await store.page(
            Self.usedTokens, by: "expires", below: OrderedKey(.signed(wallSeconds - TokenVerifier.leewaySeconds)),
            limit: Self.expiredUseCountMax
        ).records
        do throws(ApusError) {
            try await store.commit(Self.usedTokens.put(body, fence: .none, if: .absent))
        } catch {
            guard error.code == .versionConflict else { throw error }
            let known = try await store.record(Self.usedTokens, Self.usedTokens.key(of: body))?.body
            guard instance != 0, known?.instance == instance else {
                throw ApusError(.tokenInvalid, "the token is for one use, and was used")
            }
            return
        }
        // Another node may remove the same; what fails is removed later.
        _ = await store.commit(
            expired.map { RecordStep(Self.usedTokens.erase($0.key, fence: .none, if: .version($0.version))) })
    }
}
