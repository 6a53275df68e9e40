package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// The durable records of products.
///
/// In addition to the documented errors, methods throw 10006, 10007 and 10021, as ``RecordStore`` does.
///
/// Isolation: `Sendable`; may be called from any task.
package struct ProductRecords: Sendable {
    static let products = RecordCollection<ThingStoredProduct>(
        "products", layout: 1, key: { OrderedKey(.text($0.customer), .text($0.product)) })
    /// A counter for each customer. It is written in one step with the customer's products, so that concurrent
    /// creations at two nodes do not exceed the limit.
    static let owners = RecordCollection<ThingStoredProductOwner>(
        "product-owners", layout: 1, key: { OrderedKey(.text($0.customer)) })
    /// The most attempts of a change while other writes intervene.
    private static let attemptCountMax = 32

    private let store: any RecordStore

    package init(_ store: any RecordStore) { self.store = store }

    /// A product; nil if it does not exist.
    package func product(_ product: ProductID, of customer: String) async throws(ApusError) -> ThingStoredProduct? {
        try await store.record(Self.products, Self.key(customer, product))?.body
    }

    /// The products of a customer in the order of their names, after `last`.
    package func products(
        of customer: String, after last: ProductID?, limit: Int
    ) async throws(ApusError) -> [ThingStoredProduct] {
        let token = last.map { RecordToken(value: Self.key(customer, $0), key: Self.key(customer, $0)) }
        return try await store.page(
            Self.products, prefix: OrderedKey(.text(customer)), after: token, limit: limit
        ).records.map(\.body)
    }

    /// True if any customer has a product.
    package func areUsed() async throws(ApusError) -> Bool {
        try await !store.page(Self.products, limit: 1).records.isEmpty
    }

    /// Creates a product, or replaces its schema. An identical schema changes nothing, whatever `revision` is, since
    /// the request may be a repetition.
    ///
    /// - Parameters:
    ///   - revision: the revision that the product must have; 0: any, or a new product.
    ///   - countMax: the most products of the customer.
    /// - Throws: 10030 if the product has another revision; 10007 beyond `countMax`, or after too many concurrent
    ///   writes.
    package func put(
        _ product: ProductID, of customer: String, schema: String, ifRevision revision: UInt64, countMax: Int,
        wallMilliseconds: Int64
    ) async throws(ApusError) -> ThingStoredProduct {
        try await change(customer, product) { found, owner throws(ApusError) in
            if let found, found.body.schema.isExactly(schema) { return (found.body, nil) }
            let known = found?.body.revision ?? 0
            guard revision == 0 || revision == known else {
                throw ApusError(
                    .versionConflict, found == nil ? "no such product" : "the product has revision \(known)")
            }
            if found == nil {
                guard owner.products < countMax else {
                    throw ApusError(.overloaded, "the customer has \(countMax) products already")
                }
                owner.products += 1
            }
            owner.revision += 1
            let new = ThingStoredProduct.with {
                ($0.customer, $0.product, $0.schema) = (customer, product.rawValue, schema)
                ($0.revision, $0.changedMs) = (owner.revision, wallMilliseconds)
                $0.createdMs = found?.body.createdMs ?? wallMilliseconds
            }
            let write = try Self.products.put(
                new, fence: .none, if: found.map { .version($0.version) } ?? .absent)
            return (new, write)
        }
    }

    /// Deletes a product.
    /// - Throws: 8002 if the product does not exist; 10007 after too many concurrent writes.
    package func delete(_ product: ProductID, of customer: String) async throws(ApusError) {
        let key = Self.key(customer, product)
        _ = try await change(customer, product) { found, owner throws(ApusError) in
            guard let found else { throw ApusError.noProduct }
            owner.products -= min(owner.products, 1)
            return (found.body, Self.products.erase(key, fence: .none, if: .version(found.version)))
        }
    }

    private static func key(_ customer: String, _ product: ProductID) -> OrderedKey {
        OrderedKey(.text(customer), .text(product.rawValue))
    }

    /// Changes a product together with its customer's counter.
    ///
    /// - Parameter body: returns the product and the write to commit; a nil write changes nothing.
    private func change(
        _ customer: String, _ product: ProductID,
        _ body: (
            Record<ThingStoredProduct>?, inout ThingStoredProductOwner
        ) throws(ApusError) -> (ThingStoredProduct, RecordWrite?)
    ) async throws(ApusError) -> ThingStoredProduct {
        let busy = ApusError(.overloaded, "too many products of this customer are changed at once; try again")
        return try await store.change(attempts: Self.attemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (ThingStoredProduct, RecordStep?) in
            let known = try await store.record(Self.owners, OrderedKey(.text(customer)))
            let found = try await store.record(Self.products, Self.key(customer, product))
            var owner = known?.body ?? .with { $0.customer = customer }
            let (new, write) = try body(found, &owner)
            guard let write else { return (new, nil) }
            let count = try Self.owners.put(
                owner, fence: .none, if: known.map { .version($0.version) } ?? .absent)
            return (new, RecordStep(write, count))
        }.value
    }
}

extension ApusError {
    static var noProduct: ApusError { ApusError(.targetUnknown, "no such product") }
}
