import ApusCore
import ApusStorage
import SwiftProtobuf

/// The durable records of device codes and grants. Codes survive the death of any node.
///
/// Isolation: `Sendable`; may be called from any task.
struct DeviceAuthorizationRecords: Sendable {
    /// Codes by their user codes, with an index by expiry.
    static let codes = RecordCollection<AuthorizationStoredCode>(
        "device-codes", layout: 1, key: { OrderedKey(.text($0.userCode)) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresMs))] }])
    /// The newest grant of each device, with an index by expiry.
    static let grants = RecordCollection<AuthorizationStoredGrant>(
        "device-grants", layout: 1, key: { OrderedKey(.text($0.device)) },
        indexes: [RecordIndex("expires") { [OrderedKey(.signed($0.expiresS))] }])
    static let catalogue = RecordCatalogue([codes, grants])

    /// The most expired records that a new one removes. It is more than one, so they cannot grow in number.
    private static let expiredCountMax = 100
    private static let attemptsMax = 8
    private static let busy = ApusError(.overloaded, "the code is changed by several at once; try again")

    let store: any RecordStore

    func code(_ code: UserCode) async throws(ApusError) -> AuthorizationStoredCode? {
        try await store.record(Self.codes, OrderedKey(.text(code.letters)))?.body
    }

    /// Adds a code. Durable on return.
    ///
    /// - Parameter before: codes that have expired before this time are removed.
    /// - Returns: false if there is a code of these letters.
    func add(_ code: AuthorizationStoredCode, expiredBefore before: Int64) async throws(ApusError) -> Bool {
        do throws(ApusError) {
            try await store.commit(Self.codes.put(code, fence: .none, if: .absent))
        } catch {
            guard error.code == .versionConflict else { throw error }
            return false
        }
        let expired = try await store.page(
            Self.codes, by: "expires", below: OrderedKey(.signed(before)), limit: Self.expiredCountMax
        ).records
        // Another node may remove the same; what fails is removed later.
        _ = await store.commit(
            expired.map { RecordStep(Self.codes.erase($0.key, fence: .none, if: .version($0.version))) })
        return true
    }

    /// Changes a code, and with it the grant of its device. Durable on return.
    ///
    /// - Parameter body: makes the change, and returns the grant that the device receives; nil: none. Called again if
    ///   others have changed the code meanwhile.
    /// - Throws: 8002 if there is no such code; what `body` throws.
    func change(
        _ code: UserCode,
        _ body: (inout DeviceCodeStateMachine) async throws(ApusError) -> AuthorizationStoredGrant?
    ) async throws(ApusError) -> AuthorizationStoredCode {
        try await store.change(attempts: Self.attemptsMax, otherwise: Self.busy) {
            () async throws(ApusError) -> (AuthorizationStoredCode, RecordStep?) in
            guard let known = try await store.record(Self.codes, OrderedKey(.text(code.letters))) else {
                throw ApusError(.targetUnknown, "there is no such code, or it has expired")
            }
            var machine = DeviceCodeStateMachine(known.body)
            let grant = try await body(&machine)
            guard machine.code != known.body else { return (machine.code, nil) }
            var writes = [try Self.codes.put(machine.code, fence: .none, if: .version(known.version))]
            if let grant { writes.append(try Self.grants.put(grant, fence: .none)) }
            return (machine.code, RecordStep(writes))
        }.value
    }

    /// Changes the grant of a device. Durable on return.
    ///
    /// - Parameter body: nil: the grant is removed.
    /// - Returns: the grant as it was, and as it is.
    func changeGrant(
        of device: DeviceID,
        _ body: (AuthorizationStoredGrant?) async throws(ApusError) -> AuthorizationStoredGrant?
    ) async throws(ApusError) -> (before: AuthorizationStoredGrant?, after: AuthorizationStoredGrant?) {
        try await store.change(attempts: Self.attemptsMax, otherwise: Self.busy) {
            () async throws(ApusError)
                -> ((AuthorizationStoredGrant?, AuthorizationStoredGrant?), RecordStep?) in
            let key = OrderedKey(.text(device.rawValue))
            let known = try await store.record(Self.grants, key)
            let new = try await body(known?.body)
            guard new != known?.body else { return ((known?.body, new), nil) }
            let condition: RecordCondition = known.map { .version($0.version) } ?? .absent
            let write =
                try new.map { grant throws(ApusError) in try Self.grants.put(grant, fence: .none, if: condition) }
                ?? Self.grants.erase(key, fence: .none, if: condition)
            return ((known?.body, new), RecordStep(write))
        }.value
    }

    /// Removes grants whose refresh token has expired.
    func removeGrants(expiredBefore before: Int64) async throws(ApusError) {
        let expired = try await store.page(
            Self.grants, by: "expires", below: OrderedKey(.signed(before)), limit: Self.expiredCountMax
        ).records
        guard !expired.isEmpty else { return }
        _ = await store.commit(
            expired.map { RecordStep(Self.grants.erase($0.key, fence: .none, if: .version($0.version))) })
    }
}
