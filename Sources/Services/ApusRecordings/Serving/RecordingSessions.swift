package import ApusCore
package import ApusSessions

/// What the reader of recordings needs of sessions: the rights to devices, and sealed addresses.
///
/// Isolation: closures are called from any task.
package struct RecordingSessions: Sendable {
    /// The record of a device; nil if there is none.
    package var device: @Sendable (DeviceID) async throws(ApusError) -> DeviceRecord?
    package var seal:
        @Sendable (_ session: Session, _ device: DeviceID, _ content: [UInt8], _ lifetime: Duration) throws(ApusError)
            -> (text: String, expires: Int64)
    /// Throws 12001 and 12002.
    package var open: @Sendable (_ text: String) throws(ApusError) -> SealedAddress
    /// Throws 12001 and 12002 if the token of an address is not valid any more.
    package var check: @Sendable (SealedAddress) throws(ApusError) -> Void

    package init(
        device: @escaping @Sendable (DeviceID) async throws(ApusError) -> DeviceRecord?,
        seal:
            @escaping @Sendable (Session, DeviceID, [UInt8], Duration) throws(ApusError)
            -> (text: String, expires: Int64),
        open: @escaping @Sendable (String) throws(ApusError) -> SealedAddress,
        check: @escaping @Sendable (SealedAddress) throws(ApusError) -> Void
    ) {
        (self.device, self.seal, self.open, self.check) = (device, seal, open, check)
    }

    /// Those of a node.
    package init(_ sessions: SessionService, _ records: SessionRecords) {
        self.init(
            device: { device throws(ApusError) in try await records.record(of: device) },
            seal: { session, device, content, lifetime throws(ApusError) in
                try sessions.sealAddress(session, device: device, content: content, lifetime: lifetime)
            },
            open: { text throws(ApusError) in try sessions.openAddress(text) },
            check: { address throws(ApusError) in try sessions.checkAddress(address) })
    }
}
