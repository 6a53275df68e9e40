/// The media channels of calls (CALL-13): one for each side, which the side publishes and the other plays.
///
/// A call's channels are channels like those of a device, with a primary, a standby and a place in a shard. Their names
/// are reserved: no device has such an id.
package enum CallChannel {
    /// A side of a call that was accepted; the raw value is the number of the channel's source.
    package enum Side: UInt16, Sendable, Hashable, CaseIterable {
        case caller = 0
        /// The leg that has accepted.
        case winner = 1

        package var other: Side { self == .caller ? .winner : .caller }
    }

    private static let prefix = "call."

    /// The channel that a side publishes.
    ///
    /// - Parameter call: a valid session id of at most 58 bytes.
    package static func published(by side: Side, of call: String) -> ChannelID {
        ChannelID(device: DeviceID(unchecked: prefix + call), source: side.rawValue)
    }

    /// True for an id that only the channels of calls may have: `call.`, three digits, `-`, and 32 digits.
    package static func isReserved(_ device: DeviceID) -> Bool {
        let bytes = Array(device.rawValue.utf8)
        return bytes.count == 41 && bytes[8] == UInt8(ascii: "-") && device.rawValue.hasPrefix(prefix)
    }

    /// What a grant for the channel of a call names instead of a device.
    ///
    /// - Parameter isPublished: the grant permits to publish the channel, not to play it.
    package static func grantName(_ channel: ChannelID, isPublished: Bool) -> DeviceID {
        DeviceID(unchecked: "\(channel.device).\(channel.source)\(isPublished ? "p" : "w")")
    }
}
