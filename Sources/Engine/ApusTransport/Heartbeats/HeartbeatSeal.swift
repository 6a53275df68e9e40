package import ApusCore
package import ApusWire
import Crypto
import Foundation
package import NIOCore

/// The authentication of heartbeat datagrams: HMAC-SHA256 under the cluster's key, cut to 16 bytes (RFC 2104
/// §5), over the datagram and the receiver that it is meant for, so that one recorded on its way to one node
/// means nothing to another.
package struct HeartbeatSeal: Sendable {
    /// The tag at the end of each datagram, in bytes.
    package static let tagByteCount = 16
    /// The shortest key, in bytes.
    package static let keyByteCountMin = 32

    private let key: SymmetricKey

    /// - Parameter key: The cluster's key; every node has the same.
    /// - Throws: 10022 where it is shorter than ``keyByteCountMin``.
    package init(key: [UInt8]) throws(ApusError) {
        guard key.count >= Self.keyByteCountMin else {
            throw ApusError(
                .configurationInvalid, "the cluster key has \(key.count) bytes; \(Self.keyByteCountMin) are needed")
        }
        self.key = HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: key), info: Data("apus heartbeat v1".utf8), outputByteCount: 32)
    }

    /// The sealed bytes of a datagram.
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
    /// - Throws: What is wrong with it.
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
        // Every byte is compared, whatever the first ones say, so that the time tells nothing of the tag.
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

/// Why a heartbeat datagram was ignored.
package enum HeartbeatFault: String, Error, Sendable, CaseIterable {
    case malformed
    case version
    /// Of another cluster.
    case cluster
    /// The tag is wrong: another key, another receiver, or changed bytes.
    case forged
    /// Not from a life of a peer in the map.
    case sender
    /// Its sequence number came before.
    case replayed
}
