package import ApusCore
import ApusTransport
import ApusWire
package import NIOCore
import SwiftProtobuf

/// What an entity is made of.
package struct EntityContext: Sendable {
    package var address: EntityAddress
    /// The shard's epoch, the fencing token of all that the entity does (D4).
    package var epoch: Epoch
    /// What the former owner captured at a planned hand-over; nil after anything else.
    package var state: ByteBuffer?
}

/// How entities of one kind are made and let go.
package struct EntityOptions<Entity: Actor>: Sendable {
    /// Makes an actor when its first message comes. Called under a lock: it must only make the actor.
    package var make: @Sendable (EntityContext) -> Entity
    /// An entity that was idle for so long is let go; nil keeps it until its shard leaves.
    package var passivateAfter: Duration?
    /// Calls under way per entity; one more is refused with 10007.
    package var mailboxCountMax = 4096
    /// The entity's state for a planned hand-over; nil where there is nothing to carry.
    package var capture: (@Sendable (Entity) async -> ByteBuffer?)?
    /// The entity was let go, or its shard left; the last call it gets.
    package var deactivated: (@Sendable (Entity) async -> Void)?

    package init(make: @escaping @Sendable (EntityContext) -> Entity, passivateAfter: Duration? = nil) {
        self.make = make
        self.passivateAfter = passivateAfter
    }
}

/// The message types that one kind of entity takes, by method id: a table of typed closures (D1:
/// 0.145 µs a call, against 2.4 µs for looking targets up by name).
package struct EntityHandlers<Entity: Actor>: Sendable {
    var byMethod: [UInt16: EntityHandler<Entity>] = [:]

    /// Adds a message type. The body hops to the actor by calling it; what it does before that runs on
    /// the connection's event loop and must be short.
    ///
    /// - Precondition: the method is 0x0100 or above and has no other handler.
    package mutating func on<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (Entity, M) async throws(ApusError) -> M.Reply
    ) {
        precondition(M.method >= 0x0100, "method \(M.method) is a node's, not an entity's")
        precondition(byMethod[M.method] == nil, "method \(M.method) has two handlers")
        byMethod[M.method] = EntityHandler(
            typed: TypedHandler<Entity, M>(body: body),
            invoke: { entity, payload in
                do throws(ApusError) {
                    let reply = try await body(entity, try M(reading: payload))
                    return .reply(try reply.encoded().buffer)
                } catch {
                    return .failure(CallFailure(error))
                }
            })
    }
}

/// One entry of the table: for messages off the wire, and for those of this process.
struct EntityHandler<Entity: Actor>: Sendable {
    /// A `TypedHandler` of the message's type.
    let typed: any Sendable
    let invoke: @Sendable (Entity, ByteBuffer) async -> CallOutcome
}

/// Calls the body without bytes in between.
struct TypedHandler<Entity: Actor, M: EntityMessage>: Sendable {
    let body: @Sendable (Entity, M) async throws(ApusError) -> M.Reply
}
