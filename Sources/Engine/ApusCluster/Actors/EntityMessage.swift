import ApusCore
package import ApusWire
import NIOCore
package import SwiftProtobuf

/// A message between nodes that is handled by its method id (D1, D2).
package protocol RemoteMessage: BoundedMessage, Sendable {
    /// What the handler answers; a tell drops it.
    associatedtype Reply: SwiftProtobuf.Message & Sendable
    /// The stable id on the wire. 0x0001–0x00ff go to a node, 0x0100 and up to an entity. An id is
    /// never used again for another message.
    static var method: UInt16 { get }
    /// True if every number of an answer is one that an honest node can say; see `BoundedMessage`.
    static func isWithinBounds(_ reply: Reply) -> Bool
}

extension RemoteMessage {
    package static func isWithinBounds(_ reply: Reply) -> Bool { true }

    /// Reads an answer; 10001 if it cannot be read, or a number is out of bounds.
    static func readReply(_ payload: ByteBuffer) throws(ApusError) -> Reply {
        guard let reply = try? Reply(serializedBytes: payload.readableBytesSpan), isWithinBounds(reply) else {
            throw ApusError(.malformed, "an answer to the method \(method) cannot be read")
        }
        return reply
    }
}

/// A message to an entity, wherever it lives.
package protocol EntityMessage: RemoteMessage {
    /// True if handling it twice does the same as once; such a message is sent again when the
    /// link is lost under way. False is the default, and such a call then ends with 10008.
    static var isIdempotent: Bool { get }
    /// True if it only reads, and may do so beside a message whose handler asks others (D15). False is the default.
    static var interleaves: Bool { get }
}

extension EntityMessage {
    package static var isIdempotent: Bool { false }
    package static var interleaves: Bool { false }
}

/// A message to a node itself, not to one of its entities.
package protocol NodeMessage: RemoteMessage {}
