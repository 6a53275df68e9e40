import ApusCore
package import ApusWire
import NIOCore
package import SwiftProtobuf

/// A message between nodes, dispatched by its method id (D1, D2).
package protocol RemoteMessage: BoundedMessage, Sendable {
    /// The type of the handler's answer. A tell discards it.
    associatedtype Reply: SwiftProtobuf.Message & Sendable
    /// The method id on the wire. 0x0001–0x00ff address a node, 0x0100 and above an entity. An id is never reused.
    static var method: UInt16 { get }
    /// True if every number in the answer is within the bounds of a correct node; see `BoundedMessage`.
    static func isWithinBounds(_ reply: Reply) -> Bool
}

extension RemoteMessage {
    package static func isWithinBounds(_ reply: Reply) -> Bool { true }

    /// Decodes an answer. Throws 10001 if it cannot be decoded, or a number is out of bounds.
    static func readReply(_ payload: ByteBuffer) throws(ApusError) -> Reply {
        guard let reply = try? Reply(serializedBytes: payload.readableBytesSpan), isWithinBounds(reply) else {
            throw ApusError(.malformed, "an answer to the method \(method) cannot be read")
        }
        return reply
    }
}

/// A message to an entity at any node.
package protocol EntityMessage: RemoteMessage {
    /// True if handling it twice has the same effect as once. Such a message is sent again if the link is lost in
    /// flight. The default is false; the call then ends with 10008.
    static var isIdempotent: Bool { get }
}

extension EntityMessage {
    package static var isIdempotent: Bool { false }
}

/// A message to a node itself, not to one of its entities.
package protocol NodeMessage: RemoteMessage {}
