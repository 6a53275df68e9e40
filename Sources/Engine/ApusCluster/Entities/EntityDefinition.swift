package import ApusCore
import ApusWire
import SwiftProtobuf

/// A kind of entity, as its service declares it: its number and name, how strong its word is, and what its messages do
/// (D15).
///
/// Handlers are functions on the state: what they are given is all that they know, and what they change is all that
/// they do. They run where the message arrives, one at a time, so they must be short. A handler that asks others has a
/// turn (``onTurn(_:_:)``), and one that only reads may interleave (``onReading(_:_:)``).
package struct EntityDefinition<Content: EntityContent>: Sendable {
    package typealias Timer = @Sendable (inout Content, _ name: String, inout EntityScope) throws(ApusError) -> Void
    typealias Registration = @Sendable (inout EntityHandlers<EntityCell<Content>>) -> Void

    package let kind: EntityKind
    /// As logs and errors name it.
    package let name: String
    package let strength: EntityStrength
    /// An entity that was idle for so long is released; nil keeps it until its shard leaves.
    package var passivateAfter: Duration? = .seconds(60)
    /// Messages per entity that wait, run or wait for their change; one more is refused with 10007.
    package var callCountMax = 4096
    /// Bounds of the requests that are remembered.
    package var memory = RequestMemory.Configuration()
    private(set) var timer: Timer?
    private(set) var registrations: [Registration] = []

    package init(_ kind: EntityKind, name: String, strength: EntityStrength) {
        (self.kind, self.name, self.strength) = (kind, name, strength)
    }

    /// Names an entity of this kind.
    ///
    /// - Parameter shard: the shard of what the entity concerns; nil for the key's own.
    /// - Precondition: the key has 1 to ``EntityAddress/keyByteCountMax`` bytes.
    package func address(_ key: String, shard: ShardID? = nil) -> EntityAddress {
        EntityAddress(kind: kind, key: key, shard: shard)
    }

    /// Adds a message that may change the state. Where the body throws, nothing has changed.
    package mutating func on<M: EntityMessage>(
        _ type: M.Type,
        _ body: @escaping @Sendable (inout Content, M, inout EntityScope) throws(ApusError) -> M.Reply
    ) {
        precondition(!M.interleaves, "a message that interleaves only reads")
        add(M.self) { message, isRemembered, answer in
            .change { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in try body(&content, message, &scope) }
            }
        }
    }

    /// Adds a message that only reads.
    ///
    /// Where the message type says that it interleaves, it reads beside a turn that is under way, what was the state
    /// before that.
    package mutating func onReading<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (Content, M, EntityScope) throws(ApusError) -> M.Reply
    ) {
        add(M.self) { message, isRemembered, answer in
            let read: @Sendable (Content, EntityScope) -> EntityWork<Content>.Outcome = { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in try body(content, message, scope) }
            }
            return M.interleaves ? .read(read) : .change { content, scope in read(content, scope) }
        }
    }

    /// Adds a message whose handler asks others. No other message of the entity is carried out until it has ended.
    package mutating func onTurn<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (EntityTurn<Content>, M) async throws(ApusError) -> M.Reply
    ) {
        precondition(!M.interleaves, "a message that interleaves only reads")
        add(M.self) { message, isRemembered, answer in
            .turn { turn in
                do throws(ApusError) {
                    let reply = try await body(turn, message)
                    return Self.success(isRemembered, reply, answer)
                } catch {
                    return .init(isFailure: true, send: { answer(.failure(error)) })
                }
            }
        }
    }

    /// Adds what a reminder does. It is delivered until this returns without an error, and carried out once.
    ///
    /// One that the entity has cancelled or replaced meanwhile, or has carried out long ago, does nothing: where the
    /// state is kept, it says what the entity is still to be reminded of.
    package mutating func onReminder(
        _ body: @escaping @Sendable (inout Content, Reminder, inout EntityScope) throws(ApusError) -> Void
    ) {
        let isKept = strength != .none
        add(EntityReminded.self) { message, isRemembered, answer in
            .change { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in
                    let reminder = try Reminder(message, of: scope)
                    guard !isKept || scope.reminders.contains(where: { $0.id == reminder.id }) else {
                        return EntityReminderTaken()
                    }
                    try body(&content, reminder, &scope)
                    scope.noteDelivered(reminder)
                    return EntityReminderTaken()
                }
            }
        }
    }

    /// Adds what a timer does (``EntityScope/setTimer(_:after:)``).
    package mutating func onTimer(_ body: @escaping Timer) { timer = body }

    private mutating func add<M: EntityMessage>(
        _ type: M.Type,
        _ body:
            @escaping @Sendable (M, _ isRemembered: Bool, @escaping @Sendable (Result<M.Reply, ApusError>) -> Void)
            -> EntityWork<Content>.Body
    ) {
        registrations.append { handlers in
            handlers.onDeferred(M.self) { cell, message, call, answer in
                cell.take(
                    EntityWork(
                        call, body(message, call.request != nil, answer), refuse: { answer(.failure($0)) },
                        repeatAnswer: { answer(Self.reply($0)) }))
            }
        }
    }

    private static func outcome<Reply: Message & Sendable>(
        _ isRemembered: Bool, _ answer: @escaping @Sendable (Result<Reply, ApusError>) -> Void,
        _ body: () throws(ApusError) -> Reply
    ) -> EntityWork<Content>.Outcome {
        do throws(ApusError) {
            return success(isRemembered, try body(), answer)
        } catch {
            return .init(isFailure: true, send: { answer(.failure(error)) })
        }
    }

    private static func success<Reply: Message & Sendable>(
        _ isRemembered: Bool, _ reply: Reply, _ answer: @escaping @Sendable (Result<Reply, ApusError>) -> Void
    ) -> EntityWork<Content>.Outcome {
        guard isRemembered else { return .init(send: { answer(.success(reply)) }) }
        guard let bytes: [UInt8] = try? reply.serializedBytes() else {
            return .init(isFailure: true, send: { answer(.failure(ApusError(.internalFailure))) })
        }
        return .init(answer: .reply(bytes), send: { answer(.success(reply)) })
    }

    /// What a repetition is answered.
    private static func reply<Reply: Message>(_ answer: RequestMemory.Answer) -> Result<Reply, ApusError> {
        switch answer {
        case .reply(let bytes):
            guard let reply = try? Reply(serializedBytes: bytes) else { return .failure(ApusError(.malformed)) }
            return .success(reply)
        case .failure(let code, let message): return .failure(ApusError(ErrorCode(number: code), message))
        case .notKept:
            return .failure(
                ApusError(.frameTooLarge, "the request was carried out; its answer was too long to be remembered"))
        }
    }
}
