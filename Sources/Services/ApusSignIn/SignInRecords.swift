import ApusCore
import ApusStorage
import Foundation

/// The durable records of sign-in codes. They survive the death of any node, and any node takes them.
///
/// Isolation: `Sendable`; may be called from any task.
struct SignInRecords: Sendable {
    /// Codes by their hashes, with an index by expiry.
    static let codes = RecordCollection<SignInStoredCode>(
        "sign-in-codes", layout: 1, key: { key(of: $0.hash) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresMs))] }])
    static let catalogue = RecordCatalogue([codes])

    /// The most expired records that a new one removes. It is more than one, so they cannot grow in number.
    private static let expiredCountMax = 100

    let store: any RecordStore

    private static func key(of hash: Data) -> OrderedKey { OrderedKey(.bytes(Array(hash))) }

    /// Adds a code. Durable on return.
    ///
    /// - Parameter before: codes that have expired before this time are removed.
    func add(_ code: SignInStoredCode, expiredBefore before: Int64) async throws(ApusError) {
        try await store.commit(Self.codes.put(code, fence: .none, if: .absent))
        let expired = try await store.page(
            Self.codes, by: "expires", below: OrderedKey(.signed(before)), limit: Self.expiredCountMax
        ).records
        // Another node may remove the same; what fails is removed later.
        _ = await store.commit(
            expired.map { RecordStep(Self.codes.erase($0.key, fence: .none, if: .version($0.version))) })
    }

    /// Takes a code away. Durable on return: nobody receives it a second time.
    ///
    /// - Returns: nil if there is no such code, or another has taken it.
    func take(_ hash: [UInt8]) async throws(ApusError) -> SignInStoredCode? {
        guard let known = try await store.record(Self.codes, Self.key(of: Data(hash))) else { return nil }
        do throws(ApusError) {
            try await store.commit(Self.codes.erase(known.key, fence: .none, if: .version(known.version)))
        } catch {
            guard error.code == .versionConflict else { throw error }
            return nil
        }
        return known.body
    }
}
