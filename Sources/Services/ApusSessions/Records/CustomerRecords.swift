package import ApusCore
import ApusCrypto
import ApusStorage
import Foundation
import SwiftProtobuf

/// An integrator: a tenant of the cluster (IV-A1, docs/accounts.md).
package struct CustomerRecord: Sendable, Hashable {
    /// A key with which the customer's server makes requests. It is a token, of which only the id is stored.
    package struct Key: Sendable, Hashable {
        package var id: String
        /// Unix seconds.
        package var issued: Int64
        package var expires: Int64

        package init(id: String, issued: Int64, expires: Int64) {
            (self.id, self.issued, self.expires) = (id, issued, expires)
        }
    }

    package var customer: CustomerID
    /// Keys that are not revoked, oldest first.
    package var keys: [Key]
    package var userCount: Int

    init(_ body: StoredCustomer) {
        customer = CustomerID(unchecked: body.customer)
        keys = body.keys.map { Key(id: $0.id, issued: $0.issuedS, expires: $0.expiresS) }
        userCount = Int(body.users)
    }
}

/// A user of an integrator (IV-A1).
package struct UserRecord: Sendable, Hashable {
    /// The user's access id, which is also the name of its account.
    package var user: AccountID
    package var customer: CustomerID
    /// Unix milliseconds. For display; never used for decisions.
    package var registeredAtUnixMilliseconds: Int64

    init(_ body: StoredUser) {
        user = AccountID(unchecked: body.user)
        customer = CustomerID(unchecked: body.customer)
        registeredAtUnixMilliseconds = body.registeredMs
    }
}

extension SessionRecords {
    static let customers = RecordCollection<StoredCustomer>(
        "customers", layout: 1, key: { OrderedKey(.text($0.customer)) }, usesReserve: true)

    /// Users, with an index by customer.
    static let users = RecordCollection<StoredUser>(
        "users", layout: 1, key: { OrderedKey(.text($0.user)) },
        indexes: [RecordIndex("customer") { [OrderedKey(.text($0.customer), .text($0.user))] }])

    /// The most customers; one more is refused with 10007.
    package static let customersMax = 1000
    /// The valid keys of a customer: the current one, and another while it is replaced.
    package static let keysMax = 2
    /// The maximum number of attempts of a change if other writes intervene.
    private static let customerAttemptCountMax = 64

    // MARK: - Customers

    /// Creates a customer. If there is one of this name, it stays as it is.
    /// - Throws: 10007 beyond ``customersMax``.
    package func createCustomer(_ customer: CustomerID, wallSeconds: Int64) async throws(ApusError) -> CustomerRecord {
        if let known = try await self.customer(customer) { return known }
        guard try await customers(after: nil, limit: Self.customersMax).count < Self.customersMax else {
            throw ApusError(.overloaded, "there are \(Self.customersMax) customers already")
        }
        let body = StoredCustomer.with {
            $0.customer = customer.rawValue
            $0.userSecret = SymmetricKey.random().withUnsafeBytes { Data($0) }
            $0.createdMs = wallSeconds * 1000
        }
        do throws(ApusError) {
            try await store.commit(Self.customers.put(body, fence: .none, if: .absent))
        } catch {
            guard error.code == .versionConflict, let known = try await self.customer(customer) else { throw error }
            return known
        }
        return CustomerRecord(body)
    }

    package func customer(_ customer: CustomerID) async throws(ApusError) -> CustomerRecord? {
        try await store.record(Self.customers, OrderedKey(.text(customer.rawValue))).map { CustomerRecord($0.body) }
    }

    /// The customers by name, after `last`.
    /// - Parameter limit: clamped to ``RecordLimits/pageCountMax``.
    package func customers(after last: CustomerID?, limit: Int) async throws(ApusError) -> [CustomerRecord] {
        let token = last.map { RecordToken(value: OrderedKey(.text($0.rawValue)), key: OrderedKey(.text($0.rawValue))) }
        return try await store.page(Self.customers, after: token, limit: limit).records.map { CustomerRecord($0.body) }
    }

    /// Notes a new key of a customer.
    /// - Throws: 8002 for an unknown customer; 10007 beyond ``keysMax``.
    package func addKey(_ key: CustomerRecord.Key, of customer: CustomerID, now: Int64) async throws(ApusError) {
        try await change(customer) { body throws(ApusError) in
            body.keys.removeAll { $0.expiresS <= now }
            guard body.keys.count < Self.keysMax else {
                throw ApusError(.overloaded, "the customer has \(Self.keysMax) valid keys; revoke one of them first")
            }
            body.keys.append(
                .with { ($0.id, $0.issuedS, $0.expiresS) = (key.id, key.issued, key.expires) })
        }
    }

    /// Revokes a key of a customer. Durable on return; every node refuses it within a second.
    /// - Throws: 8002 for an unknown customer, or a key that it does not have; otherwise as
    ///   ``revoke(_:wallSeconds:countMax:)``.
    package func revokeKey(_ id: String, of customer: CustomerID, now: Int64) async throws(ApusError) {
        guard let key = try await self.customer(customer)?.keys.first(where: { $0.id == id }) else {
            throw ApusError(.targetUnknown, "no such key")
        }
        // The list of keys is for people and for the bound; the revocation is what nodes check, so it comes first.
        try await revoke(RevocationRecord(.token(TokenMark.tag(of: id)), expires: key.expires + 60), wallSeconds: now)
        try await change(customer) { body throws(ApusError) in
            body.keys.removeAll { $0.id == id }
        }
    }

    /// Counts a revocation by a customer.
    /// - Parameter window: how long it counts, in seconds.
    /// - Throws: 8002 for an unknown customer; 10007 beyond `max`.
    package func noteRevocation(
        by customer: CustomerID, max: Int, window: Int64, now: Int64
    ) async throws(ApusError) {
        try await change(customer) { body throws(ApusError) in
            // Also where a clock went back: the window never ends later than it may.
            if body.windowEndsS <= now || body.windowEndsS > now + window {
                (body.windowEndsS, body.revocations) = (now + window, 0)
            }
            guard body.revocations < max else {
                throw ApusError(
                    .overloaded, "the customer has revoked \(max) tokens; let tokens be valid for less time")
            }
            body.revocations += 1
        }
    }

    // MARK: - Users

    /// Registers a user of a customer. The same external id has the same user.
    ///
    /// The user's id is made from the external id with a secret of the customer: it is the same at every node without a
    /// table, and does not show the external id, which is often a name or an address.
    /// - Throws: 8002 for an unknown customer; 10007 for more than `usersMax` users, and after too many other writes.
    package func registerUser(
        _ externalID: String, of customer: CustomerID, usersMax: Int, wallSeconds: Int64
    ) async throws(ApusError) -> UserRecord {
        let key = OrderedKey(.text(customer.rawValue))
        let busy = ApusError(.overloaded, "too many users of this customer are registered at once; try again")
        return try await store.change(attempts: Self.customerAttemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (UserRecord, RecordStep?) in
            guard let found = try await store.record(Self.customers, key) else {
                throw ApusError(.targetUnknown, "no such customer")
            }
            let user = StoredUser.with {
                $0.user = Self.userName(externalID, found.body.userSecret)
                $0.customer = customer.rawValue
                $0.registeredMs = wallSeconds * 1000
            }
            if let known = try await self.user(AccountID(unchecked: user.user)) { return (known, nil) }
            guard found.body.users < usersMax else {
                throw ApusError(.overloaded, "the customer has \(usersMax) users already")
            }
            var new = found.body
            new.users += 1
            let step = RecordStep(
                try Self.users.put(user, fence: .none, if: .absent),
                try Self.customers.put(new, fence: .none, if: .version(found.version)))
            return (UserRecord(user), step)
        }.value
    }

    package func user(_ user: AccountID) async throws(ApusError) -> UserRecord? {
        try await store.record(Self.users, OrderedKey(.text(user.rawValue))).map { UserRecord($0.body) }
    }

    /// The users of a customer by id, after `last`.
    /// - Parameter limit: clamped to ``RecordLimits/pageCountMax``.
    package func users(
        of customer: CustomerID, after last: AccountID?, limit: Int
    ) async throws(ApusError) -> [UserRecord] {
        let token = last.map { last in
            RecordToken(
                value: OrderedKey(.text(customer.rawValue), .text(last.rawValue)), key: OrderedKey(.text(last.rawValue))
            )
        }
        let page = try await store.page(
            Self.users, by: "customer", prefix: OrderedKey(.text(customer.rawValue)), after: token, limit: limit)
        return page.records.map { UserRecord($0.body) }
    }

    /// `u-` and 24 letters and digits: 120 bits of a HMAC-SHA256.
    private static func userName(_ externalID: String, _ secret: Data) -> String {
        let code = HMAC<SHA256>.authenticationCode(for: Data(externalID.utf8), using: secret)
        let digits = Array("abcdefghijklmnopqrstuvwxyz234567")
        var (text, bits, count) = ("u-", 0 as UInt64, 0)
        for byte in code.prefix(15) {
            bits = bits << 8 | UInt64(byte)
            count += 8
            while count >= 5 {
                count -= 5
                text.append(digits[Int(bits >> UInt64(count) & 31)])
            }
        }
        return text
    }

    /// Changes a customer's record.
    /// - Throws: 8002 for an unknown customer, 10007 after too many other writes, and what `body` throws.
    private func change(
        _ customer: CustomerID, _ body: (inout StoredCustomer) throws(ApusError) -> Void
    ) async throws(ApusError) {
        let key = OrderedKey(.text(customer.rawValue))
        let busy = ApusError(.overloaded, "the customer is being changed by too many others; try again")
        try await store.change(attempts: Self.customerAttemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            guard let found = try await store.record(Self.customers, key) else {
                throw ApusError(.targetUnknown, "no such customer")
            }
            var new = found.body
            try body(&new)
            return ((), RecordStep(try Self.customers.put(new, fence: .none, if: .version(found.version))))
        }
    }
}
