package import ApusCore

/// The devices for which a session has asked for a right (IV-B10). Pure.
package struct UsedDevices: Sendable, Equatable {
    /// After so many, the session counts as a user of every device: it may be ended for one that it has not used.
    package static let countMax = 256

    private var devices: Set<DeviceID> = []
    private var isFull = false

    package init() {}

    package mutating func insert(_ device: DeviceID) {
        guard !isFull, !devices.contains(device) else { return }
        isFull = devices.count >= Self.countMax
        if isFull { devices = [] } else { devices.insert(device) }
    }

    package func isInCommon(with others: Set<DeviceID>) -> Bool { isFull || !devices.isDisjoint(with: others) }
}
