package import ApusCore
import ApusCrypto
import Foundation

/// The server name in a dialer's ClientHello (RFC 6066 §3): where the acceptor continues the connection.
///
/// Its form is `lane-NUMBER`, `lane-NUMBER.TAG.NODE` or `media.TAG.NODE`. A node is named only if the connection is to
/// be forwarded to it (see ``ForwardingKey``). The name is not authenticated by TLS when it is read.
struct LaneName: Sendable, Equatable {
    private static let media = "media"

    /// Nil for a media lane.
    var placement: LanePlacement?
    /// Nil if the connection ends at the acceptor.
    var destination: ForwardDestination?

    init(placement: LanePlacement?, destination: ForwardDestination? = nil) {
        (self.placement, self.destination) = (placement, destination)
    }

    /// Nil if the name has another form. A dialer of an earlier version sends none for a media lane.
    init?(serverName: String) {
        let parts = serverName.split(separator: ".", maxSplits: 2, omittingEmptySubsequences: false).map(String.init)
        placement = LanePlacement(serverName: parts[0])
        guard placement != nil || parts[0] == Self.media else { return nil }
        switch parts.count {
        case 1: destination = nil
        case 3:
            guard let node = NodeName(rawValue: parts[2]) else { return nil }
            destination = ForwardDestination(node: node, tag: parts[1])
        default: return nil
        }
    }

    /// Nil for a media lane that is not forwarded.
    var serverName: String? {
        guard let destination else { return placement?.serverName }
        return "\(placement?.serverName ?? Self.media).\(destination.tag).\(destination.node)"
    }
}

/// The node at the end of a forwarded connection, with the proof that the dialer has the cluster's key.
struct ForwardDestination: Sendable, Equatable {
    var node: NodeName
    var tag: String
}

/// The key with which a node asks another to forward a connection (D4).
///
/// A node whose path to a peer is cut connects to a helper and names the peer in its ClientHello. The helper connects
/// to the peer and copies the bytes in both directions. TLS runs between the two ends, so the helper can neither read
/// nor change them. The helper cannot check a certificate before TLS has begun. It therefore requires a tag that only a
/// holder of the cluster's key can compute: the first 8 bytes of HMAC-SHA256 over the name of the peer (RFC 2104).
/// Who recorded a tag can use it again, but reaches nothing beyond the TLS port of a member, over a bounded number of
/// connections.
package struct ForwardingKey: Sendable {
    private let key: SymmetricKey
    /// The other key whose tags are accepted while the cluster's key is changed.
    private let other: SymmetricKey?

    /// - Parameter keys: the cluster's keys.
    package init(keys: ClusterKeys) {
        key = Self.derive(keys.current)
        other = keys.other.map { Self.derive($0) }
    }

    package init(clusterKey: [UInt8]) { self.init(keys: ClusterKeys(current: clusterKey)) }

    private static func derive(_ key: [UInt8]) -> SymmetricKey {
        HKDF.deriveKey(
            inputKeyMaterial: key, info: Data("apus forwarding v1".utf8), outputByteCount: 32)
    }

    func destination(_ node: NodeName) -> ForwardDestination {
        ForwardDestination(node: node, tag: Self.tag(of: node, key))
    }

    func isValid(_ destination: ForwardDestination) -> Bool {
        isValid(destination, key) || (other.map { isValid(destination, $0) } ?? false)
    }

    private func isValid(_ destination: ForwardDestination, _ key: SymmetricKey) -> Bool {
        ConstantTime.isEqual(Array(Self.tag(of: destination.node, key).utf8), Array(destination.tag.utf8))
    }

    private static func tag(of node: NodeName, _ key: SymmetricKey) -> String {
        let code = HMAC<SHA256>.authenticationCode(for: Data(node.rawValue.utf8), using: key)
        return code.prefix(8).map { String(format: "%02x", $0) }.joined()
    }
}
