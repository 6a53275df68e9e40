package import ApusCore

/// What a node has read of products and their devices. A changed schema applies when what was read before has expired.
///
/// Pure value: the time is passed in.
package struct ProductCache: Sendable {
    /// How long what was read is used. A changed schema applies at every node after this time, plus that of a read.
    package static let life = Duration.seconds(5)
    /// The compiled schemas of a node. One takes a multiple of its text, which has at most 16 KiB.
    package static let schemasMax = 256
    /// The devices whose products a node remembers. Another one costs one more message to its owner.
    package static let devicesMax = 32_768

    /// Names a product of any customer; without a customer, the customer is empty.
    package struct Key: Sendable, Hashable {
        package var customer: String
        package var product: String

        package init(customer: String, product: String) { (self.customer, self.product) = (customer, product) }
    }

    /// A value and when its reading began.
    package struct Timed<Value: Sendable>: Sendable {
        package let value: Value
        package let read: MonotonicTime
        private var isRenewing = false

        package init(_ value: Value, read: MonotonicTime) { (self.value, self.read) = (value, read) }

        /// The value, or nil if the caller has to read it again. In the second half of the life one caller does, while
        /// the others still use the value: not all read it at once when it expires.
        package mutating func use(at now: MonotonicTime) -> Value? {
            let age = now - read
            guard age < ProductCache.life else { return nil }
            guard age >= ProductCache.life / 2, !isRenewing else { return value }
            isRenewing = true
            return nil
        }
    }

    /// What is known of a device.
    package struct Device: Sendable {
        /// Empty: none.
        package var product: Timed<String>
        /// Nil: not read yet. Empty: none.
        package var customer: Timed<String>?
    }

    private var schemas = RecentCache<Key, Timed<Result<ThingSchema?, ApusError>>>(countMax: Self.schemasMax)
    private var devices = RecentCache<String, Device>(countMax: Self.devicesMax)
    /// Whether the cluster has products at all.
    private var areUsed: Timed<Bool>?

    package init() {}

    // MARK: Schemas

    /// The schema of a product: success with nil if the product has none; nil if it has to be read.
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

    /// The product that the device had last, however long ago: its model verifies it. Empty: none, or not known.
    package mutating func lastProduct(of device: DeviceID) -> String { devices[device.rawValue]?.product.value ?? "" }

    /// The product of a device; nil if it has to be read.
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

    /// The customer of a device; nil if it has to be read.
    package mutating func customer(of device: DeviceID, at now: MonotonicTime) -> String? {
        guard var known = devices[device.rawValue] else { return nil }
        defer { devices[device.rawValue] = known }
        return known.customer?.use(at: now)
    }

    /// Notes the customer of a device whose product is known.
    package mutating func note(customer: String, of device: DeviceID, read: MonotonicTime) {
        guard var known = devices[device.rawValue] else { return }
        known.customer = Timed(customer, read: read)
        devices[device.rawValue] = known
    }
}
