package import ApusCore

/// What a handler knows of the message that it carries out, and its ways out of the entity (D15).
///
/// What a handler sends and sets takes effect when its change is confirmed, and not at all where it throws. A node that
/// dies between the two takes with it what was to be told: who must not miss it asks, or is reminded.
package struct EntityScope: Sendable {
    /// A message to another entity, to be sent when the change is confirmed.
    typealias Telling = @Sendable (EntityRegistry, EntityCall) -> Void

    /// The most timers of an entity.
    package static let timerCountMax = 16
    /// The most messages to others that one message may cause.
    package static let tellCountMax = 1024
    /// The most reminders of an entity.
    package static let reminderCountMax = 16
    /// The longest payload of a reminder, in bytes.
    package static let payloadByteCountMax = 1024

    package let address: EntityAddress
    /// The shard's epoch, which everything carries that leaves the entity.
    package let epoch: Epoch
    /// Who asked, on whose behalf, and through whom.
    package let call: EntityCall
    /// When the caller stops waiting; nil for a tell.
    package let deadline: MonotonicTime?
    /// The cluster's clock, Unix milliseconds.
    package let wallMilliseconds: Int64

    private let makeID: @Sendable () -> RequestID
    private(set) var tellings: [Telling] = []
    /// What the entity is to be reminded of, as far as this message knows.
    package private(set) var reminders: [Reminder]
    private(set) var reminderChanges: [ReminderChange] = []
    /// By name; nil cancels.
    private(set) var timers: [(name: String, after: Duration?)] = []
    /// The entity has nothing left to do: it is released when nothing else waits for it.
    package var isDone = false

    init(
        address: EntityAddress, epoch: Epoch, call: EntityCall, deadline: MonotonicTime?, wallMilliseconds: Int64,
        reminders: [Reminder], makeID: @escaping @Sendable () -> RequestID
    ) {
        (self.address, self.epoch, self.call, self.reminders) = (address, epoch, call, reminders)
        (self.deadline, self.wallMilliseconds, self.makeID) = (deadline, wallMilliseconds, makeID)
    }

    /// Sends a message that wants no answer.
    ///
    /// - Throws: 10007 over ``tellCountMax``.
    package mutating func tell<Content: EntityContent, M: EntityMessage>(
        _ kind: Content.Type, _ target: EntityAddress, _ message: M
    ) throws(ApusError) {
        guard tellings.count < Self.tellCountMax else {
            throw ApusError(.overloaded, "one message causes too many others")
        }
        tellings.append { registry, call in
            // Whoever is told and cannot be reached misses it; a tell promises nothing.
            try? registry.ref(EntityCell<Content>.self, target).tell(message, call: call)
        }
    }

    /// Has the entity reminded at a time, whatever node it lives on by then. One of the same name is replaced.
    ///
    /// - Parameter due: Unix milliseconds of the cluster's clock; the past means at once.
    /// - Throws: 10007 over ``reminderCountMax``, 10002 for a payload over ``payloadByteCountMax``.
    /// - Precondition: the name has 1 to ``Reminder/nameByteCountMax`` bytes.
    package mutating func remind(_ name: String, at due: Int64, payload: [UInt8] = []) throws(ApusError) {
        precondition((1...Reminder.nameByteCountMax).contains(name.utf8.count), "a reminder's name has 1 to 63 bytes")
        guard payload.count <= Self.payloadByteCountMax else { throw ApusError(.frameTooLarge) }
        guard reminders.count < Self.reminderCountMax || reminders.contains(where: { $0.name == name }) else {
            throw ApusError(.overloaded, "the entity has too many reminders")
        }
        note(.set(Reminder(entity: address, name: name, id: makeID(), due: due, payload: payload)))
    }

    /// Takes a reminder back; harmless where there is none.
    package mutating func cancelReminder(_ name: String) {
        if reminders.contains(where: { $0.name == name }) { note(.cancel(address, name: name)) }
    }

    mutating func noteDelivered(_ reminder: Reminder) { note(.delivered(reminder)) }

    private mutating func note(_ change: ReminderChange) {
        reminderChanges.append(change)
        reminders.apply(change)
    }

    /// Has the entity called after a time, as long as this activation lasts. One of the same name is replaced.
    ///
    /// - Precondition: no message sets more than ``timerCountMax``.
    package mutating func setTimer(_ name: String, after delay: Duration) {
        precondition(timers.count < Self.timerCountMax, "an entity has \(Self.timerCountMax) timers at most")
        timers.append((name, delay))
    }

    /// Takes a timer back; harmless where there is none.
    package mutating func cancelTimer(_ name: String) { timers.append((name, nil)) }
}

/// The turn of a message whose handler asks others: until it ends, no other message of the entity is carried out.
///
/// The handler works on a copy of the state, which becomes the entity's when it returns; where it throws, nothing has
/// changed.
///
/// Isolation: confined to its handler's task.
package final class EntityTurn<Content: EntityContent> {
    package var content: Content
    package var scope: EntityScope
    private weak let registry: EntityRegistry?
    private var askCount: UInt64 = 0

    init(content: Content, scope: EntityScope, registry: EntityRegistry?) {
        (self.content, self.scope, self.registry) = (content, scope, registry)
    }

    /// Asks another entity and waits for its answer, until the caller of this one stops waiting at the latest.
    ///
    /// It has a request id that follows from the one of the message that is carried out, so that a repetition of that
    /// message asks the same question.
    ///
    /// - Throws: 10028 if the target waits for this entity already; 10013 if the shard has left this node; and
    ///   as ``EntityRef/ask(_:timeout:call:)``.
    package func ask<Target: EntityContent, M: EntityMessage>(
        _ kind: Target.Type, _ target: EntityAddress, _ message: M, timeout: Duration = .seconds(5)
    ) async throws(ApusError) -> M.Reply {
        guard let registry, registry.owns(scope.address.shard, scope.epoch) else { throw ApusError(.staleEpoch) }
        var call = EntityCall()
        call.identity = scope.call.identity
        call.trace = scope.call.trace
        call.chain = try scope.call.chain.through(
            EntityHeader(
                kind: scope.address.kind, shard: scope.address.shard, epoch: scope.epoch, key: scope.address.key),
            to: target, interleaves: M.interleaves)
        call.request = scope.call.request?.derived(askCount)
        askCount += 1
        var left = timeout
        if let deadline = scope.deadline {
            let now = MonotonicTime.now()
            guard now < deadline else { throw ApusError(.deadlineExceeded) }
            left = min(left, deadline - now)
        }
        return try await registry.ref(EntityCell<Target>.self, target).ask(message, timeout: left, call: call)
    }
}
