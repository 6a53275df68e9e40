package import ApusCore
package import ApusTransport
import ApusWire
import NIOCore
import SwiftProtobuf

/// The context in which an entity's actor is created.
package struct EntityContext: Sendable {
    package var address: EntityAddress
    /// The shard's epoch. It is the fencing token of everything that the entity does (D4).
    package var epoch: Epoch
    /// The entity's own executor. An actor with handlers from ``EntityHandlers/onSync(_:_:)`` must run on it: it stores
    /// the executor and returns it as its `unownedExecutor`.
    package var executor: TurnExecutor
}

/// How entities of one kind are created and released.
package struct EntityOptions<Entity: Actor>: Sendable {
    /// Creates an actor when its first message arrives. Called under a lock: it must only create the actor.
    package var make: @Sendable (EntityContext) -> Entity
    /// The idle time after which an entity is released. With nil an entity stays until its shard leaves.
    package var passivateAfter: Duration?
    /// Calls in flight per entity. A further one is refused with 10007.
    package var mailboxCountMax = 4096
    /// The entity was released, or its shard left. This is the last call to it.
    package var deactivated: (@Sendable (Entity) async -> Void)?

    package init(make: @escaping @Sendable (EntityContext) -> Entity, passivateAfter: Duration? = nil) {
        self.make = make
        self.passivateAfter = passivateAfter
    }
}

/// The same options without the actor's type, as the host stores them.
struct HostOptions: Sendable {
    /// The type of the actors that `make` creates. The other closures are called with actors of this type.
    let entity: ObjectIdentifier
    let make: @Sendable (EntityContext) -> any Actor
    let passivateAfter: Duration?
    let mailboxCountMax: Int
    let deactivated: (@Sendable (any Actor) async -> Void)?

    init<Entity: Actor>(_ options: EntityOptions<Entity>) {
        entity = ObjectIdentifier(Entity.self)
        make = options.make
        passivateAfter = options.passivateAfter
        mailboxCountMax = options.mailboxCountMax
        if let deactivated = options.deactivated {
            self.deactivated = { actor in await deactivated(EntityHandlers<Entity>.own(actor)) }
        } else {
            deactivated = nil
        }
    }
}

/// The message types that one kind of entity handles, by method id. It is a table of typed closures (D1: 0.145 µs a
/// call, against 2.4 µs for a look-up of targets by name).
package struct EntityHandlers<Entity: Actor>: Sendable {
    var byMethod: [UInt16: EntityHandler] = [:]

    /// Casts an actor of the host to the entity's type.
    @inline(__always)
    static func own(_ actor: any Actor) -> Entity {
        // SAFETY: a host calls its handlers only with actors that its `make` created.
        unsafeDowncast(actor, to: Entity.self)
    }

    /// Adds a message type. The body calls the actor, which is a hop. The code before the hop runs on the connection's
    /// event loop and must be short.
    ///
    /// - Precondition: the method is 0x0100 or above and has no other handler.
    package mutating func on<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (Entity, M) async throws(ApusError) -> M.Reply
    ) {
        add(
            M.self,
            TypedHandler<M>(
                .inTask { actor, message throws(ApusError) in
                    try await body(Self.own(actor), message)
                }),
            .inTask { actor, payload in
                do throws(ApusError) {
                    let reply = try await body(Self.own(actor), try M(reading: payload))
                    return .reply(try reply.encoded().buffer)
                } catch {
                    return .failure(CallFailure(error))
                }
            })
    }

    /// Adds a message type whose handler does not suspend. The handler runs in place when its message arrives, without
    /// a task. For messages of another node that is on the connection's event loop, so the handler must be short. One
    /// message is handled at a time.
    ///
    /// - Precondition: as ``on(_:_:)``; and the actor's `unownedExecutor` is that of its ``EntityContext/executor``.
    package mutating func onSync<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (isolated Entity, M) throws(ApusError) -> M.Reply
    ) {
        // SAFETY: isolation does not change the calling convention. The host calls the body inside the entity's
        // executor, and has checked that it is the actor's.
        let isolated = unsafeBitCast(body, to: (@Sendable (Entity, M) throws(ApusError) -> M.Reply).self)
        let inPlace: TypedHandler<M>.InPlace = { actor, message in
            do throws(ApusError) {
                return .success(try isolated(Self.own(actor), message))
            } catch {
                return .failure(error)
            }
        }
        add(
            M.self,
            TypedHandler<M>(.inPlace(inPlace)),
            .inPlace { actor, payload, isAnswered, answer in
                do throws(ApusError) {
                    let reply = try isolated(Self.own(actor), try M(reading: payload))
                    if isAnswered { answer(try reply.encoded()) }
                    return nil
                } catch {
                    return error
                }
            })
    }

    /// Adds a message type whose handler may answer later, and receives the message's context. It is called in place
    /// when the message arrives, as with ``onSync(_:_:)``.
    ///
    /// The answer is sent even if the entity's shard has left in the meantime. The handler is responsible for its
    /// validity, and answers 10008 if it is unknown whether the message was carried out.
    ///
    /// - Parameter body: calls its last argument once, from any thread.
    /// - Precondition: as ``onSync(_:_:)``.
    package mutating func onDeferred<M: EntityMessage>(
        _ type: M.Type,
        _ body:
            @escaping @Sendable (
                isolated Entity, M, EntityCall, @escaping @Sendable (Result<M.Reply, ApusError>) -> Void
            ) -> Void
    ) {
        let deferred: TypedHandler<M>.Deferred = { actor, message, call, answer in
            Self.own(actor).assumeIsolated { entity in body(entity, message, call, answer) }
        }
        add(
            M.self, TypedHandler<M>(.deferred(deferred)),
            .deferred { actor, payload, call, answer in
                do throws(ApusError) {
                    deferred(actor, try M(reading: payload), call) { answer($0.flatMap { Self.encoded($0) }) }
                } catch {
                    answer(.failure(error))
                }
            })
    }

    private static func encoded(_ reply: some SwiftProtobuf.Message) -> Result<EncodedMessage, ApusError> {
        do throws(ApusError) {
            return .success(try reply.encoded())
        } catch {
            return .failure(error)
        }
    }

    private mutating func add<M: EntityMessage>(
        _ type: M.Type, _ typed: TypedHandler<M>, _ run: EntityHandler.Run
    ) {
        precondition(M.method >= 0x0100, "method \(M.method) belongs to a node, not to an entity")
        precondition(byMethod[M.method] == nil, "method \(M.method) has two handlers")
        byMethod[M.method] = EntityHandler(typed: typed, run: run)
    }
}

/// One entry of the table, for messages from the wire and from this process.
///
/// The bodies take actors of the type that the host creates, and no other.
final class EntityHandler: Sendable {
    /// Passes the reply to its last argument, if a reply is wanted. Returns the error if the handler failed.
    typealias InPlace =
        @Sendable (any Actor, ByteBuffer, _ isAnswered: Bool, _ answer: (EncodedMessage) -> Void) -> ApusError?
    typealias InTask = @Sendable (any Actor, ByteBuffer) async -> CallOutcome
    typealias Deferred =
        @Sendable (any Actor, ByteBuffer, EntityCall, @escaping @Sendable (Result<EncodedMessage, ApusError>) -> Void)
        -> Void

    enum Run: Sendable {
        /// Called by a thread that is inside the entity's executor.
        case inPlace(InPlace)
        case inTask(InTask)
        /// As `inPlace`, but the answer may come later.
        case deferred(Deferred)
    }

    /// A `TypedHandler` of the message's type.
    let typed: any Sendable
    let run: Run

    init(typed: any Sendable, run: Run) {
        self.typed = typed
        self.run = run
    }

    var isInPlace: Bool { if case .inPlace = run { true } else { false } }
}

/// Calls the body without encoding the message.
struct TypedHandler<M: EntityMessage>: Sendable {
    typealias InPlace = @Sendable (any Actor, M) -> Result<M.Reply, ApusError>
    typealias InTask = @Sendable (any Actor, M) async throws(ApusError) -> M.Reply
    typealias Deferred =
        @Sendable (any Actor, M, EntityCall, @escaping @Sendable (Result<M.Reply, ApusError>) -> Void) -> Void

    enum Run: Sendable {
        /// Called by a thread that is inside the entity's executor.
        case inPlace(InPlace)
        case inTask(InTask)
        case deferred(Deferred)
    }

    let run: Run

    init(_ run: Run) { self.run = run }
}
