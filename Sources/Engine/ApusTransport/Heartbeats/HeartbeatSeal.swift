package import ApusCore
import ApusCrypto
package import ApusWire
import Foundation
package import NIOCore

/// The authentication of heartbeat datagrams: HMAC-SHA256 with the cluster's key, truncated to 16 bytes (RFC 2104 §5).
/// It covers the datagram and its receiver, so a datagram recorded on its way to one node is invalid at another.
package struct HeartbeatSeal: Sendable {
    /// The tag at the end of each datagram, in bytes.
    package static let tagByteCount = 16
    /// The shortest key, in bytes.
    package static let keyByteCountMin = 32

    private let key: SymmetricKey
    /// The other key whose tags are accepted while the cluster's key is changed.
    private let other: SymmetricKey?

    /// - Parameter keys: The cluster's keys. The first one seals; what either sealed is accepted.
    /// - Throws: 10022 if one is shorter than ``keyByteCountMin``.
    package init(keys: ClusterKeys) throws(ApusError) {
        for key in keys.all where key.count < Self.keyByteCountMin {
            throw ApusError(
                .configurationInvalid, "the cluster key has \(key.count) bytes; \(Self.keyByteCountMin) are needed")
        }
        key = Self.derive(keys.current)
        other = keys.other.map { Self.derive($0) }
    }

    /// - Throws: as ``init(keys:)``.
    package init(key: [UInt8]) throws(ApusError) { try self.init(keys: ClusterKeys(current: key)) }

    private static func derive(_ key: [UInt8]) -> SymmetricKey {
        HKDF.deriveKey(
            inputKeyMaterial: key, info: Data("apus heartbeat v1".utf8), outputByteCount: 32)
    }

    /// The datagram with its tag, encoded.
    package func seal(_ datagram: HeartbeatDatagram, to receiver: NodeID) -> ByteBuffer {
        var buffer = ByteBuffer()
        buffer.reserveCapacity(HeartbeatDatagram.byteCountMax + Self.tagByteCount)
        datagram.encode(into: &buffer)
        let code = HMAC<SHA256>.authenticationCode(
            for: Array(buffer.readableBytesView), then: Array(receiver.description.utf8), using: key)
        buffer.writeBytes(code.prefix(Self.tagByteCount))
        return buffer
    }

    /// Reads a datagram and checks its tag.
    ///
    /// - Throws: The reason for which the datagram is invalid.
    package func open(
        _ sealed: ByteBuffer, receiver: NodeID, clusterHash: UInt64
    ) throws(HeartbeatFault) -> HeartbeatDatagram {
        var body = sealed
        let byteCount = sealed.readableBytes - Self.tagByteCount
        guard byteCount > 0, byteCount <= HeartbeatDatagram.byteCountMax,
            var parsed = body.readSlice(length: byteCount),
            let tag = body.readBytes(length: Self.tagByteCount)
        else { throw .malformed }
        let signed = parsed
        let datagram: HeartbeatDatagram
        do {
            datagram = try HeartbeatDatagram(decoding: &parsed)
        } catch {
            throw error.code == .versionUnsupported ? .version : .malformed
        }
        guard datagram.clusterHash == clusterHash else { throw .cluster }
        let isAuthentic =
            isValid(tag, signed, receiver, key) || (other.map { isValid(tag, signed, receiver, $0) } ?? false)
        guard isAuthentic else { throw .forged }
        return datagram
    }

    private func isValid(_ tag: [UInt8], _ body: ByteBuffer, _ receiver: NodeID, _ key: SymmetricKey) -> Bool {
        HMAC<SHA256>.isValidAuthenticationCode(
            tag, authenticating: Array(body.readableBytesView), then: Array(receiver.description.utf8), using: key,
            byteCount: Self.tagByteCount)
    }
}

/// The reason for which a heartbeat datagram was ignored.
package enum HeartbeatFault: String, Error, Sendable, CaseIterable {
    case malformed
    case version
    /// The datagram is from another cluster.
    case cluster
    /// The tag is invalid: another key, another receiver, or changed bytes.
    case forged
    /// The sender is not an incarnation of a peer.
    case sender
    /// The sender's certificate is revoked.
    case revoked
    /// The sequence number was used before.
    case replayed
}
