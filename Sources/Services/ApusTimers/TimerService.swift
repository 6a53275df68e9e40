package import ApusClientAPI
package import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusThings
import SwiftProtobuf

/// When a timer that is set rings.
package enum TimerDue: Sendable, Hashable {
    /// A timer: after a duration of 1 ms to seven days.
    case after(Duration)
    /// An alarm clock: at a time in Unix milliseconds, later than now and within 366 days.
    case at(Int64)
}

/// The timers and alarm clocks of devices (VA-2, docs/timers.md): requests of apps and devices, the topics
/// `timers/DEVICE`, and an interface for other services.
///
/// Timers ring in the cluster: ringing is a state with an event, which the device and the apps of its account receive.
///
/// Isolation: `Sendable`; the timers are entities.
package struct TimerService: NodeService, RelationObserver {
    package static let name = "Timers"
    private static let collection = EntityCollection<TimerState>("timers", kind: .timers, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topics.
    package static let topicKind = "timers"

    /// The events of a device that are kept for clients that were disconnected.
    private static let eventsMax = 64
    private static let eventByteCountMax = 16 << 10

    let view: ClusterView
    let topics: TopicService
    let meters = TimerMetrics()
    private let entities: EntityRegistry
    private let things: ThingService
    /// The records of the rights to devices.
    private let devices: SessionRecords

    package init(_ configuration: TimerConfiguration, of node: NodeContext) throws(ApusError) {
        (view, topics, entities) = (node.view, node.topics, node.entities)
        devices = SessionRecords(node.records)
        things = try node.ports.one(ThingService.self)
        let definition = TimerEntities.definition(configuration.limits)
        node.runtime.register(definition, in: Self.collection, outbox: self)
        node.ports.provide(self)
        node.ports.provide(self, as: (any RelationObserver).self)
    }

    package func add(to api: inout ClientAPI) {
        api.addSchemas(timerSchemas)
        addRequests(to: &api)
        api.add(
            PublishedTopics(
                Self.topicKind, "The timers and alarm clocks of a device; the key is the device's id.",
                events: [ClientEventKind(ClientTimerChanged.self)],
                retention: TopicRetention(eventsMax: Self.eventsMax, byteCountMax: Self.eventByteCountMax),
                generation: { key, session throws(ApusError) -> UInt64 in
                    try await generation(of: try DeviceID(checking: key, "the device's id"), for: session)
                }, on: topics))
    }

    // MARK: - For other services

    /// Sets a timer or an alarm clock. It is durable when this returns.
    ///
    /// The caller has checked that the account may control the device. May be called at any node.
    ///
    /// - Parameters:
    ///   - label: at most 64 bytes, without control characters; may be empty.
    ///   - account: who sets it.
    ///   - call: with a request id, a repetition returns the timer that was set before.
    /// - Throws: 8003 if the account has lost its right to the device, 10007 if the device has too many timers, 21031
    ///   if the label, the duration, the time or the length of the device's id is out of its range; otherwise as
    ///   ``EntityRef/ask(_:timeout:call:)``.
    package func set(
        _ due: TimerDue, label: String = "", on device: DeviceID, for account: AccountID, call: EntityCall,
        timeout: Duration
    ) async throws(ApusError) -> ClientTimer {
        let deadline = MonotonicTime.now() + timeout
        let since = try await generation(of: device, for: account)
        return try await set(due, label, device, account, since, call, timeout: try deadline.timeLeft())
    }

    /// The timers of a device: those that ring, the running ones by the time when they are due, and the paused ones.
    ///
    /// - Throws: 8003 if the account has lost its right to the device; otherwise as ``EntityRef/ask(_:timeout:call:)``.
    package func list(
        of device: DeviceID, for account: AccountID, timeout: Duration
    ) async throws(ApusError) -> [ClientTimer] {
        let deadline = MonotonicTime.now() + timeout
        let since = try await generation(of: device, for: account)
        return try await ask(TimerList.with { $0.dataSinceMs = since }, device, timeout: try deadline.timeLeft())
            .clientTimers
    }

    /// Cancels timers, and returns those that were cancelled. There may be none, unless an id is given.
    ///
    /// - Parameter call: with a request id, a repetition returns the same answer.
    /// - Throws: 8002 if the device has no timer of the id, 8003 if the account has lost its right to the device;
    ///   otherwise as ``EntityRef/ask(_:timeout:call:)``.
    package func cancel(
        _ selection: TimerSelection, of device: DeviceID, for account: AccountID, call: EntityCall, timeout: Duration
    ) async throws(ApusError) -> [ClientTimer] {
        let deadline = MonotonicTime.now() + timeout
        let since = try await generation(of: device, for: account)
        let cancel = TimerCancel.with { ($0.dataSinceMs, $0.which) = (since, selection.message) }
        return try await ask(cancel, device, call, timeout: try deadline.timeLeft()).clientTimers
    }

    /// Pauses a timer, or lets it run again. Has no effect if it is so already.
    ///
    /// - Throws: 8002 if the device has no timer of the id, 8003 if the account has lost its right to the device, 10030
    ///   if the timer rings, 21031 if it is an alarm clock; otherwise as ``EntityRef/ask(_:timeout:call:)``.
    package func change(
        _ id: UInt32, isPaused: Bool, of device: DeviceID, for account: AccountID, call: EntityCall, timeout: Duration
    ) async throws(ApusError) -> ClientTimer {
        let deadline = MonotonicTime.now() + timeout
        let since = try await generation(of: device, for: account)
        let change = TimerChange.with { ($0.dataSinceMs, $0.id, $0.paused) = (since, id, isPaused) }
        return try await ask(change, device, call, timeout: try deadline.timeLeft()).clientTimer()
    }

    /// Silences the timers that ring, and returns them. There may be none.
    ///
    /// - Parameter call: with a request id, a repetition returns the same answer.
    /// - Throws: 8003 if the account has lost its right to the device; otherwise as
    ///   ``EntityRef/ask(_:timeout:call:)``.
    package func stop(
        on device: DeviceID, for account: AccountID, call: EntityCall, timeout: Duration
    ) async throws(ApusError) -> [ClientTimer] {
        let deadline = MonotonicTime.now() + timeout
        let since = try await generation(of: device, for: account)
        return try await ask(TimerStop.with { $0.dataSinceMs = since }, device, call, timeout: try deadline.timeLeft())
            .clientTimers
    }

    // MARK: - The entity

    func set(
        _ due: TimerDue, _ label: String, _ device: DeviceID, _ account: AccountID, _ since: UInt64,
        _ call: EntityCall, timeout: Duration
    ) async throws(ApusError) -> ClientTimer {
        guard Self.topic(of: device).description.utf8.count <= ClientTopic.byteCountMax else {
            throw ApusError(.badParameter, "a device with timers has an id of at most 56 bytes")
        }
        let message = TimerSet.with {
            ($0.dataSinceMs, $0.account, $0.label) = (since, account.rawValue, label)
            switch due {
            case .after(let duration): $0.durationMs = Self.milliseconds(duration)
            case .at(let time): $0.dueMs = time
            }
        }
        return try await ask(message, device, call, timeout: timeout).clientTimer()
    }

    /// The whole milliseconds of a duration; 0, which is refused, for one beyond all bounds.
    private static func milliseconds(_ duration: Duration) -> Int64 {
        let (seconds, attoseconds) = duration.components
        guard (0...TimerStateMachine.Limits.durationMax).contains(seconds) else { return 0 }
        return seconds * 1000 + attoseconds / 1_000_000_000_000_000
    }

    func ask<M: EntityMessage>(
        _ message: M, _ device: DeviceID, _ call: EntityCall = EntityCall(), timeout: Duration
    ) async throws(ApusError) -> M.Reply {
        var call = call
        // With an id the message is repeated if the owner dies meanwhile, and is carried out once.
        if !M.isIdempotent, call.request == nil {
            var generator = SystemRandomNumberGenerator()
            call.request = RequestID(using: &generator)
        }
        return try await entities.ref(EntityCell<TimerState>.self, TimerEntities.address(device))
            .ask(message, timeout: timeout, call: call)
    }

    static func topic(of device: DeviceID) -> ClientTopic { ClientTopic(kind: topicKind, key: device.rawValue) }

    // MARK: - Rights

    private static let rightsTimeout = Duration.seconds(1)

    /// Drops the timers of a former account. If this fails, they are dropped with the next message to the timers, and
    /// no client of the next account receives their events.
    package func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async {
        guard change.endsRights(before: before), let since = (try? await devices.record(of: device))?.dataSince,
            since > 0
        else { return }
        _ = try? await ask(TimerEnter.with { $0.dataSinceMs = since }, device, timeout: Self.rightsTimeout)
    }

    /// The time since which the data of the device belongs to its account.
    ///
    /// - Throws: 8003 if the account may not control the device, 10021 if the records cannot be read, 20011 if the
    ///   device is disabled.
    private func generation(of device: DeviceID, for account: AccountID) async throws(ApusError) -> UInt64 {
        // A device that signs in for the first time may ask before its record is written.
        guard let record = try await devices.record(of: device) else { return 0 }
        guard let right = record.right(of: account), right != .view else { throw ApusError(.illegalRelation) }
        try record.checkEnabled()
        return record.dataSince
    }

    /// The same, of the device of the session itself, or of one that the session's account may control.
    ///
    /// - Throws: 8002, 8003, 12001, 12004 and 20011 if the session has no such right.
    func generation(of device: DeviceID, for session: Session) async throws(ApusError) -> UInt64 {
        try await things.access(to: device, for: session, control: true).dataSince
    }
}

extension TimerAnswer {
    var clientTimers: [ClientTimer] { timers.map { ClientTimer($0) } }

    /// The only timer. Throws 10001 if there is none.
    func clientTimer() throws(ApusError) -> ClientTimer {
        guard let timer = timers.first else { throw ApusError(.malformed, "the answer has no timer") }
        return ClientTimer(timer)
    }
}
