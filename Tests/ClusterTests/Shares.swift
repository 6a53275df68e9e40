import ApusClient
import ApusCore

extension ClientSession {
    /// Shares a device with the account of another session, which accepts.
    func share(
        _ device: DeviceID, with account: AccountID, control: Bool, acceptedBy guest: ClientSession
    ) async throws(ApusError) {
        guard try await share(device, with: account, control: control) else { return }
        // The session of a guest whose earlier share has ended may be on its way back.
        try await guest.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
            try await guest.acceptShare(of: device)
        }
    }
}
