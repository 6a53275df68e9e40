import Crypto

/// Mobility tickets as clients carry them (RFC 8016 §3.1): sealed with AES-256-GCM under a key of the cluster, so that
/// any node reads them and nobody else can make or read one (D8).
///
/// A ticket says which allocation it is of, which life of which node made it, whose it is and until when it can be of
/// use. So a node that does not hold the allocation knows, without asking anybody, that a forged ticket is none, and
/// an authentic one in the hands of another user is refused too. Only what is left is looked for at other nodes.
///
/// The nonce of the cipher is the first twelve bytes of the allocation's own random number: it is never used again, and
/// the same ticket is always the same bytes.
struct MobilityTicketSealer: Sendable {
    /// What a sealed ticket says.
    struct Content: Hashable, Sendable {
        let ticket: MobilityTicket
        /// The life of the node that made it: ``TurnServerConfiguration/node``.
        let home: UInt64
        /// The digest of the user name: ``MobilityTicketSealer/digest(of:)``.
        let user: UInt64
        /// Seconds since 1970 after which the ticket is none; the end of the credential.
        let expiry: UInt32
    }

    /// Bytes of a sealed ticket: nonce, four bytes of the number, home, user, expiry and the cipher's tag.
    static let byteCount = 12 + 24 + 16

    private let key: SymmetricKey

    /// - Parameter key: 32 bytes, the same on all nodes of a cluster.
    init(key: [UInt8]) { self.key = SymmetricKey(data: Keyed.digest(key)) }

    /// The sealed ticket; empty where the system's cipher fails.
    func seal(_ content: Content) -> [UInt8] {
        let number = content.ticket.bytes
        var plain = Array(number[12...])
        plain.append(bigEndian: content.home)
        plain.append(bigEndian: content.user)
        plain.append(bigEndian: content.expiry)
        guard let nonce = try? AES.GCM.Nonce(data: number[..<12]),
            let box = try? AES.GCM.seal(plain, using: key, nonce: nonce)
        else { return [] }
        return Array(number[..<12]) + Array(box.ciphertext) + Array(box.tag)
    }

    /// What a ticket says; nil if it was not made by this cluster.
    func open(_ sealed: some Collection<UInt8>) -> Content? {
        guard sealed.count == Self.byteCount else { return nil }
        let bytes = Array(sealed)
        guard let nonce = try? AES.GCM.Nonce(data: bytes[..<12]),
            let box = try? AES.GCM.SealedBox(nonce: nonce, ciphertext: bytes[12..<36], tag: bytes[36...]),
            let plain = try? Array(AES.GCM.open(box, using: key)), plain.count == 24,
            let ticket = MobilityTicket(bytes: Array(bytes[..<12]) + plain[..<4])
        else { return nil }
        return Content(
            ticket: ticket, home: plain.bigEndian64(at: 4), user: plain.bigEndian64(at: 12),
            expiry: plain.bigEndian32(at: 20))
    }

    /// Eight bytes that stand for a user name.
    static func digest(of username: String) -> UInt64 { Keyed.digest(Array(username.utf8)).bigEndian64(at: 0) }
}
