import ApusCore

/// Why an operation with keys, signatures or certificates failed. Its description has no secret.
package enum CryptoError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The bytes are not a key, signature or certificate of this kind; with the reason.
    case malformed(String)
    /// A key, nonce or sealed text has another size than its algorithm demands.
    case size(String)
    /// What was sealed has another key, or was changed.
    case notAuthentic
    /// libcrypto refuses; with the reason.
    case library(String)

    package var description: String {
        switch self {
        case .malformed(let reason), .size(let reason), .library(let reason): reason
        case .notAuthentic: "it was sealed with another key, or changed"
        }
    }
}

/// A text that the C functions write.
struct Reason {
    var text = [CChar](repeating: 0, count: 256)
    var words: String { String(nullTerminated: text) }
}
