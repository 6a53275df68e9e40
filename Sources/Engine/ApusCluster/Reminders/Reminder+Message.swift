import ApusCore
package import ApusWire
import Foundation
import SwiftProtobuf

extension EntityReminded: EntityMessage {
    package typealias Reply = EntityReminderTaken
    package static var method: UInt16 { 0x0f10 }
}

extension EntityReminded {
    init(_ reminder: Reminder) {
        self.init()
        name = reminder.name
        due = reminder.due
        payload = Data(reminder.payload)
    }
}

extension Reminder {
    /// Decodes a reminder. Its id is the request's.
    ///
    /// - Throws: 10001 if it has no id or no name.
    init(_ message: EntityReminded, of entity: EntityAddress, _ call: EntityCall) throws(ApusError) {
        guard let id = call.request, (1...Self.nameByteCountMax).contains(message.name.utf8.count),
            call.node == nil
        else { throw ApusError(.malformed, "a reminder must come from its entity's own node, with an id and a name") }
        self.init(
            entity: entity, name: message.name, id: id, due: message.due, payload: [UInt8](message.payload))
    }
}
