import ApusCore

/// Tokens that are earned with time, up to a number that may be had at once.
package struct TokenBucket: Sendable {
    private var tokens = Float.infinity
    private var time: UInt64 = 0

    package init() {}

    /// Adds what was earned since it was asked last. Tokens over `burst`, which were given, are kept for
    /// ``creditSeconds`` of silence.
    private mutating func earn(at now: UInt64, burst: Double, perSecond: Double) {
        let seconds = now > time ? Double(now - time) / 1e9 : 0
        time = max(time, now)
        let isCredit = tokens > Float(burst) && tokens.isFinite && seconds < Self.creditSeconds
        if !isCredit { tokens = min(Float(burst), tokens + Float(seconds * perSecond)) }
    }

    private static let creditSeconds = 10.0

    /// Whether there is a token; none is taken.
    package mutating func has(at now: UInt64, burst: Double, perSecond: Double) -> Bool {
        earn(at: now, burst: burst, perSecond: perSecond)
        return tokens >= 1
    }

    /// Takes one token; false if there is none. Time is in nanoseconds.
    package mutating func take(at now: UInt64, burst: Double, perSecond: Double) -> Bool {
        guard has(at: now, burst: burst, perSecond: perSecond) else { return false }
        tokens -= 1
        return true
    }

    /// Gives tokens, also over the burst, up to `countMax`.
    mutating func give(_ count: Int, countMax: Int, at now: UInt64, burst: Double, perSecond: Double) {
        earn(at: now, burst: burst, perSecond: perSecond)
        tokens = max(tokens, min(Float(countMax), tokens + Float(count)))
    }
}

/// A token bucket for each source, in a table of fixed size.
///
/// Several sources may share a row of the table (IPv6 sources are counted by /64): they then share its tokens, which
/// errs on the quiet side. Memory never grows: 16 bytes a row.
struct SourceLimiter: Sendable {
    /// What makes two sources different.
    enum Scope: Sendable {
        case address, addressAndPort
    }

    /// Answers that a source did not get, since the start.
    private(set) var refusedCount: UInt64 = 0
    private var rows: [TokenBucket]
    private let scope: Scope
    private let burst: Double
    private let perSecond: Double
    private let salt: UInt64

    init(rowCount: Int, burst: Int, perSecond: Double, scope: Scope = .address, salt: UInt64) {
        self.burst = Double(max(1, burst))
        self.perSecond = perSecond
        self.scope = scope
        self.salt = salt
        rows = Array(repeating: TokenBucket(), count: max(1, rowCount))
    }

    private func index(_ source: TransportAddress) -> Int {
        let network = source.family == .v4 ? source.low : source.high
        var mixed = (network ^ salt) &* 0x9e37_79b9_7f4a_7c15
        if scope == .addressAndPort { mixed = (mixed ^ mixed >> 31 ^ UInt64(source.port)) &* 0x94d0_49bb_1331_11eb }
        mixed = (mixed ^ mixed >> 29) &* 0xbf58_476d_1ce4_e5b9
        return Int(truncatingIfNeeded: (mixed ^ mixed >> 32) % UInt64(rows.count))
    }

    /// Whether the source has a token; none is taken.
    mutating func has(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        rows[index(source)].has(at: now.nanoseconds, burst: burst, perSecond: perSecond)
    }

    /// Takes one token of the source; false if it has none.
    mutating func take(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        let isTaken = rows[index(source)].take(at: now.nanoseconds, burst: burst, perSecond: perSecond)
        if !isTaken { refusedCount &+= 1 }
        return isTaken
    }

    /// Gives the source tokens, up to `countMax`.
    mutating func give(_ count: Int, countMax: Int, to source: TransportAddress, at now: MonotonicTime) {
        rows[index(source)].give(
            count, countMax: countMax, at: now.nanoseconds, burst: burst, perSecond: perSecond)
    }
}

/// Two bounds for one kind of work: of an address with its port, which is one client, and of the address, behind which
/// many clients may be (NAT).
///
/// The first keeps a client from taking what belongs to its neighbours, the second bounds what is done for an address
/// at all, whatever ports a datagram says it is from. A reserve of each port, where there is one, stands in for the
/// bound of the address: every token that is taken is taken of it too, so that a client has it that takes none.
struct SourceBounds: Sendable {
    private var ports: SourceLimiter
    private var addresses: SourceLimiter
    private var reserves: SourceLimiter?
    /// How often there was no token, since the start.
    private(set) var refusedCount: UInt64 = 0
    /// Rows of the table of ports for each row of the table of addresses.
    private static let portsPerAddress = 8

    init(
        rowCount: Int, port: TurnServerConfiguration.Rate, address: TurnServerConfiguration.Rate,
        reserve: TurnServerConfiguration.Rate? = nil, salt: UInt64
    ) {
        ports = SourceLimiter(
            rowCount: rowCount * Self.portsPerAddress, burst: port.burst, perSecond: port.perSecond,
            scope: .addressAndPort, salt: salt)
        addresses = SourceLimiter(
            rowCount: rowCount, burst: address.burst, perSecond: address.perSecond, salt: salt &+ 1)
        reserves = reserve.map {
            SourceLimiter(
                rowCount: rowCount * Self.portsPerAddress, burst: $0.burst, perSecond: $0.perSecond,
                scope: .addressAndPort, salt: salt &+ 2)
        }
    }

    /// Whether a source has a token of each, or of the reserve in the place of the address's; none is taken.
    mutating func has(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        ports.has(source, at: now) && (addresses.has(source, at: now) || reserves?.has(source, at: now) == true)
    }

    /// Takes a token of each; false, and none taken, where one is missing.
    ///
    /// - Parameter isAddressProven: the source is who it says it is, so that only its own bound counts.
    mutating func take(_ source: TransportAddress, isAddressProven: Bool = false, at now: MonotonicTime) -> Bool {
        guard ports.has(source, at: now), isAddressProven || has(source, at: now) else {
            refusedCount &+= 1
            return false
        }
        _ = ports.take(source, at: now)
        _ = reserves?.take(source, at: now)
        if !isAddressProven { _ = addresses.take(source, at: now) }
        return true
    }

    /// An address has shown that it wants what it gets: it may have so much more.
    mutating func give(_ count: Int, countMax: Int, to source: TransportAddress, at now: MonotonicTime) {
        addresses.give(count, countMax: countMax, to: source, at: now)
    }
}
