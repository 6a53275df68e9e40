/// A rate limit per second; 0 stands for no limit.
package struct RelayRate: Hashable, Sendable {
    /// Higher rates are clamped to this, so that tokens in billionths fit 64 bits.
    package static let bytesPerSecondMax: UInt64 = 4_000_000_000

    package var bytesPerSecond: UInt64
    package var packetsPerSecond: UInt64

    package init(bytesPerSecond: UInt64 = 0, packetsPerSecond: UInt64 = 0) {
        self.bytesPerSecond = min(bytesPerSecond, Self.bytesPerSecondMax)
        self.packetsPerSecond = min(packetsPerSecond, Self.bytesPerSecondMax)
    }

    package var isNone: Bool { bytesPerSecond == 0 && packetsPerSecond == 0 }

    /// One of a number of equal shares. A limit stays a limit.
    package func share(of count: Int) -> RelayRate {
        func share(_ rate: UInt64) -> UInt64 { rate == 0 ? 0 : max(1, rate / UInt64(max(1, count))) }
        return RelayRate(bytesPerSecond: share(bytesPerSecond), packetsPerSecond: share(packetsPerSecond))
    }
}

/// The token buckets of one plane: one for each user with a limit, for all its allocations here.
///
/// Tokens are counted in billionths, so that a refill is one multiplication without rounding losses. Packets of one
/// size that arrive together cost two comparisons and two subtractions, whatever their number. The time is read once
/// per round. Nothing is shared with other planes: control assigns each its part of the user's limit.
///
/// Concurrency model: confined to the plane's thread.
struct BucketTable: ~Copyable {
    /// The capacity of a bucket, as the time in which its rate fills it.
    static let burstNanoseconds: Int64 = 500_000_000
    /// The least capacity of a bucket: one run of packets as the kernel joins them.
    static let bytesMin: Int64 = 65_536
    static let packetsMin: Int64 = 64
    private static let unit: Int64 = 1_000_000_000

    private struct Bucket {
        var user: UInt32 = 0
        var allocationCount: Int32 = 0
        var rate = RelayRate()
        var bytes: Int64 = 0
        var packets: Int64 = 0
        var bytesMax: Int64 = 0
        var packetsMax: Int64 = 0
        var refilledAt: UInt64 = 0
    }

    private let countMax: Int
    private let buckets: UnsafeMutablePointer<Bucket>
    private var used = 0
    private var free: [Int32] = []
    private var byUser: FlatTable

    init(countMax: Int, seed: UInt64) {
        self.countMax = countMax
        // The kernel allocates it page by page, so an unused bucket costs nothing.
        buckets = .allocate(capacity: max(1, countMax))
        byUser = FlatTable(countMax: countMax, seed: seed)
    }

    deinit { buckets.deallocate() }

    /// The bucket of a user for a further allocation. It is created full if the user has none here; -1 if there is no
    /// room.
    mutating func join(user: UInt32, at now: UInt64) -> Int32 {
        let key = FlatTable.Key(number: user)
        let found = byUser.value(for: key)
        if found != FlatTable.none {
            buckets[Int(found)].allocationCount += 1
            return Int32(found)
        }
        guard used < countMax || !free.isEmpty else { return -1 }
        let slot = free.popLast() ?? Int32(used)
        if Int(slot) == used { used += 1 }
        (buckets + Int(slot)).initialize(to: Bucket(user: user, allocationCount: 1, refilledAt: now))
        guard byUser.set(UInt32(slot), for: key) else {
            free.append(slot)
            return -1
        }
        return slot
    }

    /// Sets a user's part of its limit at this plane. Saved tokens stay as far as they fit.
    mutating func set(_ slot: Int32, _ rate: RelayRate) {
        let bucket = buckets + Int(slot)
        let isNew = bucket.pointee.rate.isNone
        bucket.pointee.rate = rate
        func full(_ perSecond: UInt64, _ least: Int64) -> Int64 {
            max(Int64(perSecond) * (Self.burstNanoseconds / 1_000), least * (Self.unit / 1_000)) * 1_000
        }
        bucket.pointee.bytesMax = full(rate.bytesPerSecond, Self.bytesMin)
        bucket.pointee.packetsMax = full(rate.packetsPerSecond, Self.packetsMin)
        bucket.pointee.bytes = isNew ? bucket.pointee.bytesMax : min(bucket.pointee.bytes, bucket.pointee.bytesMax)
        bucket.pointee.packets =
            isNew ? bucket.pointee.packetsMax : min(bucket.pointee.packets, bucket.pointee.packetsMax)
    }

    /// An allocation no longer uses it.
    mutating func leave(_ slot: Int32) {
        let bucket = buckets + Int(slot)
        bucket.pointee.allocationCount -= 1
        guard bucket.pointee.allocationCount == 0 else { return }
        byUser.remove(FlatTable.Key(number: bucket.pointee.user))
        free.append(slot)
    }

    /// True if a stream may carry bytes now. It takes the tokens afterwards.
    func hasBytes(_ slot: Int32, at now: UInt64) -> Bool {
        let bucket = buckets + Int(slot)
        Self.refill(bucket, at: now)
        return bucket.pointee.rate.bytesPerSecond == 0 || bucket.pointee.bytes > 0
    }

    /// Takes the tokens of bytes that a stream carried. A deficit is carried over.
    func takeBytes(_ slot: Int32, _ count: Int) {
        let bucket = buckets + Int(slot)
        if bucket.pointee.rate.bytesPerSecond > 0 { bucket.pointee.bytes &-= Int64(count) &* Self.unit }
    }

    @inline(__always)
    private static func refill(_ bucket: UnsafeMutablePointer<Bucket>, at now: UInt64) {
        guard now > bucket.pointee.refilledAt else { return }
        // A longer time than a burst fills it anyway. The limit keeps the product small.
        let elapsed = Int64(min(now &- bucket.pointee.refilledAt, UInt64(Self.unit)))
        bucket.pointee.refilledAt = now
        bucket.pointee.bytes = min(
            bucket.pointee.bytesMax,
            bucket.pointee.bytes &+ elapsed &* Int64(bucket.pointee.rate.bytesPerSecond))
        bucket.pointee.packets = min(
            bucket.pointee.packetsMax,
            bucket.pointee.packets &+ elapsed &* Int64(bucket.pointee.rate.packetsPerSecond))
    }

    /// Takes tokens for packets of one size, as many packets as the bucket has tokens for.
    ///
    /// - Parameter count: the number of packets, at most 65,536.
    /// - Returns: the number of packets that it had tokens for.
    @inline(__always)
    func take(_ slot: Int32, bytes: Int, count: Int, at now: UInt64) -> Int {
        let bucket = buckets + Int(slot)
        Self.refill(bucket, at: now)
        let cost = Int64(bytes) &* Self.unit
        var allowed = Int64(count)
        let hasBytes = bucket.pointee.rate.bytesPerSecond > 0
        if hasBytes, bucket.pointee.bytes < allowed &* cost { allowed = max(0, bucket.pointee.bytes) / cost }
        let hasPackets = bucket.pointee.rate.packetsPerSecond > 0
        if hasPackets, bucket.pointee.packets < allowed &* Self.unit {
            allowed = max(0, bucket.pointee.packets) / Self.unit
        }
        if hasBytes { bucket.pointee.bytes &-= allowed &* cost }
        if hasPackets { bucket.pointee.packets &-= allowed &* Self.unit }
        return Int(allowed)
    }
}
