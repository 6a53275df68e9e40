package import ApusClientAPI
import ApusCluster
package import ApusCore
import ApusSessions
package import ApusStorage
import CoreMetrics
import SwiftProtobuf
import Synchronization

/// Products and their schemas at this node (IV-D1 to IV-D5, docs/things.md): the requests of integrators, and the
/// checks of values that apps write and devices report.
///
/// The owner of a device's model knows the device's product but not the schema, since an entity reads no records. The
/// node that handles a request knows the schema but not the product. This node therefore checks against the last known
/// product, and names it in the message. If the device has another product, the owner refuses the message, and this
/// node checks again. Usually one message is enough (docs/decisions/39).
///
/// Concurrency model: any thread. A `Mutex` guards the cache, and is never held during a read.
package final class ProductService: NodeService {
    package static let name = "Products"
    package static let records = RecordCatalogue([ProductRecords.products, ProductRecords.owners])

    /// The most checks of one request. If the device changes its product more often in between, the request is refused
    /// with 10007.
    private static let attemptsMax = 4

    let configuration: ProductConfiguration
    let records: ProductRecords
    let sessions: SessionRecords
    let clock: ClusterClock
    private let entities: EntityRegistry
    private let cache = Mutex(ProductCache())
    private let refused = Counter(label: "apus_schema_refused_total")
    private let repeated = Counter(label: "apus_schema_repeated_total")
    private let reads = Counter(label: "apus_schema_reads_total")

    package init(_ configuration: ProductConfiguration, of node: NodeContext) {
        (self.configuration, clock, entities) = (configuration, node.view.clock, node.entities)
        (records, sessions) = (ProductRecords(node.records), SessionRecords(node.records))
        node.ports.provide(self)
    }

    func thing(_ device: DeviceID) -> EntityRef<EntityCell<ThingState>> {
        entities.ref(EntityCell<ThingState>.self, ThingEntity.definition.address(device.rawValue))
    }

    // MARK: - Writes and reports

    /// Sends a change of a model that the schema of the device's product allows.
    ///
    /// - Parameters:
    ///   - part: the change.
    ///   - send: sends the change, with the product that it was checked against; empty: none.
    /// - Throws: 20101 and 20102 if the schema does not allow the change; 10007 if the device keeps changing its
    ///   product; 10003 if a newer release wrote the schema; errors of `send`.
    func change(
        _ part: ThingPart, of device: DeviceID, _ send: (String) async throws(ApusError) -> ThingChanged
    ) async throws(ApusError) -> ThingChanged {
        // The report of a product is checked against the schema of that product, which the device has from then on.
        var product = try part.isProduct ? part.product() : cache.withLock { $0.lastProduct(of: device) }
        for _ in 0..<Self.attemptsMax {
            if !product.isEmpty { try await check(part, of: device, product: product) }
            let sent = MonotonicTime.now()
            let changed = try await send(product)
            guard changed.productDiffers else {
                if part.isProduct { note(product, of: device, read: sent) }
                return changed
            }
            repeated.increment()
            product = changed.product
            note(product, of: device, read: sent)
        }
        throw ApusError(.overloaded, "the device changes its product all the time; try again")
    }

    // MARK: - Actions

    /// Checks the argument of an action that an app sends (IV-D5). The check may use a previous product if the device
    /// reported another one less than ``ProductCache/life`` ago.
    ///
    /// - Parameter json: the argument of the action.
    /// - Throws: 20101 and 20102 if the schema does not allow the argument; 10003 if a newer release wrote the schema.
    package func checkAction(
        _ name: String, json: ArraySlice<UInt8>, of device: DeviceID, timeout: Duration
    ) async throws(ApusError) {
        guard try await areUsed() else { return }
        let product = try await product(of: device, timeout: timeout)
        guard !product.isEmpty, let value = JSONValue(json) else { return }
        try await check(ThingPart(.action, name, value), of: device, product: product)
    }

    private func areUsed() async throws(ApusError) -> Bool {
        let now = MonotonicTime.now()
        if let known = cache.withLock({ $0.areProductsUsed(at: now) }) { return known }
        reads.increment()
        let isUsed = try await records.areUsed()
        cache.withLock { $0.noteUse(isUsed, read: now) }
        return isUsed
    }

    private func product(of device: DeviceID, timeout: Duration) async throws(ApusError) -> String {
        let now = MonotonicTime.now()
        if let known = cache.withLock({ $0.product(of: device, at: now) }) { return known }
        let read = ThingRead.with {
            $0.path = "\(ThingRoot.readonly.name).\(ThingState.productName).\(ThingRoot.readonly.valueName)"
        }
        var product = ""
        do throws(ApusError) {
            let reply = try await thing(device).ask(read, timeout: timeout)
            let text = JSONValue(ArraySlice(reply.json.utf8))?.string ?? ""
            product = ProductID(rawValue: text)?.rawValue ?? ""
        } catch {
            guard error.code == .propertyUnknown else { throw error }
        }
        note(product, of: device, read: now)
        return product
    }

    // MARK: - Schemas

    private func note(_ product: String, of device: DeviceID, read: MonotonicTime) {
        cache.withLock { $0.note(product: product, of: device, read: read) }
    }

    private func check(_ part: ThingPart, of device: DeviceID, product: String) async throws(ApusError) {
        guard part.root != .user else { return }
        let key = ProductCache.Key(customer: try await customer(of: device), product: product)
        guard let schema = try await schema(key) else { return }
        do throws(ApusError) {
            try schema.check(part)
        } catch {
            refused.increment()
            throw error
        }
    }

    private func customer(of device: DeviceID) async throws(ApusError) -> String {
        let now = MonotonicTime.now()
        if let known = cache.withLock({ $0.customer(of: device, at: now) }) { return known }
        reads.increment()
        let customer = try await sessions.record(of: device)?.customer?.rawValue ?? ""
        cache.withLock { $0.note(customer: customer, of: device, read: now) }
        return customer
    }

    /// The schema of a product; nil if the product does not exist.
    private func schema(_ key: ProductCache.Key) async throws(ApusError) -> ThingSchema? {
        let now = MonotonicTime.now()
        if let known = cache.withLock({ $0.schema(key, at: now) }) { return try known.get() }
        reads.increment()
        let found = try await records.product(ProductID(unchecked: key.product), of: key.customer)
        let schema = Self.compiled(found)
        cache.withLock { $0.note(schema, of: key, read: now) }
        return try schema.get()
    }

    private static func compiled(_ product: ThingStoredProduct?) -> Result<ThingSchema?, ApusError> {
        guard let product else { return .success(nil) }
        do throws(ApusError) {
            return .success(try ThingSchema(product.schema))
        } catch {
            // The schema was compiled when it was written. The release that wrote it supports a keyword that this
            // release does not.
            return .failure(
                ApusError(.versionUnsupported, "a newer release wrote the schema of the product \(product.product)"))
        }
    }
}
