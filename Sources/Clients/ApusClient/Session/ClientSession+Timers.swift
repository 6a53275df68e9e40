public import ApusContract
public import ApusCore
public import Foundation
import SwiftProtobuf

// The timers and alarm clocks of devices (VA-2, docs/timers.md).

extension ClientSession {
    /// A timer or an alarm clock of a device.
    public struct DeviceTimer: Sendable, Hashable {
        public enum Kind: Int, Sendable, Hashable {
            /// It rings after a duration, and can be paused.
            case timer = 1
            /// An alarm clock: it rings at a time.
            case alarm = 2
        }

        public enum Status: Int, Sendable, Hashable {
            case running = 1
            case paused = 2
            case ringing = 3
            /// It is not listed any more.
            case ended = 4
        }

        /// 1 to 999, unique within the device.
        public var id: Int
        public var kind: Kind
        public var label: String
        public var status: Status
        /// When it rings, on the cluster's clock; nil while it is paused.
        public var due: Date?
        /// As a timer was set.
        public var duration: Duration?
        /// Of a paused timer: what is left of its duration.
        public var remaining: Duration?
    }

    /// Sets a timer of a device. It is durable when this returns, and rings once, whichever nodes fail.
    ///
    /// - Parameters:
    ///   - duration: 1 ms to seven days.
    ///   - label: at most 64 bytes, without control characters; may be empty.
    /// - Throws: 8002 and 8003 if this account has no such device, 10007 if the device has 32 timers
    ///   (`timers.count_max`), 12004 if a device names another one, 21031 if the duration, the label or the length of
    ///   the device's id is out of its range; otherwise as ``ask(_:timeout:)``. After 10008 it may have been set: list
    ///   the timers.
    @discardableResult
    public func setTimer(
        _ duration: Duration, label: String = "", on device: DeviceID
    ) async throws(ApusError) -> DeviceTimer {
        DeviceTimer(
            try await ask(
                ClientSetTimerRequest.with {
                    ($0.device, $0.label, $0.durationMs) = (device.rawValue, label, Int64(duration.milliseconds))
                }))
    }

    /// Sets an alarm clock of a device.
    ///
    /// - Parameter time: later than now, and within 366 days.
    /// - Throws: as ``setTimer(_:label:on:)``.
    @discardableResult
    public func setAlarm(
        at time: Date, label: String = "", on device: DeviceID
    ) async throws(ApusError) -> DeviceTimer {
        DeviceTimer(
            try await ask(
                ClientSetTimerRequest.with {
                    ($0.device, $0.label) = (device.rawValue, label)
                    $0.dueMs = Int64(time.timeIntervalSince1970 * 1000)
                }))
    }

    /// The timers of a device: those that ring, the running ones by the time when they are due, and the paused ones.
    ///
    /// - Throws: 8002 and 8003 if this account has no such device; otherwise as ``ask(_:timeout:)``.
    public func timers(of device: DeviceID) async throws(ApusError) -> [DeviceTimer] {
        try await ask(ClientListTimersRequest.with { $0.device = device.rawValue }).timers.map { DeviceTimer($0) }
    }

    /// Cancels a timer, or all timers of a device. Returns those that were cancelled.
    ///
    /// - Parameter id: nil: all timers.
    /// - Throws: 8002 if the device has no timer of the id, 8003; otherwise as ``ask(_:timeout:)``.
    @discardableResult
    public func cancelTimers(_ id: Int? = nil, of device: DeviceID) async throws(ApusError) -> [DeviceTimer] {
        let request = ClientCancelTimerRequest.with {
            ($0.device, $0.id) = (device.rawValue, id.map { "\($0)" } ?? "all")
        }
        return try await ask(request).timers.map { DeviceTimer($0) }
    }

    /// Pauses a timer. Has no effect on one that is paused.
    ///
    /// - Throws: 8002 if the device has no timer of the id, 8003, 10030 if it rings, 21031 if it is an alarm clock;
    ///   otherwise as ``ask(_:timeout:)``.
    @discardableResult
    public func pauseTimer(_ id: Int, of device: DeviceID) async throws(ApusError) -> DeviceTimer {
        try await change(id, of: device, .pause)
    }

    /// Lets a paused timer run. Has no effect on one that runs.
    ///
    /// - Throws: as ``pauseTimer(_:of:)``.
    @discardableResult
    public func resumeTimer(_ id: Int, of device: DeviceID) async throws(ApusError) -> DeviceTimer {
        try await change(id, of: device, .resume)
    }

    /// Silences the timers of a device that ring, and returns them.
    ///
    /// - Throws: 8002 and 8003 if this account has no such device; otherwise as ``ask(_:timeout:)``.
    @discardableResult
    public func stopRinging(on device: DeviceID) async throws(ApusError) -> [DeviceTimer] {
        try await ask(ClientStopRingingRequest.with { $0.device = device.rawValue }).timers.map { DeviceTimer($0) }
    }

    /// The events of a device's timers from now on, for an app and for the device itself. As
    /// ``events(of:as:bufferMax:)``. The newest 64 are kept for a session that was away. If more were missed, the event
    /// says so, and names the version before it: then list the timers.
    public func timerChanges(
        of device: DeviceID
    ) -> AsyncThrowingStream<TopicEvent<ClientTimerChanged>, any Error> {
        events(of: "timers/\(device.rawValue)")
    }

    private func change(
        _ id: Int, of device: DeviceID, _ change: ClientTimerChange
    ) async throws(ApusError) -> DeviceTimer {
        DeviceTimer(
            try await ask(
                ClientChangeTimerRequest.with {
                    ($0.device, $0.id, $0.change) = (device.rawValue, UInt32(clamping: id), change)
                }))
    }
}

extension ClientSession.DeviceTimer {
    /// As an event or an answer has it.
    public init(_ message: ClientTimer) {
        self.init(
            id: Int(message.id), kind: Kind(rawValue: message.kind.rawValue) ?? .timer,
            label: message.label, status: Status(rawValue: message.status.rawValue) ?? .ended)
        if message.dueMs > 0 { due = Date(timeIntervalSince1970: Double(message.dueMs) / 1000) }
        if message.durationMs > 0 { duration = .milliseconds(message.durationMs) }
        if message.remainingMs > 0 { remaining = .milliseconds(message.remainingMs) }
    }
}
