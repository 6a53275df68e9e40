package import ApusCore
package import SwiftProtobuf

/// What an entity knows: a value that its handlers change, and that goes where its bytes go (D15).
package protocol EntityContent: Sendable, Equatable {
    /// Of an entity that nobody has changed yet.
    init()
    /// Reads what ``encoded()`` made; 10001 if it cannot be read.
    init(reading bytes: [UInt8]) throws(ApusError)
    /// Throws 10018 if it cannot be encoded.
    func encoded() throws(ApusError) -> [UInt8]
}

/// A protobuf message as what an entity knows; it needs nothing but the conformance.
package protocol EntityContentMessage: EntityContent, SwiftProtobuf.Message {}

extension EntityContentMessage {
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

/// How strong the word of a kind's entities is: what has to be true before a change is acknowledged (D15).
package enum EntityStrength: Sendable, Hashable {
    /// Nothing: the state ends with the activation, and can be made anew.
    case none
    /// The shard's standby holds the change too.
    case replicated
    /// The change is in the records, durably.
    case recorded
}

/// All of an entity that outlives its activation, and the version under which it is kept.
package struct EntitySnapshot<Content: EntityContent>: Sendable, Equatable {
    package var content: Content
    package var memory: RequestMemory
    package var reminders: [Reminder]
    /// Grows with each write; 0 if nothing was written yet.
    package var version: UInt64
    /// False: a change in it may not be where it must be yet, and whoever made it was not told that it is.
    package var isConfirmed = true

    package init(content: Content, memory: RequestMemory, reminders: [Reminder] = [], version: UInt64 = 0) {
        (self.content, self.memory, self.reminders, self.version) = (content, memory, reminders, version)
    }
}

/// Where the states of one kind of entity outlive their activations.
///
/// Isolation: may be called from any thread. Completions are called once, on any thread, possibly before the call
/// returns; they must not block.
package protocol EntityStates<Content>: Sendable {
    associatedtype Content: EntityContent

    /// Reads an entity's state, nil if it has none.
    ///
    /// Errors: 10009 if the shard is not this node's under the epoch, 10001 if the state cannot be read, 10021
    /// if it cannot be reached.
    func load(
        _ address: EntityAddress, epoch: Epoch,
        _ completion: @escaping @Sendable (Result<EntitySnapshot<Content>?, ApusError>) -> Void)

    /// Writes a state over the version that it names.
    ///
    /// - Parameter earlier: the reminders of that version.
    func keep(
        _ snapshot: EntitySnapshot<Content>, of address: EntityAddress, epoch: Epoch, earlier: [Reminder],
        _ completion: @escaping @Sendable (KeepOutcome) -> Void)
}

/// States that end with their activation.
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
