package import ApusCluster
import ApusCore
package import ApusWire
import Foundation
import SwiftProtobuf

/// Adds a change of a device's accounts to the outbox, in the step of the change (IV-B10, D15). Its event is therefore
/// published although the nodes of the client and of the device's owner die.
package struct DeviceEvents: Sendable {
    package let outbox: OwnedOutbox
    /// The request for the change.
    private let request: SessionRelate
    private let timeMs: Int64

    /// - Parameter timeMs: of the change, in Unix milliseconds of the cluster's clock.
    package init(_ outbox: OwnedOutbox, _ request: SessionRelate, timeMs: Int64) {
        (self.outbox, self.request, self.timeMs) = (outbox, request, timeMs)
    }

    /// What is added to the outbox; nil if the change has no event. Sets the number in the changed record.
    ///
    /// - Parameter before: nil if there was no record.
    /// - Throws: 10018 if it cannot be encoded.
    func entry(
        of change: DeviceRelationChange, before: DeviceRecord?, _ record: inout DeviceRecord
    ) throws(ApusError) -> OutboxEntry? {
        guard change.isPublished else { return nil }
        // It also grows where a node of an earlier release has written the record without the number.
        record.eventNumber = max(record.eventNumber + 1, UInt64(clamping: timeMs))
        do {
            let stored = try StoredDeviceChange.with {
                $0.change = try request.serializedData()
                if let before { $0.before = before.message }
                $0.timeMs = timeMs
            }
            return OutboxEntry(
                entity: EntityAddress(kind: .device, key: record.device.rawValue), number: record.eventNumber,
                payload: try stored.serializedBytes())
        } catch {
            throw ApusError(.internalFailure, "a change of a device's accounts cannot be encoded: \(error)")
        }
    }
}

extension DeviceRelationChange {
    /// The change has an event.
    fileprivate var isPublished: Bool {
        switch self {
        case .bind, .handOver, .share, .invite, .accept, .unshare, .disable: true
        case .assign: false
        }
    }

    /// The change is refused while too much waits in the outbox, or the record store is full. A change that takes
    /// rights away is not: of a device, few of those can follow each other without one that is refused.
    var waitsForRoom: Bool {
        switch self {
        case .bind, .share, .invite, .accept, .disable(false), .handOver(to: _?, keepsData: _): true
        case .handOver(to: nil, keepsData: _), .unshare, .assign, .disable(true): false
        }
    }
}
