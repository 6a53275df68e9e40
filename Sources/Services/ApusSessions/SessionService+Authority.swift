package import ApusCore

extension SessionService {
    /// Checks the token of what a client has asked for before (docs/authority.md).
    ///
    /// - Throws: as ``Authority/checkToken(_:wallSeconds:)``.
    package func check(_ authority: Authority) throws(ApusError) {
        try authority.checkToken(revocations.list, wallSeconds: wallSeconds())
    }

    /// Those of several that may still control a device. One read of the records decides about all of them.
    ///
    /// - Throws: 10021 if the records cannot be read.
    package func controlling(_ device: DeviceID, _ several: Set<Authority>) async throws(ApusError) -> Set<Authority> {
        guard !several.isEmpty else { return [] }
        let record = try await revocations.records.record(of: device)
        return several.filter { authority -> Bool in
            do throws(ApusError) {
                try check(authority)
                try authority.checkRight(to: record, control: true)
                return true
            } catch {
                return false
            }
        }
    }

    /// Checks that a client may still control a device, with the token that it has shown to the device
    /// (docs/local-access.md).
    ///
    /// - Throws: 12002 if the token has expired, 20011 if the device is disabled, 10021 if the records cannot be read;
    ///   otherwise as ``Authority/checkToken(_:wallSeconds:)`` and ``Authority/checkRight(to:control:)``.
    package func check(_ user: RelayUser, controls device: DeviceID) async throws(ApusError) {
        var authority = user.authority
        authority.isRestricted = true
        try check(authority)
        let record = try await revocations.records.record(of: device)
        try authority.checkRight(to: record, control: false)
        try record?.checkEnabled()
        try authority.checkRight(to: record, control: true)
    }
}
