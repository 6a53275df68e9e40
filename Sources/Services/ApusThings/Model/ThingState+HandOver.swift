package import ApusCore
import SwiftProtobuf

/// The transfer of a device to another account without its data (docs/sharing.md).
///
/// The record of a device has the time since which the device's data belongs to its account, and every message to the
/// model carries this time. A message with a later time than the model's removes the data before anything else. Data of
/// the previous account therefore cannot be read after the transfer, even if a node fails in between.
extension ThingState {
    /// Applies the time that a message carries; 0: the message has none.
    ///
    /// - Throws: 8003 if the model already belongs to a later account.
    package mutating func enter(_ since: UInt64) throws(ApusError) {
        guard since != 0, since != dataSinceMs else { return }
        guard since > dataSinceMs else {
            throw ApusError(.illegalRelation, "the device has another account since")
        }
        wipe()
        dataSinceMs = since
    }

    /// Removes all data but that of the device itself: its actions, and its built-in states, such as product and
    /// firmware.
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
