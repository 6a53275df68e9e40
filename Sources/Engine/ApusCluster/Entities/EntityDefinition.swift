package import ApusCore
import ApusWire
import SwiftProtobuf

/// The definition of a kind of entity by its service: its number, name, durability and messages (D15).
///
/// A handler is a function on the state. It uses only its arguments, and has no effect except its changes to them.
/// Handlers run where the message arrives, one at a time, so they must be short. A handler waits for nothing: it sends
/// messages to others (``EntityScope/tell(_:_:_:)``), and their answers are messages too.
package struct EntityDefinition<Content: EntityContent>: Sendable {
    typealias Registration = @Sendable (inout EntityHandlers<EntityCell<Content>>) -> Void
    /// Decodes a message, and returns what carries it out; nil if it is malformed. The closure receives the error of a
    /// message that fails.
    typealias Reader = @Sendable ([UInt8], @escaping @Sendable (ApusError) -> Void) -> EntityWork<Content>.Body?

    package let kind: EntityKind
    /// The name in logs and errors.
    package let name: String
    package let durability: EntityDurability
    /// The idle time after which an entity is released. With nil an entity stays until its shard leaves.
    package var passivateAfter: Duration? = .seconds(60)
    /// Messages per entity that wait, run, or wait for their change. A further one is refused with 10007.
    package var callCountMax = 4096
    /// Limits of the stored answers.
    package var memory = RequestMemory.Configuration()
    private(set) var registrations: [Registration] = []
    /// By method, for an ``EntityTrial``.
    private(set) var readers: [UInt16: Reader] = [:]

    package init(_ kind: EntityKind, name: String, durability: EntityDurability) {
        (self.kind, self.name, self.durability) = (kind, name, durability)
    }

    /// The address of an entity of this kind.
    ///
    /// - Parameter shard: the shard that the entity belongs to; nil derives it from the key.
    /// - Precondition: the key has 1 to ``EntityAddress/keyByteCountMax`` bytes.
    package func address(_ key: String, shard: ShardID? = nil) -> EntityAddress {
        EntityAddress(kind: kind, key: key, shard: shard)
    }

    /// Adds a message that may change the state. If the body throws, the state is unchanged.
    package mutating func on<M: EntityMessage>(
        _ type: M.Type,
        _ body: @escaping @Sendable (inout Content, M, inout EntityScope) throws(ApusError) -> M.Reply
    ) {
        add(M.self) { message, isRemembered, answer in
            .change { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in try body(&content, message, &scope) }
            }
        }
    }

    /// Adds a message that only reads. Its answer is not stored: a repetition of the request reads again.
    package mutating func onReading<M: EntityMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (Content, M, EntityScope) throws(ApusError) -> M.Reply
    ) {
        add(M.self) { message, isRemembered, answer in
            .read { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in try body(content, message, scope) }
            }
        }
    }

    /// Adds the handler of reminders. A reminder is delivered until this returns without an error, and is carried out
    /// once.
    ///
    /// A reminder that was cancelled, replaced or already carried out has no effect, if the kind has a durability: the
    /// state lists the pending reminders.
    package mutating func onReminder(
        _ body: @escaping @Sendable (inout Content, Reminder, inout EntityScope) throws(ApusError) -> Void
    ) {
        let isKept = durability != .none
        add(EntityReminded.self) { message, isRemembered, answer in
            .change { content, scope in
                Self.outcome(isRemembered, answer) { () throws(ApusError) in
                    let reminder = try Reminder(message, of: scope.address, scope.call)
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
        readers[M.method] = { bytes, fail in
            guard let message = try? M(serializedBytes: bytes) else { return nil }
            return body(message, true) { result in
                if case .failure(let error) = result { fail(error) }
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

    /// The answer to a repetition.
    private static func reply<Reply: Message>(_ answer: RequestMemory.Answer) -> Result<Reply, ApusError> {
        switch answer {
        case .reply(let bytes):
            guard let reply = try? Reply(serializedBytes: bytes) else { return .failure(ApusError(.malformed)) }
            return .success(reply)
        case .failure(let code, let message): return .failure(ApusError(ErrorCode(number: code), message))
        case .notKept:
            return .failure(
                ApusError(.frameTooLarge, "the request was carried out; its answer was too long to store"))
        }
    }
}
