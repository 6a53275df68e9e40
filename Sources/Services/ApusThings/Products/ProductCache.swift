package import ApusCore

/// A node's cache of products and of the products of devices. A changed schema applies when the cached one expires.
///
/// Pure value: the time is passed in.
package struct ProductCache: Sendable {
    /// The time for which a cached value is used. A changed schema applies at every node after this time plus the time
    /// of a read.
    package static let life = Duration.seconds(5)
    /// The most compiled schemas of a node. One takes a multiple of its text, which has at most 16 KiB.
    package static let schemasMax = 256
    /// The most devices whose products a node caches. For any other device, a change costs one more message to the
    /// owner.
    package static let devicesMax = 32_768

    /// Identifies a product. The customer is empty for a product without one.
    package struct Key: Sendable, Hashable {
        package var customer: String
        package var product: String

        package init(customer: String, product: String) { (self.customer, self.product) = (customer, product) }
    }

    /// A value, and the time at which its read began.
    package struct Timed<Value: Sendable>: Sendable {
        package let value: Value
        package let read: MonotonicTime
        private var isRenewing = false

        package init(_ value: Value, read: MonotonicTime) { (self.value, self.read) = (value, read) }

        /// The value, or nil if the caller must read it again. In the second half of ``ProductCache/life``, one caller
        /// must, while all other callers still use the value. The value is thus not read by many callers at once when
        /// it expires.
        package mutating func use(at now: MonotonicTime) -> Value? {
            let age = now - read
            guard age < ProductCache.life else { return nil }
            guard age >= ProductCache.life / 2, !isRenewing else { return value }
            isRenewing = true
            return nil
        }
    }

    /// The cached data of a device.
    package struct Device: Sendable {
        /// The product; empty: none.
        package var product: Timed<String>
        /// The customer; nil: not read yet; empty: none.
        package var customer: Timed<String>?
    }

    private var schemas = RecentCache<Key, Timed<Result<ThingSchema?, ApusError>>>(countMax: Self.schemasMax)
    private var devices = RecentCache<String, Device>(countMax: Self.devicesMax)
    /// Whether the cluster has any products.
    private var areUsed: Timed<Bool>?

    package init() {}

    // MARK: Schemas

    /// The schema of a product; nil if it must be read. A success with nil means that the product has no schema.
    package mutating func schema(_ key: Key, at now: MonotonicTime) -> Result<ThingSchema?, ApusError>? {
        guard var known = schemas[key] else { return nil }
        defer { schemas[key] = known }
        return known.use(at: now)
    }

    package mutating func note(_ schema: Result<ThingSchema?, ApusError>, of key: Key, read: MonotonicTime) {
        schemas[key] = Timed(schema, read: read)
    }

    package mutating func areProductsUsed(at now: MonotonicTime) -> Bool? { areUsed?.use(at: now) }

    package mutating func noteUse(_ isUsed: Bool, read: MonotonicTime) { areUsed = Timed(isUsed, read: read) }

    // MARK: Devices

    /// The device's last known product, regardless of its age: the model verifies it. Empty: no product, or not known.
    package mutating func lastProduct(of device: DeviceID) -> String { devices[device.rawValue]?.product.value ?? "" }

    /// The product of a device; nil if it must be read.
    package mutating func product(of device: DeviceID, at now: MonotonicTime) -> String? {
        guard var known = devices[device.rawValue] else { return nil }
        defer { devices[device.rawValue] = known }
        return known.product.use(at: now)
    }

    package mutating func note(product: String, of device: DeviceID, read: MonotonicTime) {
        var known = devices[device.rawValue]
        known?.product = Timed(product, read: read)
        devices[device.rawValue] = known ?? Device(product: Timed(product, read: read))
    }

    /// The customer of a device; nil if it must be read.
    package mutating func customer(of device: DeviceID, at now: MonotonicTime) -> String? {
        guard var known = devices[device.rawValue] else { return nil }
        defer { devices[device.rawValue] = known }
        return known.customer?.use(at: now)
    }

    /// Stores the customer of a device whose product is cached.
    package mutating func note(customer: String, of device: DeviceID, read: MonotonicTime) {
        guard var known = devices[device.rawValue] else { return }
        known.customer = Timed(customer, read: read)
        devices[device.rawValue] = known
    }
}
