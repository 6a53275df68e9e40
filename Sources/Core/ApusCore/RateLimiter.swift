/// How often each of many may do something: a token bucket of each, in a table of bounded size (D13).
///
/// A bucket is one time, that at which it will be full again; one that is full needs no row (GCRA, ITU-T I.371 A.1).
///
/// Pure: time comes in.
public struct RateLimiter<Key: Hashable & Sendable>: Sendable {
    private let burst: Int
    private let interval: Duration
    private let keysMax: Int
    private var fullAt: [Key: MonotonicTime] = [:]

    /// - Parameters:
    ///   - count: how many each may do in `period`; 1 or more.
    ///   - burst: how many at once; 1 or more.
    ///   - keysMax: buckets that are counted at once; one more is refused.
    public init(_ count: Int, per period: Duration, burst: Int, keysMax: Int = 65_536) {
        self.burst = max(1, burst)
        interval = period / max(1, count)
        self.keysMax = max(1, keysMax)
    }

    /// Buckets that are not full, as far as was looked.
    public var count: Int { fullAt.count }

    /// Takes one; false where this one has had enough, or too many others are counted.
    public mutating func take(_ key: Key, at now: MonotonicTime) -> Bool {
        let known = fullAt[key]
        if known == nil, fullAt.count >= keysMax {
            fullAt = fullAt.filter { $0.value > now }
            guard fullAt.count < keysMax else { return false }
        }
        let next = max(known ?? now, now) + interval
        guard next - now <= interval * burst else { return false }
        fullAt[key] = next
        return true
    }
}
