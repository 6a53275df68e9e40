package import ApusCore
import Synchronization

/// Devices of which this node has noticed that they are disabled (IV-C16). Pure.
///
/// A client that is refused after its welcome connects again without a pause. A node therefore admits such a device by
/// its ticket only after it has read the device's record.
package struct DisabledDevices: Sendable {
    /// One more takes the place of another, whose next ticket is accepted until the owner has answered.
    package static let countMax = 4096

    private var devices: Set<DeviceID> = []

    package init() {}

    package func contains(_ device: DeviceID) -> Bool { devices.contains(device) }

    package mutating func insert(_ device: DeviceID) {
        if devices.count >= Self.countMax, !devices.contains(device) { _ = devices.popFirst() }
        devices.insert(device)
    }

    package mutating func remove(_ device: DeviceID) { devices.remove(device) }
}

// Devices that an operator, or their customer, has disabled (IV-C16, docs/accounts.md). The owner of a device refuses
// it; what is here only keeps it from being admitted first.
extension SessionService {
    /// Checks a device's session that its owner has not registered.
    ///
    /// - Returns: the device's record.
    /// - Throws: 12001 if its token was issued before the device was unbound or transferred, 8023 if the device is
    ///   bound to another account, 20011 if it is disabled, 10021 if the records cannot be read.
    @discardableResult
    package func checkDevice(_ session: Session) async throws(ApusError) -> DeviceRecord? {
        guard let device = session.device else { return nil }
        let record = try await revocations.records.record(of: device)
        guard session.token.issuedAt >= record?.tokensAfter ?? 0 else {
            throw ApusError(.tokenInvalid, "the device was unbound or transferred after its token was issued")
        }
        // Who has a token of another account does not learn more.
        guard record?.account ?? session.account == session.account else { throw ApusError(.boundToOtherUser) }
        guard let record, record.isDisabled else {
            state.withLock { $0.disabled.remove(device) }
            return record
        }
        state.withLock { $0.disabled.insert(device) }
        throw ApusError(.deviceDisabled)
    }

    /// True if the session is that of a device that was lately disabled, or was refused here.
    func mayBeDisabled(_ session: Session) -> Bool {
        guard let device = session.device else { return false }
        return revocations.hasLost(session.account, device) || state.withLock { $0.disabled.contains(device) }
    }

    /// The owner refused to register the session.
    func noteDisabled(_ session: Session) {
        guard let device = session.device else { return }
        state.withLock { $0.disabled.insert(device) }
    }
}
