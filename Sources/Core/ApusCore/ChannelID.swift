/// What a media channel belongs to.
///
/// Nodes name the owner in their messages by one string (``wireName``), which also determines the shard. The names of
/// calls are reserved: no device has such an id.
public enum ChannelOwner: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// The channel is one of the device's sources (IV-C4).
    case device(DeviceID)
    /// The channel is one side of the call (CALL-13).
    case call(CallID)

    /// The kinds of owners.
    package enum Kind: Sendable, Hashable { case device, call }

    package var kind: Kind {
        switch self {
        case .device: .device
        case .call: .call
        }
    }

    private static let callPrefix = "call."
    /// The length of the name of a call: the prefix, three digits, `-`, and 32 digits.
    private static let callByteCount = 41
    private static let callDashOffset = 8

    /// The owner's name in messages between nodes and in grants.
    package var wireName: String {
        switch self {
        case .device(let device): device.rawValue
        case .call(let call): Self.callPrefix + call.rawValue
        }
    }

    /// The owner with this name; nil if the name is no identifier.
    package init?(wireName: String) {
        guard let device = DeviceID(rawValue: wireName) else { return nil }
        self =
            Self.isReserved(device)
            ? .call(CallID(unchecked: String(wireName.dropFirst(Self.callPrefix.count)))) : .device(device)
    }

    /// True for an id that no device may have, because it is the name of a call.
    package static func isReserved(_ device: DeviceID) -> Bool {
        let bytes = device.rawValue.utf8
        guard bytes.count == callByteCount, device.rawValue.hasPrefix(callPrefix) else { return false }
        return bytes[bytes.index(bytes.startIndex, offsetBy: callDashOffset)] == UInt8(ascii: "-")
    }

    public var description: String { wireName }

    public static func < (left: Self, right: Self) -> Bool { left.wireName < right.wireName }
}

/// A side of a call that was accepted; the raw value is the number of the channel's source.
package enum ChannelSide: UInt16, Sendable, Hashable, CaseIterable {
    case caller = 0
    /// The leg that has accepted.
    case winner = 1

    package var other: Self { self == .caller ? .winner : .caller }
}

/// A media channel: one source of a device (IV-C4), or one side of a call (CALL-13). It belongs to its owner's shard.
///
/// The channels of calls are channels like those of devices, with a primary and a standby. Each side publishes its own
/// channel and plays the other.
public struct ChannelID: Sendable, Hashable, Comparable, CustomStringConvertible {
    public var owner: ChannelOwner
    /// The source of a multi-source device; 0 for a plain camera.
    public var source: UInt16

    public init(owner: ChannelOwner, source: UInt16) { (self.owner, self.source) = (owner, source) }

    public init(device: DeviceID, source: UInt16 = 0) { self.init(owner: .device(device), source: source) }

    /// The channel that a side of a call publishes.
    package init(call: CallID, side: ChannelSide) { self.init(owner: .call(call), source: side.rawValue) }

    /// The channel of a device in a client's request; nil if the id is no device's, or the number of the source is out
    /// of range.
    package init?(device: String, source: UInt32) {
        self.init(wireName: device, source: source)
        guard self.device != nil else { return nil }
    }

    /// The channel in a message between nodes; nil if the name or the number of the source is out of range.
    package init?(wireName: String, source: UInt32) {
        guard let owner = ChannelOwner(wireName: wireName), let source = UInt16(exactly: source) else { return nil }
        self.init(owner: owner, source: source)
    }

    /// The device whose source it is; nil for the channel of a call.
    public var device: DeviceID? {
        guard case .device(let device) = owner else { return nil }
        return device
    }

    /// The shard whose owner is the channel's primary.
    package var shard: ShardID { ShardID(key: owner.wireName) }

    public var description: String { "\(owner)/\(source)" }

    public static func < (left: Self, right: Self) -> Bool {
        (left.owner, left.source) < (right.owner, right.source)
    }
}
