import ApusCore

/// A token bucket: tokens accrue with time, up to a burst.
package struct TokenBucket: Sendable {
    private var tokens = Float.infinity
    private var time: UInt64 = 0

    package init() {}

    /// Adds the tokens accrued since the last call. Tokens over `burst` that were given are kept for ``creditSeconds``
    /// without use.
    private mutating func earn(at now: UInt64, burst: Double, perSecond: Double) {
        let seconds = now > time ? Double(now - time) / 1e9 : 0
        time = max(time, now)
        let isCredit = tokens > Float(burst) && tokens.isFinite && seconds < Self.creditSeconds
        if !isCredit { tokens = min(Float(burst), tokens + Float(seconds * perSecond)) }
    }

    private static let creditSeconds = 10.0

    /// True if there is a token. Takes none.
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

    /// Adds tokens, also over the burst, up to `countMax`.
    mutating func give(_ count: Int, countMax: Int, at now: UInt64, burst: Double, perSecond: Double) {
        earn(at: now, burst: burst, perSecond: perSecond)
        tokens = max(tokens, min(Float(countMax), tokens + Float(count)))
    }
}

/// A token bucket for each source, in a table of fixed size.
///
/// Several sources may share a row of the table (IPv6 sources are counted by /64). They then share its tokens, so the
/// limit may be lower but never higher. Memory is constant: 16 bytes per row.
struct SourceLimiter: Sendable {
    /// What distinguishes two sources.
    enum Scope: Sendable {
        case address, addressAndPort
    }

    /// Answers that were refused to a source, since the start.
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

    /// True if the source has a token. Takes none.
    mutating func has(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        rows[index(source)].has(at: now.nanoseconds, burst: burst, perSecond: perSecond)
    }

    /// Takes one token of the source. Returns false if it has none.
    mutating func take(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        let isTaken = rows[index(source)].take(at: now.nanoseconds, burst: burst, perSecond: perSecond)
        if !isTaken { refusedCount &+= 1 }
        return isTaken
    }

    /// Adds tokens to the source, up to `countMax`.
    mutating func give(_ count: Int, countMax: Int, to source: TransportAddress, at now: MonotonicTime) {
        rows[index(source)].give(
            count, countMax: countMax, at: now.nanoseconds, burst: burst, perSecond: perSecond)
    }
}

/// Two limits for one kind of work: one for an address with its port, which is one client, and one for the address,
/// behind which many clients may be (NAT).
///
/// The first prevents a client from using the tokens of its neighbours. The second limits the work for an address,
/// whatever ports its datagrams name. An optional reserve per port replaces the limit of the address. Every token that
/// is taken is also taken from the reserve, so only a client that has taken none recently has it.
struct SourceBounds: Sendable {
    private var ports: SourceLimiter
    private var addresses: SourceLimiter
    private var reserves: SourceLimiter?
    /// The number of refusals since the start.
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

    /// True if a source has a token of each, or of the reserve instead of the address's. Takes none.
    mutating func has(_ source: TransportAddress, at now: MonotonicTime) -> Bool {
        ports.has(source, at: now) && (addresses.has(source, at: now) || reserves?.has(source, at: now) == true)
    }

    /// Takes a token of each. Returns false, and takes none, if one is missing.
    ///
    /// - Parameter isAddressProven: true if the source's address is verified. Then only the limit of its port applies.
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

    /// Adds tokens to an address that has proven that it wants the answers.
    mutating func give(_ count: Int, countMax: Int, to source: TransportAddress, at now: MonotonicTime) {
        addresses.give(count, countMax: countMax, to: source, at: now)
    }
}
