/// A message that an entity has asked for at a later time (D15).
///
/// It outlives its entity's activation, and the node: it is a record of the entity's shard, and whoever owns the shard
/// when it is due has it delivered. An entity has one reminder of a name; setting it again replaces it.
package struct Reminder: Sendable, Equatable {
    /// The longest name, in bytes.
    package static let nameByteCountMax = 63

    package var entity: EntityAddress
    /// 1 to 63 bytes.
    package var name: String
    /// Made anew each time that it is set. A delivery has it as its request id, so that the entity carries it out once.
    package var id: RequestID
    /// Unix time in milliseconds, by the cluster's clock.
    package var due: Int64
    /// What the entity is reminded of.
    package var payload: [UInt8]

    package init(entity: EntityAddress, name: String, id: RequestID, due: Int64, payload: [UInt8] = []) {
        self.entity = entity
        self.name = name
        self.id = id
        self.due = due
        self.payload = payload
    }
}
