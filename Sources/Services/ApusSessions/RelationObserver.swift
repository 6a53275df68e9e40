package import ApusCore

/// What learns who may use a device, after each change that a client requests (IV-B10).
///
/// Isolation: may be called from any task.
package protocol RelationObserver: Sendable {
    /// The record before a change; nil if there is none.
    func record(of device: DeviceID) async -> DeviceRecord?

    /// The change is durable. Its client waits for the return of this. The change may have changed nothing; see
    /// ``DeviceRecord/isChanged(by:)``.
    func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async
}
