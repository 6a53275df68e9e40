package import ApusContract
package import ApusCore
package import ApusStorage
package import Foundation
import SwiftProtobuf

/// The records of firmware (IV-E1, docs/decisions/40-firmware.md).
///
/// A product's record decides what devices are offered. All changes of its versions and groups are made under its
/// version. Images have random numbers, under which their chunks, outcomes and tallies are.
///
/// Isolation: `Sendable`; may be called from any task. Besides the documented errors, methods throw 10006, 10007 and
/// 10021, as ``RecordStore`` does.
package struct FirmwareRecords: Sendable {
    static let products = RecordCollection<FirmwareProduct>(
        "firmware-products", layout: 1, key: { OrderedKey(.text($0.customer), .text($0.product)) }, usesReserve: true)
    /// With an index of those that are being removed.
    static let images = RecordCollection<FirmwareImage>(
        "firmware-images", layout: 1, key: { key($0.number) },
        indexes: [RecordIndex("deleted") { $0.state == .deleted ? [key($0.number)] : [] }])
    static let chunks = RecordCollection<FirmwareChunk>(
        "firmware-chunks", layout: 1, key: { chunkKey($0.image, UInt64($0.index)) })
    static let groupParts = RecordCollection<FirmwareGroupPart>(
        "firmware-groups", layout: 1, key: { partKey($0.customer, $0.product, $0.group, $0.part) })
    static let outcomes = RecordCollection<FirmwareOutcome>(
        "firmware-outcomes", layout: 1, key: { OrderedKey(.unsigned($0.image), .text($0.device)) })
    static let offers = RecordCollection<FirmwareOffer>(
        "firmware-offers", layout: 1, key: { OrderedKey(.unsigned($0.image), .text($0.device)) })
    static let tallies = RecordCollection<FirmwareTally>(
        "firmware-tallies", layout: 1, key: { tallyKey($0.image, $0.part) })
    static let totals = RecordCollection<FirmwareTotals>(
        "firmware-totals", layout: 1, key: { OrderedKey(.text($0.customer)) })

    package static let catalogue = RecordCatalogue([
        products, images, chunks, groupParts, outcomes, offers, tallies, totals,
    ])

    /// The parts over which the devices of a group are spread: a question about one device reads a small record.
    static let groupPartCount: UInt32 = 16
    /// The parts over which the outcomes of a version are spread: devices that report at once rarely change the same.
    static let tallyPartCount: UInt32 = 8
    /// The name under which the totals of all customers are. It is no customer.
    private static let all = "*"
    /// The maximum number of attempts of a change if other writes intervene.
    static let attemptCountMax = 64

    static func key(_ image: UInt64) -> OrderedKey { OrderedKey(.unsigned(image)) }
    static func chunkKey(_ image: UInt64, _ index: UInt64) -> OrderedKey {
        OrderedKey(.unsigned(image), .unsigned(index))
    }
    static func tallyKey(_ image: UInt64, _ part: UInt32) -> OrderedKey {
        OrderedKey(.unsigned(image), .unsigned(UInt64(part)))
    }
    static func partKey(_ customer: String, _ product: String, _ group: String, _ part: UInt32) -> OrderedKey {
        OrderedKey(.text(customer), .text(product), .text(group), .unsigned(UInt64(part)))
    }
    static func groupPart(of device: String) -> UInt32 {
        UInt32(StableHash.hash(device) % UInt64(groupPartCount))
    }
    static func tallyPart(of device: String) -> UInt32 {
        UInt32(StableHash.hash(device) % UInt64(tallyPartCount))
    }

    let store: any RecordStore

    package init(_ store: any RecordStore) { self.store = store }

    // MARK: - Products

    /// What a change of a product brings about beside it.
    struct Effects {
        /// In the same step.
        var writes: [RecordWrite] = []
        /// The change of the customer's totals.
        var bytes: Int64 = 0
        var images = 0
    }

    /// The product's record; nil if there is none.
    package func product(_ customer: String, _ product: String) async throws(ApusError) -> Record<FirmwareProduct>? {
        try await store.record(Self.products, OrderedKey(.text(customer), .text(product)))
    }

    /// The products of a customer by name, after `last`.
    func products(
        of customer: String, after last: String?, limit: Int
    ) async throws(ApusError) -> [FirmwareProduct] {
        let token = last.map { last in
            let key = OrderedKey(.text(customer), .text(last))
            return RecordToken(value: key, key: key)
        }
        return try await store.page(
            Self.products, prefix: OrderedKey(.text(customer)), after: token, limit: limit
        ).records.map(\.body)
    }

    /// Changes a product in one step with all that the change brings about. A product without versions and groups has
    /// no record.
    ///
    /// - Throws: what `body` throws; 10007 beyond a bound of the customer, and after too many other writes.
    func change<Value: Sendable>(
        _ customer: String, _ product: String, _ bounds: FirmwareConfiguration,
        _ body: (inout FirmwareProduct) async throws(ApusError) -> (Value, Effects)
    ) async throws(ApusError) -> Value {
        let busy = ApusError(.overloaded, "the product is being changed by too many others; try again")
        return try await store.change(attempts: Self.attemptCountMax, otherwise: busy) {
            () async throws(ApusError) -> (Value, RecordStep?) in
            let found = try await self.product(customer, product)
            var new = found?.body ?? .with { ($0.customer, $0.product) = (customer, product) }
            var (value, effects) = try await body(&new)
            let count = (new.isEmpty ? 0 : 1) - (found == nil ? 0 : 1)
            if effects.bytes != 0 || effects.images != 0 || count != 0 {
                effects.writes += try await totalWrites(customer, effects, products: count, bounds)
            }
            if new != found?.body, !(new.isEmpty && found == nil) {
                let condition = found.map { RecordCondition.version($0.version) } ?? .absent
                // Removed and not erased: a later record of this name has another version.
                effects.writes.append(
                    new.isEmpty
                        ? Self.products.remove(Self.products.key(of: new), fence: .none, if: condition)
                        : try Self.products.put(new, fence: .none, if: condition))
            }
            return (value, effects.writes.isEmpty ? nil : RecordStep(effects.writes))
        }.value
    }

    /// Sets the rule of a version.
    ///
    /// - Throws: as ``FirmwareProduct/rollOut(_:_:ifRevision:tally:)``.
    package func rollOut(
        _ version: FirmwareVersion, _ rule: FirmwareRule, ifRevision: UInt64, _ product: String, of customer: String,
        _ bounds: FirmwareConfiguration
    ) async throws(ApusError) {
        guard let known = try await self.product(customer, product) else {
            throw ApusError(.targetUnknown, "no such product")
        }
        let tally = try await count(of: known.body.release(version).image)
        try await change(customer, product, bounds) { body throws(ApusError) in
            try body.rollOut(version, rule, ifRevision: ifRevision, tally: tally)
            return ((), Effects())
        }
    }

    /// What a customer uses of its bounds.
    package func totals(of customer: String) async throws(ApusError) -> FirmwareTotals {
        try await store.record(Self.totals, OrderedKey(.text(customer)))?.body ?? FirmwareTotals()
    }

    // MARK: - Totals

    private func totalWrites(
        _ customer: String, _ effects: Effects, products: Int, _ bounds: FirmwareConfiguration
    ) async throws(ApusError) -> [RecordWrite] {
        var writes: [RecordWrite] = []
        for name in [customer, Self.all] {
            let found = try await store.record(Self.totals, OrderedKey(.text(name)))
            var new = found?.body ?? .with { $0.customer = name }
            try new.add(
                bytes: effects.bytes, images: effects.images, products: products,
                isAll: name == Self.all, bounds)
            writes.append(
                try Self.totals.put(new, fence: .none, if: found.map { .version($0.version) } ?? .absent))
        }
        return writes
    }

    // MARK: - Images

    package func image(_ number: UInt64) async throws(ApusError) -> Record<FirmwareImage>? {
        try await store.record(Self.images, Self.key(number))
    }

    /// A condition that the image has not changed since it was read, and was not deleted.
    static func check(_ image: Record<FirmwareImage>) -> RecordWrite {
        images.check(image.key, fence: .none, if: .version(image.version))
    }

    package func chunk(_ image: UInt64, _ index: UInt64) async throws(ApusError) -> Data? {
        try await store.record(Self.chunks, Self.chunkKey(image, index))?.body.data
    }

    /// The outcomes of an image together.
    package func count(of image: UInt64) async throws(ApusError) -> FirmwareCount {
        try await counts(of: [image])[image] ?? FirmwareCount()
    }

    /// The same of several images, at most ``FirmwareProduct/releasesMax``.
    func counts(of images: [UInt64]) async throws(ApusError) -> [UInt64: FirmwareCount] {
        guard !images.isEmpty else { return [:] }
        let keys = images.flatMap { image in (0..<Self.tallyPartCount).map { Self.tallyKey(image, $0) } }
        var counts: [UInt64: FirmwareCount] = [:]
        for record in try await store.records(Self.tallies, keys) {
            guard let body = record?.body else { continue }
            counts[body.image, default: FirmwareCount()].installed += body.installed
            counts[body.image, default: FirmwareCount()].failed += body.failed
        }
        return counts
    }

    /// The groups of these that the device is in.
    package func groups(
        _ names: [String], with device: DeviceID, _ customer: String, _ product: String
    ) async throws(ApusError) -> Set<String> {
        guard !names.isEmpty else { return [] }
        let part = Self.groupPart(of: device.rawValue)
        let keys = names.map { Self.partKey(customer, product, $0, part) }
        let found = try await store.records(Self.groupParts, keys)
        return Set(found.compactMap { $0?.body }.filter { $0.devices.contains(device.rawValue) }.map(\.group))
    }
}

extension FirmwareTotals {
    /// Adds to what is used.
    /// - Throws: 10007 beyond a bound, if something grows.
    fileprivate mutating func add(
        bytes: Int64, images: Int, products: Int, isAll: Bool, _ bounds: FirmwareConfiguration
    ) throws(ApusError) {
        let byteMax = isAll ? bounds.byteCountMax : bounds.customerByteCountMax
        let newBytes = max(0, Int64(self.bytes) + bytes)
        guard bytes <= 0 || newBytes <= byteMax else {
            throw ApusError(
                .overloaded,
                "the images of \(isAll ? "all customers" : "the customer") would have over \(byteMax) bytes")
        }
        let (newImages, newProducts) = (max(0, Int(self.images) + images), max(0, Int(self.products) + products))
        guard isAll || images <= 0 || newImages <= FirmwareConfiguration.imagesMax else {
            throw ApusError(.overloaded, "the customer has \(FirmwareConfiguration.imagesMax) images")
        }
        guard isAll || products <= 0 || newProducts <= FirmwareConfiguration.productsMax else {
            throw ApusError(.overloaded, "the customer has \(FirmwareConfiguration.productsMax) products")
        }
        (self.bytes, self.images, self.products) = (UInt64(newBytes), UInt32(newImages), UInt32(newProducts))
    }
}
