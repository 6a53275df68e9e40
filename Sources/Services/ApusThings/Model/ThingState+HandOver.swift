package import ApusCore
import SwiftProtobuf

/// A device that is handed over to another account without its data (docs/sharing.md).
///
/// The record of the device has the time since which its data is that of its account, and each message to the model has
/// it from there. The first message with a later one wipes the model before anything else. So nobody reads what
/// belonged to the former account once the relation has changed, whichever node died in between.
extension ThingState {
    /// A message comes from a client that knows this time of the record; 0: it knows none.
    ///
    /// - Throws: 8003 if the model is that of a later account already.
    package mutating func enter(_ since: UInt64) throws(ApusError) {
        guard since != 0, since != dataSinceMs else { return }
        guard since > dataSinceMs else {
            throw ApusError(.illegalRelation, "the device has another account since")
        }
        wipe()
        dataSinceMs = since
    }

    /// What remains is the device's own: what it can do, and its built-in states, such as its product and firmware.
    private mutating func wipe() {
        leaves.removeAll { leaf in
            switch leaf.root {
            case .action: false
            case .readonly: !leaf.name.hasPrefix("_")
            case .user, .writable, .unspecified, .UNRECOGNIZED: true
            }
        }
        version += 1
    }
}
