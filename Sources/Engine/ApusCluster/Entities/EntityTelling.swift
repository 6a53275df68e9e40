import ApusCore
import ApusWire

/// A message that a handler sends when its change is confirmed.
protocol EntityTelling: Sendable {
    func send(_ registry: EntityRegistry, _ call: EntityCall)
    /// The message as bytes, for an ``EntityTrial``.
    ///
    /// - Throws: 10018 if it cannot be encoded.
    func told() throws(ApusError) -> EntityTold
}

/// To another entity.
struct EntityTell<Content: EntityContent, M: EntityMessage>: EntityTelling {
    let entity: EntityAddress
    let message: M

    func send(_ registry: EntityRegistry, _ call: EntityCall) {
        // If the target cannot be reached, the message is lost: a tell has no guarantee.
        try? registry.ref(EntityCell<Content>.self, entity).tell(message, call: call)
    }

    func told() throws(ApusError) -> EntityTold {
        EntityTold(target: .entity(entity), method: M.method, message: try message.trialBytes())
    }
}

/// To a node.
struct NodeTell<M: NodeMessage>: EntityTelling {
    let node: NodeName
    let message: M

    func send(_ registry: EntityRegistry, _ call: EntityCall) { registry.tell(node, message) }

    func told() throws(ApusError) -> EntityTold {
        EntityTold(target: .node(node), method: M.method, message: try message.trialBytes())
    }
}
