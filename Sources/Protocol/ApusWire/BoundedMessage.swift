package import ApusCore
package import NIOCore
package import SwiftProtobuf

/// A protobuf message whose numbers have bounds (``WireNumber``). The bounds are checked when it is decoded.
///
/// Protobuf itself accepts every number that fits its type. A message from another process is therefore decoded with
/// ``init(bounded:)`` and never with `init(serializedBytes:)`.
package protocol BoundedMessage: SwiftProtobuf.Message {
    /// True if every number is within the bounds of a correct sender.
    var isWithinBounds: Bool { get }
}

extension BoundedMessage {
    package var isWithinBounds: Bool { true }

    /// Decodes a message that fills the bytes.
    ///
    /// - Throws: 10001 if it cannot be decoded, or a number is out of bounds.
    package init(bounded bytes: [UInt8]) throws(ApusError) {
        guard let message = try? Self(serializedBytes: bytes), message.isWithinBounds else {
            throw ApusError(.malformed)
        }
        self = message
    }

    /// The same.
    package init(bounded bytes: ByteBuffer) throws(ApusError) { try self.init(bounded: Array(bytes.readableBytesView)) }
}

// MARK: - The media lane (D7)

extension ChannelPosition {
    fileprivate var isWithinBounds: Bool { sequence <= WireNumber.sequenceMax }
}

extension ChannelSubscribe: BoundedMessage {
    package var isWithinBounds: Bool { epoch <= WireNumber.termMax && after.isWithinBounds }
}

extension ChannelSubscribed: BoundedMessage {
    package var isWithinBounds: Bool { term <= WireNumber.termMax && liveFrom.isWithinBounds }
}

extension ChannelUnsubscribe: BoundedMessage {}

extension ChannelIngest: BoundedMessage {
    package var isWithinBounds: Bool { oldest <= WireNumber.nextMax }
}

extension ChannelIngesting: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax && term <= WireNumber.termMax }
}

extension ChannelEndIngest: BoundedMessage {}

extension ChannelAcknowledged: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ChannelResume: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ChannelReplicate: BoundedMessage {
    package var isWithinBounds: Bool { term <= WireNumber.termMax && liveFrom.isWithinBounds }
}

extension ChannelReplicating: BoundedMessage {
    package var isWithinBounds: Bool { after.isWithinBounds }
}

extension ChannelReplicated: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ChannelPublisherChanged: BoundedMessage {}

/// The numbers are compared with what was sent.
extension ChannelProcessed: BoundedMessage {}

extension ChannelCopyRefused: BoundedMessage {
    package var isWithinBounds: Bool { term <= WireNumber.termMax }
}

extension ChannelIngestEnded: BoundedMessage {}

// MARK: - The control lane (D3, D5)

extension ClusterNodeHello: BoundedMessage {
    package var isWithinBounds: Bool { incarnation <= WireNumber.incarnationMax }
}

extension ClusterMember: BoundedMessage {
    package var isWithinBounds: Bool { incarnation <= WireNumber.incarnationMax }
}

extension ClusterMapValue: BoundedMessage {
    package var isWithinBounds: Bool { members.allSatisfy(\.isWithinBounds) }
}

extension ClusterFailure: BoundedMessage {
    package var isWithinBounds: Bool { epoch <= WireNumber.termMax }
}

extension ClusterMapChanged: BoundedMessage {}
