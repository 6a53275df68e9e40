package import ApusCore
package import ApusTransport
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
    /// The entity's own executor. An actor whose handlers are added with
    /// ``EntityHandlers/onSync(_:_:)`` runs on it: it keeps it, and gives it as its `unownedExecutor`.
    package var executor: TurnExecutor
}

/// How entities of one kind are made and released.
package struct EntityOptions<Entity: Actor>: Sendable {
    /// Makes an actor when its first message comes. Called under a lock: it must only make the actor.
    package var make: @Sendable (EntityContext) -> Entity
    /// An entity that was idle for so long is released; nil keeps it until its shard leaves.
    package var passivateAfter: Duration?
    /// Calls under way per entity; one more is refused with 10007.
    package var mailboxCountMax = 4096
    /// The entity's state for a planned hand-over; nil if there is nothing to carry.
    package var capture: (@Sendable (Entity) async -> ByteBuffer?)?
    /// The entity was released, or its shard left; the last call it gets.
    package var deactivated: (@Sendable (Entity) async -> Void)?

    package init(make: @escaping @Sendable (EntityContext) -> Entity, passivateAfter: Duration? = nil) {
        self.make = make
        self.passivateAfter = passivateAfter
    }
}

/// The same without the actor's type, as the host keeps them.
struct HostOptions: Sendable {
    /// The type of the actors that `make` makes, which those of the others are given.
    let entity: ObjectIdentifier
    let make: @Sendable (EntityContext) -> any Actor
    let passivateAfter: Duration?
    let mailboxCountMax: Int
    let capture: (@Sendable (any Actor) async -> ByteBuffer?)?
    let deactivated: (@Sendable (any Actor) async -> Void)?

    init<Entity: Actor>(_ options: EntityOptions<Entity>) {
        entity = ObjectIdentifier(Entity.self)
        make = options.make
        passivateAfter = options.passivateAfter
        mailboxCountMax = options.mailboxCountMax
        if let capture = options.capture {
            self.capture = { actor in await capture(EntityHandlers<Entity>.own(actor)) }
        } else {
            capture = nil
        }
        if let deactivated = options.deactivated {
            self.deactivated = { actor in await deactivated(EntityHandlers<Entity>.own(actor)) }
        } else {
            deactivated = nil
        }
    }
}

/// The message types that one kind of entity takes, by method id: a table of typed closures (D1:
/// 0.145 µs a call, against 2.4 µs for looking targets up by name).
package struct EntityHandlers<Entity: Actor>: Sendable {
    var byMethod: [UInt16: EntityHandler] = [:]

    /// The actor of a host of such entities.
    @inline(__always)
    static func own(_ actor: any Actor) -> Entity {
        // SAFETY: a host gives its handlers only the actors that its `make` made.
        unsafeDowncast(actor, to: Entity.self)
    }

    /// Adds a message type. The body hops to the actor by calling it; what it does before that runs on
    /// the connection's event loop and must be short.
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

    /// Adds a message type whose handler does not suspend. It runs in place where its message arrives, without a
    /// task: for messages of another node that is the connection's event loop, so it must be short. One message at
    /// a time is handled.
    ///
    /// - Precondition: as ``on(_:_:)``; and the actor's `unownedExecutor` is that of its ``EntityContext/executor``.
    package mutating func onSync<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (isolated Entity, M) throws(ApusError) -> M.Reply
    ) {
        // SAFETY: isolation changes nothing in how a function is called; the host calls it inside the entity's
        // executor, which it has seen to be the actor's.
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

    /// Adds a message type whose handler answers when it is time, and is told what the message came with. It is
    /// called in place where the message arrives, as with ``onSync(_:_:)``.
    ///
    /// The answer is sent whatever has become of the entity's shard meanwhile: the handler knows what its answer is
    /// worth, and says 10008 if the message may have been carried out or not.
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
        precondition(M.method >= 0x0100, "method \(M.method) is a node's, not an entity's")
        precondition(byMethod[M.method] == nil, "method \(M.method) has two handlers")
        byMethod[M.method] = EntityHandler(typed: typed, run: run)
    }
}

/// One entry of the table: for messages off the wire, and for those of this process.
///
/// The bodies take actors of the type that the host makes, and no other.
final class EntityHandler: Sendable {
    /// Gives the reply to its last argument, where it is to be answered; returns the error where it failed.
    typealias InPlace =
        @Sendable (any Actor, ByteBuffer, _ isAnswered: Bool, _ answer: (EncodedMessage) -> Void) -> ApusError?
    typealias InTask = @Sendable (any Actor, ByteBuffer) async -> CallOutcome
    typealias Deferred =
        @Sendable (any Actor, ByteBuffer, EntityCall, @escaping @Sendable (Result<EncodedMessage, ApusError>) -> Void)
        -> Void

    enum Run: Sendable {
        /// By a thread that is inside the entity's executor.
        case inPlace(InPlace)
        case inTask(InTask)
        /// As `inPlace`; the answer comes when it is time.
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

/// Calls the body without bytes in between.
struct TypedHandler<M: EntityMessage>: Sendable {
    typealias InPlace = @Sendable (any Actor, M) -> Result<M.Reply, ApusError>
    typealias InTask = @Sendable (any Actor, M) async throws(ApusError) -> M.Reply
    typealias Deferred =
        @Sendable (any Actor, M, EntityCall, @escaping @Sendable (Result<M.Reply, ApusError>) -> Void) -> Void

    enum Run: Sendable {
        /// By a thread that is inside the entity's executor.
        case inPlace(InPlace)
        case inTask(InTask)
        case deferred(Deferred)
    }

    let run: Run

    init(_ run: Run) { self.run = run }
}
