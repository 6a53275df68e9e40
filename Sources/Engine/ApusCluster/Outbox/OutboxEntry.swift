import ApusCore

/// A message that a recorded entity sends with a change: the transactional outbox (D15).
///
/// It is stored in the step that stores the change, and removed once it is delivered. It is therefore delivered if the
/// change is durable, and only then, even if the entity's node dies in between. It may be delivered again after the
/// shard has moved to another node, or after a delivery that failed, so its receiver must recognize it by the entity
/// and the number.
package struct OutboxEntry: Sendable, Equatable {
    /// The longest payload, in bytes. With its key it fits into a record (`records.body_bytes_max`).
    package static let payloadByteCountMax = 255 << 10

    /// The identity of an entry: its entity and number.
    package struct ID: Sendable, Hashable {
        package var entity: EntityAddress
        package var number: UInt64

        package init(entity: EntityAddress, number: UInt64) { (self.entity, self.number) = (entity, number) }
    }

    package var entity: EntityAddress
    /// Grows with each entry of the entity. The entries of an entity are delivered in the order of their numbers.
    package var number: UInt64
    package var payload: [UInt8]

    package init(entity: EntityAddress, number: UInt64, payload: [UInt8]) {
        (self.entity, self.number, self.payload) = (entity, number, payload)
    }

    package var id: ID { ID(entity: entity, number: number) }
}
