package import ApusCore

/// What learns who may use a device, after each change that a client requests (IV-B10): a port (``ServicePorts``).
///
/// Isolation: may be called from any task.
package protocol RelationObserver: Sendable {
    /// The change is durable. Its client waits for the return of this. The change may have changed nothing; see
    /// ``DeviceRecord/isChanged(by:)``. It is not called if the node of the client dies before.
    ///
    /// - Parameter before: the record before the change; nil if there was none, or it could not be read.
    func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async
}

/// What publishes the changes of who may use devices (IV-B10): a port (``ServicePorts``).
///
/// Isolation: may be called from any task, for one change of a device at a time.
package protocol RelationPublisher: Sendable {
    /// Publishes the event of a change, which is durable. It is called again, possibly at another node, until it does
    /// not throw. Later changes of the device wait for it.
    func publish(_ change: PublishedRelation) async throws(ApusError)
}

/// A change of who may use a device, or of whether it can be used, as it is published.
package struct PublishedRelation: Sendable, Equatable {
    package var device: DeviceID
    package var change: DeviceRelationChange
    /// The record before the change; nil if there was none, or it could not be read.
    package var before: DeviceRecord?
    /// The time of the change, in Unix milliseconds of the cluster's clock.
    package var timeMs: Int64
    /// Names the change among those of the device. A repetition has the same number.
    package var number: UInt64

    package init(
        device: DeviceID, change: DeviceRelationChange, before: DeviceRecord?, timeMs: Int64, number: UInt64
    ) {
        (self.device, self.change, self.before) = (device, change, before)
        (self.timeMs, self.number) = (timeMs, number)
    }
}

extension DeviceRelationChange {
    /// Whether an account may have lost rights to the device by this change. Any account may ask for the end of a share
    /// that does not exist, which ends nothing.
    package func endsRights(before: DeviceRecord?) -> Bool { endsRights && (before?.isChanged(by: self) ?? true) }
}
