/// A message that an entity has scheduled for a later time (D15).
///
/// It outlives its entity's activation and the node. It belongs to the entity's shard, and the owner of the shard at
/// the due time delivers it. An entity has one reminder of a name; setting it again replaces it.
package struct Reminder: Sendable, Equatable {
    /// The longest name, in bytes.
    package static let nameByteCountMax = 63

    package var entity: EntityAddress
    /// 1 to 63 bytes.
    package var name: String
    /// A new id each time it is set. The delivery uses it as the request id, so the entity carries it out once.
    package var id: RequestID
    /// Unix time in milliseconds, on the cluster's clock.
    package var due: Int64
    /// The payload that is delivered with it.
    package var payload: [UInt8]

    package init(entity: EntityAddress, name: String, id: RequestID, due: Int64, payload: [UInt8] = []) {
        self.entity = entity
        self.name = name
        self.id = id
        self.due = due
        self.payload = payload
    }
}
