package import ApusCore

/// The devices for which a session has asked for a right (IV-B10). Pure.
package struct UsedDevices: Sendable, Equatable {
    /// After so many, the session counts as a user of every device: it may be ended for one that it has not used.
    private let countMax: Int
    /// Their hashes, which take less memory than their ids. The seed is random in each process, so nobody finds a
    /// device with the hash of another one.
    private var hashes: Set<Int> = []
    private var isFull = false

    package init(countMax: Int) { self.countMax = countMax }

    package mutating func insert(_ device: DeviceID) {
        guard !isFull, !hashes.contains(device.hashValue) else { return }
        isFull = hashes.count >= countMax
        if isFull { hashes = [] } else { hashes.insert(device.hashValue) }
    }

    package func isInCommon(with others: Set<DeviceID>) -> Bool {
        isFull || others.contains { hashes.contains($0.hashValue) }
    }
}
