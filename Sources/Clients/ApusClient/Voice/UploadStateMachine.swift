/// The sentences and events of a device on their way to the cluster: one at a time, in order, and only after the device
/// has synchronized its dialog over its connection (VA-13, VA-15).
///
/// **Link.** Disconnected, then synchronizing, then ready. What is added before the link is ready fails at once, so
/// that the device can say so. What waits when the connection is lost fails, too.
///
/// Pure value.
public struct UploadStateMachine: Sendable {
    /// Names one upload.
    public typealias ID = UInt64

    public enum Action: Sendable, Equatable {
        /// Send the dialog's state until the cluster takes it, and report with ``synchronized()``.
        case synchronize
        /// Send it, and report with ``answered(_:_:_:)``.
        case send(ID)
        /// Stop waiting for its answer.
        case abort(ID)
        /// Notify the device.
        case report(ID, UploadState, message: String)
    }

    private enum Link: Sendable {
        case disconnected
        case synchronizing
        case ready
    }

    /// Uploads that wait, or are being sent. One more is throttled.
    public static let countMax = 32

    private var link = Link.disconnected
    private var waiting: [ID] = []
    private var sending: ID?

    public init() {}

    /// The uploads that have no end yet.
    public var count: Int { waiting.count + (sending == nil ? 0 : 1) }

    // MARK: - The link

    /// A connection is open. An earlier one is over.
    public mutating func connected() -> [Action] {
        let failed = failAll(.notConnected, "the connection was lost")
        link = .synchronizing
        return failed + [.synchronize]
    }

    public mutating func synchronized() -> [Action] {
        guard case .synchronizing = link else { return [] }
        link = .ready
        return next()
    }

    public mutating func disconnected() -> [Action] {
        link = .disconnected
        return failAll(.notConnected, "the connection was lost")
    }

    // MARK: - Uploads

    public mutating func add(_ id: ID) -> [Action] {
        switch link {
        case .disconnected: return [.report(id, .notConnected, message: "the device is not connected")]
        case .synchronizing:
            return [.report(id, .notSynchronized, message: "the device has not synchronized its dialog yet")]
        case .ready: break
        }
        guard count < Self.countMax else {
            return [.report(id, .throttled, message: "\(Self.countMax) uploads wait already")]
        }
        waiting.append(id)
        return [.report(id, .pending, message: "")] + next()
    }

    /// The cluster has answered an upload, or its time is over.
    public mutating func answered(_ id: ID, _ state: UploadState, _ message: String) -> [Action] {
        guard sending == id else { return [] }
        sending = nil
        var actions: [Action] = [.report(id, state, message: message)]
        if state == .notSynchronized, case .ready = link {
            // The node does not know what the device has sent over an earlier connection.
            link = .synchronizing
            actions += failAll(.notSynchronized, message) + [.synchronize]
        }
        return actions + next()
    }

    /// The device withdraws an upload. What the cluster has received already may still be carried out.
    public mutating func cancel(_ id: ID) -> [Action] {
        if sending == id {
            sending = nil
            return [.abort(id), .report(id, .canceled, message: "withdrawn")] + next()
        }
        guard let index = waiting.firstIndex(of: id) else { return [] }
        waiting.remove(at: index)
        return [.report(id, .canceled, message: "withdrawn")]
    }

    /// The device withdraws everything.
    public mutating func cancelAll() -> [Action] { failAll(.canceled, "withdrawn") }

    // MARK: - Parts

    private mutating func next() -> [Action] {
        guard case .ready = link, sending == nil, !waiting.isEmpty else { return [] }
        let id = waiting.removeFirst()
        sending = id
        return [.send(id)]
    }

    private mutating func failAll(_ state: UploadState, _ message: String) -> [Action] {
        var actions: [Action] = []
        if let id = sending { actions += [.abort(id), .report(id, state, message: message)] }
        actions += waiting.map { .report($0, state, message: message) }
        (sending, waiting) = (nil, [])
        return actions
    }
}
