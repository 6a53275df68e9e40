package import ApusCore

/// What learns who may use a device, after each change that a client requests (IV-B10): a port (``ServicePorts``).
///
/// Isolation: may be called from any task.
package protocol RelationObserver: Sendable {
    /// The change is durable. Its client waits for the return of this. The change may have changed nothing; see
    /// ``DeviceRecord/isChanged(by:)``.
    ///
    /// - Parameter before: the record before the change; nil if there was none, or it could not be read.
    func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async
}

extension DeviceRelationChange {
    /// Whether an account may have lost rights to the device by this change. Any account may ask for the end of a share
    /// that does not exist, which ends nothing.
    package func endsRights(before: DeviceRecord?) -> Bool { endsRights && (before?.isChanged(by: self) ?? true) }
}
