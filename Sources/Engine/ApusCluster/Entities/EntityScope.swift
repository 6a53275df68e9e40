package import ApusCore

/// The context of the message that a handler carries out, and the handler's means to send messages and set reminders
/// (D15).
///
/// Messages and reminders take effect when the change is confirmed. They have no effect if the handler throws. If the
/// node dies between the confirmation and the sending, its tells are lost. A message that must not be lost is
/// sent through the outbox (``enqueue(_:number:)``), or from a reminder.
package struct EntityScope: Sendable {
    /// The most tells that one message may cause.
    package static let tellCountMax = 1024
    /// The most reminders of an entity.
    package static let reminderCountMax = 16
    /// The most outbox entries that one message may cause. Together with those that wait already
    /// (``OutboxStateMachine/Configuration/entityCountMax``) and the reminders they fit into one step.
    package static let entryCountMax = 60
    /// The longest payload of a reminder, in bytes.
    package static let payloadByteCountMax = 1024

    package let address: EntityAddress
    /// The shard's epoch. Everything that the entity sends carries it.
    package let epoch: Epoch
    /// The sender, and the identity on whose behalf it sent the message.
    package let call: EntityCall
    /// The cluster's clock, Unix milliseconds.
    package let wallMilliseconds: Int64

    private let makeID: @Sendable () -> RequestID
    private(set) var tellings: [any EntityTelling] = []
    /// The entity's pending reminders, including the changes of this message.
    package private(set) var reminders: [Reminder]
    private(set) var reminderChanges: [ReminderChange] = []
    private(set) var entries: [OutboxEntry] = []
    /// Clear it if the answer is to hold for this message only, such as a refusal that asks the caller for more: a
    /// repetition of the request is then carried out. The message must not have changed anything.
    package var isAnswerKept = true
    /// Set it if the change need not survive the death of the node, or the entity's release from memory: it is written
    /// with the next change that must, and its answer does not wait. What it sends must be true without it. Has no
    /// effect if the message has set a reminder or added to the outbox.
    package var mayBeLost = false
    /// Set it if the entity has nothing left to do. It is released when no other message waits for it.
    package var isDone = false

    init(
        address: EntityAddress, epoch: Epoch, call: EntityCall, wallMilliseconds: Int64, reminders: [Reminder],
        makeID: @escaping @Sendable () -> RequestID
    ) {
        (self.address, self.epoch, self.call, self.reminders) = (address, epoch, call, reminders)
        (self.wallMilliseconds, self.makeID) = (wallMilliseconds, makeID)
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

    /// Adds an entry to the outbox of this recorded entity. It is stored with the change, and delivered to the receiver
    /// that the kind was registered with, even if this node dies in between (``OutboxEntry``).
    ///
    /// - Parameter number: greater than that of each earlier entry of the entity.
    /// - Throws: 10007 over ``entryCountMax``, 10002 for a payload over ``OutboxEntry/payloadByteCountMax``.
    /// - Precondition: the kind was registered with a receiver.
    package mutating func enqueue(_ payload: [UInt8], number: UInt64) throws(ApusError) {
        guard payload.count <= OutboxEntry.payloadByteCountMax else { throw ApusError(.frameTooLarge) }
        guard entries.count < Self.entryCountMax else {
            throw ApusError(.overloaded, "one message causes too many others")
        }
        precondition(entries.last.map { $0.number < number } ?? true, "the numbers of an outbox grow")
        entries.append(OutboxEntry(entity: address, number: number, payload: payload))
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
}
