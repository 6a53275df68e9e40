import ApusClient
import ApusCore

extension ClientSession {
    /// Shares a device with the account of another session, which accepts.
    func share(
        _ device: DeviceID, with account: AccountID, control: Bool, acceptedBy guest: ClientSession
    ) async throws(ApusError) {
        if try await share(device, with: account, control: control) { try await guest.acceptShare(of: device) }
    }
}
