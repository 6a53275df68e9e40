import ApusCluster
import ApusContract
import ApusCore
import ApusCrypto
import ApusSessions
import HTTPTypes
import NIOCore

/// The header `Idempotency-Key`: 1 to 255 bytes by which a client names a request that it may send again. Pure.
///
/// Two clients may choose the same key, and one client the same key for two requests. The id of a request is therefore
/// made of the key, of who asks, of what is asked, and of the target in the path. It is the same at every node. It has
/// a digest of the message as well, so that another message with the same key is refused, and not answered with the
/// answer to the first one.
struct IdempotencyKey {
    private let text: String

    /// Nil if there is no such header. Throws 21031 if it is not a key.
    init?(_ headers: HTTPFields) throws(ApusError) {
        guard let key = headers[.idempotencyKey] else { return nil }
        guard (1...255).contains(key.utf8.count), key.utf8.allSatisfy({ (0x21...0x7e).contains($0) }) else {
            throw ApusError(.badParameter, "Idempotency-Key must have 1 to 255 printable characters without spaces")
        }
        text = key
    }

    /// - Parameters:
    ///   - target: the fields of the path, with their values.
    ///   - message: what is asked, in JSON.
    func request(
        of session: Session, _ operation: ClientRequestInfo, target: [(name: String, value: String)],
        message: ByteBuffer
    ) -> ApusCluster.RequestID {
        let client = [session.role.rawValue, session.account.rawValue, session.access.rawValue]
        // A request can have two paths, with the same fields in another order.
        let fields = target.sorted { $0.name < $1.name }.flatMap { [$0.name, $0.value] }
        var hash = SHA256()
        for part in client + ["\(operation.number)"] + fields + [text] {
            // With its length before it, no part can be taken for the end of another.
            hash.update(data: Array("\(part.utf8.count):\(part)".utf8))
        }
        let numbers = hash.finalize().prefix(16).reduce(into: [UInt64](repeating: 0, count: 2)) {
            ($0[0], $0[1]) = ($0[0] << 8 | $0[1] >> 56, $0[1] << 8 | UInt64($1))
        }
        let digest = SHA256.hash(data: Array(message.readableBytesView)).prefix(4).reduce(0 as UInt32) {
            $0 << 8 | UInt32($1)
        }
        let key = ApusCluster.RequestID.Key(high: numbers[0], low: UInt32(truncatingIfNeeded: numbers[1]))
        return ApusCluster.RequestID(key: key, digest: digest)
    }
}
