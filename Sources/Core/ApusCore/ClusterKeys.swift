/// The keys that all nodes of a cluster share: one, or two while the key is changed.
///
/// The first one seals what this node sends. What either of them sealed is accepted. A key is changed in three steps,
/// each at every node before the next: the new key is added as the second one, becomes the first one, and the old key
/// is removed. No node then ever receives anything that it does not accept.
public struct ClusterKeys: Sendable, Equatable {
    /// The length of a key, in bytes.
    public static let keyByteCount = 32

    /// The key that seals.
    public let current: [UInt8]
    /// The other key that is accepted; nil if there is one key.
    public let other: [UInt8]?

    public init(current: [UInt8], other: [UInt8]? = nil) { (self.current, self.other) = (current, other) }

    /// Reads the content of a key file: one key, or two.
    ///
    /// - Throws: 10022 if it has another length, or the same key twice.
    public init(fileContent bytes: [UInt8]) throws(ApusError) {
        let count = Self.keyByteCount
        guard bytes.count == count || bytes.count == 2 * count else {
            throw ApusError(
                .configurationInvalid, "\(count) bytes are expected, or \(2 * count) while the key is changed")
        }
        current = Array(bytes.prefix(count))
        other = bytes.count == count ? nil : Array(bytes.dropFirst(count))
        guard current != other else { throw ApusError(.configurationInvalid, "both keys are the same") }
    }

    /// The accepted keys, the current one first.
    public var all: [[UInt8]] { [current] + (other.map { [$0] } ?? []) }
}
