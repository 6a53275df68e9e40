package import ApusCore
import ApusStorage
package import SwiftProtobuf

/// The state of an entity: a value that its handlers change. It is stored and transferred as bytes (D15).
package protocol EntityContent: Sendable, Equatable {
    /// The initial state.
    init()
    /// Decodes what ``encoded()`` returned. Throws 10001 if that fails.
    init(reading bytes: [UInt8]) throws(ApusError)
    /// Encodes the state. Throws 10018 if that fails.
    func encoded() throws(ApusError) -> [UInt8]
    /// True if both are the same, byte by byte: a change of a text to another normalization is a change.
    func isExactly(_ other: Self) -> Bool
}

/// A protobuf message as an entity's state. Only the conformance has to be declared.
package protocol EntityContentMessage: EntityContent, SwiftProtobuf.Message {}

extension EntityContentMessage {
    package func isExactly(_ other: Self) -> Bool { isEncoded(like: other) }

    package init(reading bytes: [UInt8]) throws(ApusError) {
        guard let message = try? Self(serializedBytes: bytes) else {
            throw ApusError(.malformed, "an entity's state cannot be read")
        }
        self = message
    }

    package func encoded() throws(ApusError) -> [UInt8] {
        do {
            return try serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "an entity's state cannot be encoded")
        }
    }
}

/// The durability of a kind's entities: the condition under which a change is acknowledged (D15).
package enum EntityDurability: Sendable, Hashable {
    /// No condition. The state ends with the activation.
    case none
    /// The shard's standby holds the change too.
    case replicated
    /// The change is a durable record.
    case recorded
}

/// Everything of an entity that outlives its activation, and the version under which it is stored.
package struct EntitySnapshot<Content: EntityContent>: Sendable, Equatable {
    package var content: Content
    package var memory: RequestMemory
    package var reminders: [Reminder]
    /// What is added to the outbox when this is written.
    package var entries: [OutboxEntry] = []
    /// Grows with each write; 0 if nothing was written yet.
    package var version: UInt64
    /// False if a change in the state may not be durable yet. Its caller has not received an acknowledgement.
    package var isConfirmed = true

    package init(content: Content, memory: RequestMemory, reminders: [Reminder] = [], version: UInt64 = 0) {
        (self.content, self.memory, self.reminders, self.version) = (content, memory, reminders, version)
    }
}

/// Stores the states of one kind of entity beyond their activations.
///
/// Isolation: may be called from any thread. A completion is called once, on any thread, possibly before the call
/// returns. It must not block.
package protocol EntityStates<Content>: Sendable {
    associatedtype Content: EntityContent

    /// Reads an entity's state; nil if it has none.
    ///
    /// Errors: 10009 if the shard is not at this node under the epoch, 10001 if the state cannot be decoded, 10021 if
    /// it cannot be read.
    func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<Content>?, ApusError>) -> Void)

    /// Replaces the version that the snapshot names.
    ///
    /// - Parameter earlier: the reminders of that version.
    func keep(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void)
}

/// The states of kinds without durability: they end with their activation.
package struct UnkeptStates<Content: EntityContent>: EntityStates {
    package init() {}

    package func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<Content>?, ApusError>) -> Void
    ) { completion(.success(nil)) }

    package func keep(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void
    ) { completion(.confirmed(0)) }
}
