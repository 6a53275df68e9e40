import ApusContract
public import ApusCore
import Foundation
import SwiftProtobuf
import Synchronization

// Commands to devices (IV-D5, IV-D11, IV-D13, IV-D15, docs/commands.md).

extension ClientSession {
    /// What to ask of a device.
    public enum CommandContent: Sendable, Hashable {
        /// An action of its model, such as `Action.cameraOn` with `{"ctlVal":1}`, or `Action.cameraOn.ctlVal` with `1`.
        case action(path: String, json: String)
        /// Raw data, at most 30,000 bytes.
        case data([UInt8])
    }

    /// What is known of a command.
    public struct Command: Sendable, Equatable {
        public enum Status: Int, Sendable, Hashable, Comparable {
            /// It is durable, and the device has not received it.
            case queued = 1
            /// It was sent to the device, which has not confirmed it.
            case sent = 2
            /// The device has it.
            case acknowledged = 3
            /// The device has carried it out.
            case answered = 4
            /// ``Command/error`` has the reason.
            case failed = 5
            /// Its time ended before it was sent: it is never carried out.
            case expired = 6

            public static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }
        }

        public var id: String
        /// Such as `Action.cameraOn`; empty: raw data.
        public var path: String
        public var status: Status
        public var error: ApusError?
        /// The answer of an action, in JSON.
        public var json: String
        /// The answer of raw data.
        public var data: [UInt8]
    }

    /// When the next command of a device is sent.
    public enum CommandOrder: Int, Sendable, Hashable {
        case allAtOnce = 1
        case afterAcknowledgement = 2
        case afterAnswer = 3
    }

    /// The time-out of a command whose sender names none ("auto" of IV-D11).
    public static let commandTimeout = Duration.seconds(10)
    /// The longest content of a command, in bytes (MAX_DATA_SIZE).
    public static let commandByteCountMax = 30_000

    /// Asks a device for an action, and returns its answer in JSON (IV-D5).
    ///
    /// The request is repeated while nodes fail, and the device carries it out once.
    ///
    /// - Throws: 8000 if the device is offline, 8002 and 8003 if this account has no such device, 20100 if the device
    /// is busy, 20101 and 20102 for a wrong path or JSON, 20103 if the action failed, 20104 if the device does not
    /// know it, 21000 if this session waits for the same action already, 21002 if there is no answer in time, 21025
    /// if this session is offline, 21001 if its connections broke and the device may have received it, 20010 if the
    /// cluster has refused its token.
    public func performAction(
        _ path: String, json: String, on device: DeviceID, timeout: Duration = commandTimeout
    ) async throws(ApusError) -> String {
        try await sendCommand(.action(path: path, json: json), to: device, timeout: timeout).json
    }

    /// Sends a device raw data, and returns when the device has it (IV-D11).
    ///
    /// - Throws: 21008 over 30,000 bytes, 21006 if the device refuses the data, otherwise as
    ///   ``performAction(_:json:on:timeout:)``.
    public func sendData(
        _ data: [UInt8], to device: DeviceID, timeout: Duration = commandTimeout
    ) async throws(ApusError) {
        _ = try await sendCommand(.data(data), to: device, expectResponse: false, timeout: timeout)
    }

    /// Sends a device raw data, and returns the answer (IV-D11).
    ///
    /// - Throws: 21007 if the device takes no data, otherwise as ``sendData(_:to:timeout:)``.
    public func exchangeData(
        _ data: [UInt8], with device: DeviceID, timeout: Duration = commandTimeout
    ) async throws(ApusError) -> [UInt8] {
        try await sendCommand(.data(data), to: device, timeout: timeout).data
    }

    /// Sends a command, and waits until it has a status.
    ///
    /// - Parameters:
    ///   - id: 32 hexadecimal digits; nil: a random id. Sending the same id again has no further effect.
    ///   - expectResponse: false: the device's acknowledgement is enough.
    ///   - lifetime: how long the command is kept for a device that is offline or asleep; nil: until the time-out.
    ///   - status: what to wait for; nil: the end of the command.
    /// - Throws: as ``performAction(_:json:on:timeout:)`` and ``sendData(_:to:timeout:)``.
    public func sendCommand(
        _ content: CommandContent, to device: DeviceID, id: String? = nil, expectResponse: Bool = true,
        keptFor lifetime: Duration? = nil, until status: Command.Status? = nil, timeout: Duration = commandTimeout
    ) async throws(ApusError) -> Command {
        var request = ClientSendCommandRequest.with {
            ($0.device, $0.id, $0.noAnswer) = (device.rawValue, id ?? Self.randomCommandID(), !expectResponse)
            $0.ttlSeconds = UInt32(clamping: lifetime.map { max(1, $0.components.seconds) } ?? 0)
            $0.until = ClientCommandStatus(rawValue: status?.rawValue ?? 0) ?? .unspecified
        }
        let size: Int
        switch content {
        case .action(let path, let json): (request.path, request.json, size) = (path, json, json.utf8.count)
        case .data(let data): (request.data, size) = (Data(data), data.count)
        }
        guard size <= Self.commandByteCountMax else {
            throw ApusError(.messageTooLarge, "a command has at most \(Self.commandByteCountMax) bytes, not \(size)")
        }
        // The same message while one waits is an error (IV-D13): the same action, whatever its value, or the same data.
        var kind = content
        if case .action(let path, _) = content { kind = .action(path: path, json: "") }
        let message = CommandsInProgress.Message(device: device, content: kind, id: id)
        guard commandsInProgress.begin(message) else { throw ApusError(.duplicateMessage) }
        defer { commandsInProgress.end(message) }
        let sent = request
        return Command(
            try await repeating(until: .now() + timeout) { (left) throws(ApusError) in
                try await self.ask(sent, timeout: left)
            })
    }

    /// What is known of a command. The newest 32 of a device that have ended are kept.
    ///
    /// - Throws: 8002 if nothing is known of it, 8003.
    public func command(_ id: String, of device: DeviceID) async throws(ApusError) -> Command {
        Command(try await ask(ClientGetCommandRequest.with { ($0.device, $0.id) = (device.rawValue, id) }))
    }

    /// The commands of a device that have not ended, in the order of their delivery, and then the newest that have, the
    /// newest first; and when the next one is sent.
    public func commands(of device: DeviceID) async throws(ApusError) -> (commands: [Command], order: CommandOrder) {
        let reply = try await ask(ClientListCommandsRequest.with { $0.device = device.rawValue })
        return (reply.commands.map { Command($0) }, CommandOrder(rawValue: reply.order.rawValue) ?? .allAtOnce)
    }

    /// Ends a command that was not sent yet.
    ///
    /// - Throws: 10030 if it was sent, 8002 if nothing is known of it, 8003.
    public func cancelCommand(_ id: String, of device: DeviceID) async throws(ApusError) {
        _ = try await ask(ClientCancelCommandRequest.with { ($0.device, $0.id) = (device.rawValue, id) })
    }

    /// Sets when the next command of a device is sent.
    public func setCommandOrder(_ order: CommandOrder, of device: DeviceID) async throws(ApusError) {
        _ = try await ask(
            ClientSetCommandOrderRequest.with {
                ($0.device, $0.order) = (device.rawValue, ClientCommandOrder(rawValue: order.rawValue) ?? .allAtOnce)
            })
    }

    /// An id for a command.
    public static func randomCommandID() -> String {
        (0..<4).map { _ in
            let digits = String(UInt32.random(in: 0...(.max)), radix: 16)
            return String(repeating: "0", count: 8 - digits.count) + digits
        }.joined()
    }

    // MARK: - Devices

    /// A device sleeps from now on, or is awake again. Commands wait while it sleeps.
    ///
    /// - Throws: 12004 if this is not a device's session, otherwise as ``ask(_:timeout:)``.
    public func setAsleep(_ isAsleep: Bool) async throws(ApusError) {
        setPaused(isAsleep, "commands/own")
        _ = try await ask(ClientSleepRequest.with { $0.asleep = isAsleep })
    }

    // MARK: - Repetition

    private static var answerDelay: Duration { .milliseconds(100) }
    private static var answerDelayMax: Duration { .seconds(5) }

    /// Repeats a request that changes nothing if it is repeated, until it is answered, with growing delays.
    ///
    /// - Throws: what another attempt would be answered too, and 10006 if the task is cancelled.
    package func untilAnswered<T: Sendable>(
        _ request: @Sendable () async throws(ApusError) -> T
    ) async throws(ApusError) -> T {
        var backoff = Backoff(first: Self.answerDelay, longest: Self.answerDelayMax)
        while true {
            do throws(ApusError) {
                return try await request()
            } catch {
                guard !Self.isLasting(error) || error.code == .answerTimedOut else { throw error }
            }
            guard (try? await Task.sleep(for: backoff.next())) != nil else { throw ApusError(.cancelled) }
        }
    }

    /// While no node is connected, requests wait for so long.
    private static var reconnectTime: Duration { .seconds(5) }
    private static var repeatDelay: Duration { .milliseconds(50) }

    /// Repeats a request that changes nothing if it is repeated, while nodes fail.
    ///
    /// - Throws: 21025 if no node was connected for five seconds, 21001 if connections broke after the request was sent
    ///   and it could not be sent again, or the last error at the deadline. If records could not be written before,
    ///   that is 10021 also where no answer came to the last attempt.
    package func repeating<T: Sendable>(
        until deadline: MonotonicTime, _ request: @Sendable (Duration) async throws(ApusError) -> T
    ) async throws(ApusError) -> T {
        var offlineSince: MonotonicTime?
        var wasSent = false
        var unwritten: ApusError?
        while true {
            do throws(ApusError) {
                return try await request(max(.milliseconds(1), deadline - .now()))
            } catch {
                if let unwritten, [.deadlineExceeded, .answerTimedOut].contains(error.code) { throw unwritten }
                unwritten = error.code == .storageFailed ? error : nil
                guard !Self.isLasting(error), error.code != .cancelled, error.code != .deadlineExceeded else {
                    throw error.code == .deadlineExceeded ? ApusError(.answerTimedOut, error.message) : error
                }
                let now = MonotonicTime.now()
                if error.code == .linkLost { wasSent = true }
                let failure = wasSent && [.notConnected, .linkLost].contains(error.code) ? ApusError(.sendFailed) : nil
                if error.code == .notConnected {
                    let since = offlineSince ?? now
                    offlineSince = since
                    guard now - since < Self.reconnectTime, now < deadline else {
                        throw failure ?? ApusError(.unavailable)
                    }
                } else {
                    offlineSince = nil
                }
                guard now + Self.repeatDelay < deadline else { throw failure ?? error }
            }
            guard (try? await Task.sleep(for: Self.repeatDelay)) != nil else { throw ApusError(.cancelled) }
        }
    }
}

extension ClientSession.Command {
    init(_ message: ClientCommand) {
        self.init(
            id: message.id, path: message.path, status: Status(rawValue: message.status.rawValue) ?? .queued,
            error: message.code == 0
                ? nil : ApusError(ErrorCode(number: message.code), UntrustedText.escaped(message.message)),
            json: message.json, data: Array(message.data))
    }
}

/// The commands for which a session waits.
///
/// Isolation: any thread, behind a `Mutex`.
final class CommandsInProgress: Sendable {
    struct Message: Hashable, Sendable {
        let device: DeviceID
        let content: ClientSession.CommandContent
        /// A command with an id of its caller's is another message.
        let id: String?
    }

    private let messages = Mutex<Set<Message>>([])

    /// False if the same message is in progress.
    func begin(_ message: Message) -> Bool { messages.withLock { $0.insert(message).inserted } }

    func end(_ message: Message) { messages.withLock { _ = $0.remove(message) } }
}
