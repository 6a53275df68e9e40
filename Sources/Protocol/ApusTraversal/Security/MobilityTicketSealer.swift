import ApusCrypto

/// Encrypts and decrypts the mobility tickets that clients carry (RFC 8016 §3.1). They are sealed with AES-256-GCM
/// under a key of the cluster, so every node can open them and no one else can open or forge one (D8).
///
/// A ticket names the allocation, the incarnation of the node that created it, its user and its expiry. A node that
/// does not hold the allocation can therefore reject a forged ticket, and an authentic ticket of another user, without
/// asking other nodes. Only the remaining tickets are looked up at other nodes.
///
/// The nonce of the cipher is the first twelve bytes of the allocation's own random number. It is never used again, and
/// the same ticket always has the same bytes.
struct MobilityTicketSealer: Sendable {
    /// The contents of a sealed ticket.
    struct Content: Hashable, Sendable {
        let ticket: MobilityTicket
        /// The incarnation of the node that created it: ``TurnServerConfiguration/node``.
        let home: UInt64
        /// The hash of the user name: ``MobilityTicketSealer/digest(of:)``.
        let user: UInt64
        /// Expiry, in Unix seconds: that of the credential. The ticket is invalid afterwards.
        let expiry: UInt32
    }

    /// The size of a sealed ticket in bytes: nonce, four bytes of the number, home, user, expiry and the cipher's tag.
    static let byteCount = 12 + 24 + 16

    private let key: SymmetricKey

    /// - Parameter key: 32 bytes, the same on all nodes of a cluster.
    init(key: [UInt8]) { self.key = SymmetricKey(data: Keyed.digest(key)) }

    /// The sealed ticket; empty if the system's cipher fails.
    func seal(_ content: Content) -> [UInt8] {
        let number = content.ticket.bytes
        var plain = Array(number[12...])
        plain.append(bigEndian: content.home)
        plain.append(bigEndian: content.user)
        plain.append(bigEndian: content.expiry)
        return (try? AES.GCM.seal(plain, using: key, nonce: number[..<12])) ?? []
    }

    /// The contents of a ticket; nil if this cluster did not make it.
    func open(_ sealed: some Collection<UInt8>) -> Content? {
        guard sealed.count == Self.byteCount else { return nil }
        let bytes = Array(sealed)
        guard let plain = try? AES.GCM.open(bytes, using: key), plain.count == 24,
            let ticket = MobilityTicket(bytes: Array(bytes[..<12]) + plain[..<4])
        else { return nil }
        return Content(
            ticket: ticket, home: plain.bigEndian64(at: 4), user: plain.bigEndian64(at: 12),
            expiry: plain.bigEndian32(at: 20))
    }

    /// An eight-byte hash of a user name.
    static func digest(of username: String) -> UInt64 { Keyed.digest(Array(username.utf8)).bigEndian64(at: 0) }
}
