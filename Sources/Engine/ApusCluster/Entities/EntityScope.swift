package import ApusCore

/// The context of the message that a handler carries out, and the handler's means to send messages and set reminders
/// and timers (D15).
///
/// Messages, reminders and timers take effect when the change is confirmed. They have no effect if the handler throws.
/// If the node dies between the confirmation and the sending, its tells are lost. A message that must not be lost is
/// sent with ask, or from a reminder.
package struct EntityScope: Sendable {
    /// The most timers of an entity.
    package static let timerCountMax = 16
    /// The most tells that one message may cause.
    package static let tellCountMax = 1024
    /// The most reminders of an entity.
    package static let reminderCountMax = 16
    /// The longest payload of a reminder, in bytes.
    package static let payloadByteCountMax = 1024

    package let address: EntityAddress
    /// The shard's epoch. Everything that the entity sends carries it.
    package let epoch: Epoch
    /// The caller, the identity on whose behalf it called, and the chain.
    package let call: EntityCall
    /// The time at which the caller stops waiting; nil for a tell.
    package let deadline: MonotonicTime?
    /// The cluster's clock, Unix milliseconds.
    package let wallMilliseconds: Int64

    private let makeID: @Sendable () -> RequestID
    private(set) var tellings: [any EntityTelling] = []
    /// The entity's pending reminders, including the changes of this message.
    package private(set) var reminders: [Reminder]
    private(set) var reminderChanges: [ReminderChange] = []
    /// By name; a nil duration cancels.
    private(set) var timers: [(name: String, after: Duration?)] = []
    /// Clear it if the answer is to hold for this message only, such as a refusal that asks the caller for more: a
    /// repetition of the request is then carried out. The message must not have changed anything.
    package var isAnswerKept = true
    /// Set it if the change need not survive the death of the node, or the entity's release from memory: it is written
    /// with the next change that must, and its answer does not wait. What it sends must be true without it. Has no
    /// effect if the message has set a reminder.
    package var mayBeLost = false
    /// Set it if the entity has nothing left to do. It is released when no other message waits for it.
    package var isDone = false

    init(
        address: EntityAddress, epoch: Epoch, call: EntityCall, deadline: MonotonicTime?, wallMilliseconds: Int64,
        reminders: [Reminder], makeID: @escaping @Sendable () -> RequestID
    ) {
        (self.address, self.epoch, self.call, self.reminders) = (address, epoch, call, reminders)
        (self.deadline, self.wallMilliseconds, self.makeID) = (deadline, wallMilliseconds, makeID)
    }

    /// Sends a message without an answer.
    ///
    /// - Throws: 10007 over ``tellCountMax``.
    package mutating func tell<Content: EntityContent, M: EntityMessage>(
        _ kind: Content.Type, _ target: EntityAddress, _ message: M
    ) throws(ApusError) {
        guard tellings.count < Self.tellCountMax else {
            throw ApusError(.overloaded, "one message sends too many others")
        }
        tellings.append(EntityTell<Content, M>(entity: target, message: message))
    }

    /// Sends a node a message without an answer. The node may be the one on which the entity is active.
    ///
    /// - Throws: 10007 over ``tellCountMax``.
    package mutating func tell(_ node: NodeName, _ message: some NodeMessage) throws(ApusError) {
        guard tellings.count < Self.tellCountMax else {
            throw ApusError(.overloaded, "one message causes too many others")
        }
        tellings.append(NodeTell(node: node, message: message))
    }

    /// Sets a reminder. It is delivered at whichever node the entity is then. It replaces a reminder of the same name.
    ///
    /// - Parameter due: Unix milliseconds of the cluster's clock. A time in the past is due at once.
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

    /// Cancels a reminder. Has no effect if there is none.
    package mutating func cancelReminder(_ name: String) {
        if reminders.contains(where: { $0.name == name }) { note(.cancel(address, name: name)) }
    }

    mutating func noteDelivered(_ reminder: Reminder) { note(.delivered(reminder)) }

    private mutating func note(_ change: ReminderChange) {
        reminderChanges.append(change)
        reminders.apply(change)
    }

    /// Sets a timer, which fires unless this activation ends before. It replaces a timer of the same name.
    ///
    /// - Precondition: no message sets more than ``timerCountMax``.
    package mutating func setTimer(_ name: String, after delay: Duration) {
        precondition(timers.count < Self.timerCountMax, "an entity has at most \(Self.timerCountMax) timers")
        timers.append((name, delay))
    }

    /// Cancels a timer. Has no effect if there is none.
    package mutating func cancelTimer(_ name: String) { timers.append((name, nil)) }
}

/// The turn of a message whose handler calls other entities. The entity handles no other message until the turn ends.
///
/// The handler works on a copy of the state. The copy becomes the entity's state when the handler returns. If the
/// handler throws, the state is unchanged.
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

    /// Calls another entity and waits for its answer, at most until the caller of this entity stops waiting.
    ///
    /// The request id is derived from that of the current message, so a repetition of that message sends the same
    /// requests.
    ///
    /// - Throws: 10028 if the target already waits for this entity; 10013 if the shard has left this node; otherwise as
    ///   ``EntityRef/ask(_:timeout:call:)``.
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
        if let deadline = scope.deadline { left = min(left, try deadline.timeLeft()) }
        return try await registry.ref(EntityCell<Target>.self, target).ask(message, timeout: left, call: call)
    }
}
