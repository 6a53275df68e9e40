/// Time-limited TURN credentials that need no table of users (the "TURN REST" scheme,
/// draft-uberti-behave-turn-rest-00).
///
/// The user name is `EXPIRY:USER`, with EXPIRY in Unix seconds. The password is the base64 of HMAC-SHA1 over the user
/// name, under a secret that issuers and relays share. Two secrets are valid at a time, so that one can be replaced
/// while credentials of the other are in use: issue with ``current``, accept both.
///
/// Names are prepared with the OpaqueString profile, so names that differ only in their encoding are equal. They are
/// then compared byte by byte (RFC 8489 §9.2.2).
///
/// USERHASH (RFC 8489 §14.4) replaces the user name by a hash, which a relay without a table of users cannot invert. It
/// is supported for names that this node has seen authenticated before (``UserhashTable``). Challenges do not set the
/// security feature "username anonymity", so a client that follows RFC 8489 §9.2.5 does not rely on it.
public struct RelayCredentials: Sendable {
    /// The longest user name, in bytes (RFC 8489 §14.3).
    public static let usernameByteCountMax = 508

    public let realm: String
    public var current: [UInt8]
    public var previous: [UInt8]?

    public init(realm: String, current: [UInt8], previous: [UInt8]? = nil) {
        self.realm = realm
        self.current = current
        self.previous = previous
    }

    /// Issues a name and password that are valid until `expiry` (Unix seconds).
    public func issue(user: String, expiry: Int64) -> (username: String, password: String) {
        let username = "\(expiry):\(OpaqueString.prepare(user) ?? user)"
        return (username, Self.password(of: username, secret: current))
    }

    /// The expiry and the user in a user name; nil if it has another form.
    ///
    /// An issuer may add information to the user after a semicolon. The user here is the part before it.
    public static func parse(_ username: String) -> (expiry: Int64, user: String)? {
        parts(of: username).map { ($0.expiry, String($0.user.prefix { $0 != ";" })) }
    }

    /// The same, with everything that the issuer added to the user.
    public static func parts(of username: String) -> (expiry: Int64, user: String)? {
        guard username.utf8.count <= usernameByteCountMax else { return nil }
        let parts = username.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        guard let digits = parts.first, (1...18).contains(digits.utf8.count),
            digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }), let expiry = Int64(digits)
        else { return nil }
        return (expiry, parts.count > 1 ? String(parts[1]) : "")
    }

    /// The possible keys of a user name: with the current secret and with the previous one.
    func keys(of username: String, algorithm: StunPasswordAlgorithm) -> [StunKey] {
        var secrets = [current]
        if let previous { secrets.append(previous) }
        return secrets.map {
            StunKey(
                username: username, realm: realm, password: Self.password(of: username, secret: $0),
                algorithm: algorithm)
        }
    }

    /// The USERHASH of a user name (RFC 8489 §14.4).
    public static func userhash(of username: String, realm: String) -> [UInt8] {
        Keyed.digest(Array("\(username):\(realm)".utf8))
    }

    static func password(of username: String, secret: [UInt8]) -> String {
        Base64.text(Keyed.sha1(secret, Array(username.utf8)[...]))
    }
}

/// User names that authenticated here, by their USERHASH. Bounded; the oldest is removed first.
struct UserhashTable: Sendable {
    let capacity: Int
    private var names: [[UInt8]: String] = [:]
    private var order: [[UInt8]] = []
    private var next = 0

    init(capacity: Int) { self.capacity = max(1, capacity) }

    subscript(hash: [UInt8]) -> String? { names[hash] }

    mutating func insert(_ username: String, realm: String) {
        let hash = RelayCredentials.userhash(of: username, realm: realm)
        guard names[hash] == nil else { return }
        if order.count < capacity {
            order.append(hash)
        } else {
            names[order[next]] = nil
            order[next] = hash
            next = (next + 1) % capacity
        }
        names[hash] = username
    }
}

/// Nonces that need no memory: a time, and a MAC over it and the client's address under a key of the cluster (D8).
///
/// Any node of the cluster can check a nonce of another. A flood of requests from forged addresses uses no memory. The
/// text begins with the nonce cookie and the security features of RFC 8489 §9.2. The MAC covers the whole prefix, so an
/// attacker on the path cannot remove "password algorithms" (bid-down protection).
struct StatelessNonce: Sendable {
    /// `obMatJos2` and the base64 of 24 bits, of which the first says "password algorithms" (RFC 8489 §9.2, §18.1).
    static let prefix = "obMatJos2gAAA"
    private static let codeByteCount = 11

    let key: [UInt8]
    /// The lifetime of a nonce, in seconds.
    let lifetimeSeconds: Int64

    /// A nonce for a client at a time (Unix seconds): 33 characters.
    func make(for client: TransportAddress, at seconds: Int64) -> String {
        let stamp = UInt32(truncatingIfNeeded: seconds)
        return Self.prefix + Base64.text(Self.bytes(of: stamp) + code(stamp, client))
    }

    /// True if this cluster made the nonce for this client and it is not older than its lifetime.
    func isFresh(_ nonce: String, for client: TransportAddress, at seconds: Int64) -> Bool {
        guard nonce.hasPrefix(Self.prefix),
            let bytes = Base64.bytes(nonce.utf8.dropFirst(Self.prefix.utf8.count)),
            bytes.count == 4 + Self.codeByteCount
        else { return false }
        let stamp = bytes.bigEndian32(at: 0)
        guard Keyed.isEqual(bytes[4...], code(stamp, client)[...]) else { return false }
        // The distance between the two 32-bit times. The clocks of nodes may differ slightly.
        let age = Int64(Int32(bitPattern: UInt32(truncatingIfNeeded: seconds) &- stamp))
        return age >= -30 && age <= lifetimeSeconds
    }

    private func code(_ stamp: UInt32, _ client: TransportAddress) -> [UInt8] {
        var input = Array(Self.prefix.utf8) + Self.bytes(of: stamp) + [client.family.rawValue] + client.bytes
        input.append(bigEndian: client.port)
        return Array(Keyed.sha256(key, input[...]).prefix(Self.codeByteCount))
    }

    private static func bytes(of stamp: UInt32) -> [UInt8] {
        var bytes: [UInt8] = []
        bytes.append(bigEndian: stamp)
        return bytes
    }
}

/// Base64 of RFC 4648 §4. The standard library has none.
enum Base64 {
    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)

    static func text(_ bytes: [UInt8]) -> String {
        let alphabet = alphabet
        var characters: [UInt8] = []
        characters.reserveCapacity((bytes.count + 2) / 3 * 4)
        for start in stride(from: 0, to: bytes.count, by: 3) {
            let group = bytes[start..<min(start + 3, bytes.count)]
            let bits = group.reduce(UInt32(0)) { $0 << 8 | UInt32($1) } << (8 * UInt32(3 - group.count))
            for index in 0..<4 {
                let digit = Int(bits >> (18 - 6 * UInt32(index)) & 63)
                characters.append(index <= group.count ? alphabet[digit] : 0x3d)
            }
        }
        return String(decoding: characters, as: UTF8.self)
    }

    /// Only whole groups without padding, as in a nonce.
    static func bytes(_ text: some Collection<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0, text.count <= 128 else { return nil }
        var bytes: [UInt8] = []
        var bits: UInt32 = 0
        var count = 0
        for character in text {
            guard let digit = value(of: character) else { return nil }
            bits = bits << 6 | digit
            count += 1
            if count == 4 {
                bytes += [UInt8(bits >> 16 & 0xff), UInt8(bits >> 8 & 0xff), UInt8(bits & 0xff)]
                (bits, count) = (0, 0)
            }
        }
        return bytes
    }

    private static func value(of character: UInt8) -> UInt32? {
        switch character {
        case 0x41...0x5a: UInt32(character - 0x41)
        case 0x61...0x7a: UInt32(character - 0x61) + 26
        case 0x30...0x39: UInt32(character - 0x30) + 52
        case 0x2b: 62
        case 0x2f: 63
        default: nil
        }
    }
}
