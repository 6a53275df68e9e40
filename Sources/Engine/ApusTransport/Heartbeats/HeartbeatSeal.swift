package import ApusCore
package import ApusWire
import Crypto
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

    /// - Parameter key: The cluster's key, the same at every node.
    /// - Throws: 10022 if it is shorter than ``keyByteCountMin``.
    package init(key: [UInt8]) throws(ApusError) {
        guard key.count >= Self.keyByteCountMin else {
            throw ApusError(
                .configurationInvalid, "the cluster key has \(key.count) bytes; \(Self.keyByteCountMin) are needed")
        }
        self.key = HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: key), info: Data("apus heartbeat v1".utf8), outputByteCount: 32)
    }

    /// The datagram with its tag, encoded.
    package func seal(_ datagram: HeartbeatDatagram, to receiver: NodeID) -> ByteBuffer {
        var buffer = ByteBuffer()
        buffer.reserveCapacity(HeartbeatDatagram.byteCountMax + Self.tagByteCount)
        datagram.encode(into: &buffer)
        let tag = authentication(of: buffer, receiver: receiver).finalize()
        buffer.writeBytes(tag.prefix(Self.tagByteCount))
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
        let expected = Array(authentication(of: signed, receiver: receiver).finalize().prefix(Self.tagByteCount))
        // All bytes are compared, so the time of the comparison reveals nothing about the tag.
        let difference = zip(expected, tag).reduce(UInt8(0)) { $0 | ($1.0 ^ $1.1) }
        guard difference == 0 else { throw .forged }
        return datagram
    }

    private func authentication(of body: ByteBuffer, receiver: NodeID) -> HMAC<SHA256> {
        var code = HMAC<SHA256>(key: key)
        code.update(data: Array(body.readableBytesView))
        code.update(data: Data(receiver.description.utf8))
        return code
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
    /// The sequence number was used before.
    case replayed
}
