package import ApusCore
package import ApusStorage

/// A channel of a device as an account records it. Another account of the same device has other recordings.
package struct RecordedChannel: Sendable, Hashable, CustomStringConvertible {
    package var account: AccountID
    package var device: DeviceID
    package var source: UInt16

    package init(account: AccountID, device: DeviceID, source: UInt16) {
        (self.account, self.device, self.source) = (account, device, source)
    }

    package var channel: ChannelID { ChannelID(device: device, source: source) }

    /// The key of its head, and what the keys of its hours begin with.
    package var key: OrderedKey {
        OrderedKey(.text(account.rawValue), .text(device.rawValue), .signed(Int64(source)))
    }

    package var description: String { "\(account)/\(channel)" }
}

/// The records of recordings: plans, and the index of what is in the object store (docs/cluster-recordings.md).
///
/// An hour has the segments that begin in it, so a day of a channel is 24 records, and no list opens an object. The
/// head of a channel says how far it is sealed. A segment is added together with the change of the head, under its
/// version, so of two nodes that seal the same frames one succeeds.
///
/// Isolation: `Sendable`; may be called from any task.
package enum RecordingRecords {
    package static let plans = RecordCollection<RecordingPlan>(
        "recording-plans", layout: 1, key: { planKey($0.device, $0.source) },
        indexes: [RecordIndex("account") { [OrderedKey(.text($0.account))] }])
    package static let heads = RecordCollection<RecordingHead>(
        "recording-heads", layout: 1,
        key: { head in
            OrderedKey(.text(head.account), .text(head.device), .signed(Int64(head.source)))
        })
    /// The index has the hours with objects that are being deleted.
    package static let hours = RecordCollection<RecordingHour>(
        "recording-hours", layout: 1,
        key: { hour in
            OrderedKey(
                .text(hour.account), .text(hour.device), .signed(Int64(hour.source)), .signed(hour.hour))
        },
        indexes: [
            RecordIndex("deleted") { hour in
                hour.segments.contains(where: \.deleted) ? [OrderedKey(.signed(hour.hour))] : []
            }
        ])
    package static let catalogue = RecordCatalogue([plans, heads, hours])

    package static func planKey(_ device: String, _ source: UInt32) -> OrderedKey {
        OrderedKey(.text(device), .signed(Int64(source)))
    }

    package static func hourKey(_ channel: RecordedChannel, _ hour: Int64) -> OrderedKey {
        OrderedKey(
            .text(channel.account.rawValue), .text(channel.device.rawValue), .signed(Int64(channel.source)),
            .signed(hour))
    }
}
