package import ApusCore

extension SessionService {
    /// Binds a device to the account of a client that has approved the code that the device shows (VA-3). A device that
    /// is bound to the account already stays as it is. Durable on return.
    ///
    /// - Throws: 12004 if the token is for certain devices only; 8002 if the account is a customer's user and there is
    ///   no such device; 8023 if the device is bound to another account; 8024 if the device and the account are not of
    ///   one customer; 20011 if the device is disabled; 10021 if the records cannot be read.
    package func claim(_ device: DeviceID, for session: Session) async throws(ApusError) {
        guard session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is for the use of certain devices only")
        }
        let records = revocations.records
        if let record = try await records.record(of: device) {
            // Another account learns no more than that.
            guard record.account == nil || record.account == session.account else {
                throw ApusError(.boundToOtherUser)
            }
            try record.checkEnabled()
            if record.account != nil { return }
        }
        // The rules are those of a binding by who has registered the account.
        let customer = try await records.user(session.account)?.customer
        do throws(ApusError) {
            try await relate(
                device, .bind(session.account), by: customer.map { .customer($0) } ?? .operator, for: session)
        } catch {
            guard error.code == .boundToThisUser else { throw error }
        }
    }
}
