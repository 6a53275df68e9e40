package import ApusCore
import ApusWire
import SwiftProtobuf

/// A message that a handler has sent, as bytes.
package struct SentMessage: Sendable, Hashable {
    package enum Target: Sendable, Hashable {
        case entity(EntityAddress)
        case node(NodeName)
    }

    package var target: Target
    package var method: UInt16
    package var message: [UInt8]
}

/// What sends the messages of handlers.
protocol EntitySender: Sendable {
    /// Sends a message to an entity of this content.
    func send<Content: EntityContent, M: EntityMessage>(
        _ message: M, to entity: EntityAddress, of content: Content.Type, _ call: EntityCall)
    func send<M: NodeMessage>(_ message: M, to node: NodeName)
}

/// A message that a handler sends when its change is confirmed.
protocol EntityTelling: Sendable {
    func send(_ sender: some EntitySender, _ call: EntityCall)
    /// The message as bytes, for an ``EntityTrial``.
    ///
    /// - Throws: 10018 if it cannot be encoded.
    func sent() throws(ApusError) -> SentMessage
}

/// To another entity.
struct EntityTell<Content: EntityContent, M: EntityMessage>: EntityTelling {
    let entity: EntityAddress
    let message: M

    func send(_ sender: some EntitySender, _ call: EntityCall) {
        sender.send(message, to: entity, of: Content.self, call)
    }

    func sent() throws(ApusError) -> SentMessage {
        SentMessage(target: .entity(entity), method: M.method, message: try message.trialBytes())
    }
}

/// To a node.
struct NodeTell<M: NodeMessage>: EntityTelling {
    let node: NodeName
    let message: M

    func send(_ sender: some EntitySender, _ call: EntityCall) { sender.send(message, to: node) }

    func sent() throws(ApusError) -> SentMessage {
        SentMessage(target: .node(node), method: M.method, message: try message.trialBytes())
    }
}

extension Message {
    /// - Throws: 10018 if it cannot be encoded.
    func trialBytes() throws(ApusError) -> [UInt8] {
        do {
            return try serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "a message cannot be encoded")
        }
    }
}
