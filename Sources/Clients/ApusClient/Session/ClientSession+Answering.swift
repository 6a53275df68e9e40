package import ApusContract
public import ApusCore
public import ApusMedia
public import Foundation
import NIOCore
import SwiftProtobuf

/// Answering machines, and the messages that they take (docs/answering-machine.md).
///
/// A device that is nil stands for this client's account. All functions throw 8002 for a device that does not belong to
/// the account, 12004 with a token for certain devices, and otherwise as ``ask(_:timeout:)``.
extension ClientSession {
    /// The answering machine of a device or an account.
    public struct AnsweringMachine: Sendable, Equatable {
        public var isEnabled: Bool
        /// It answers so long after the start of a call; zero: when nobody has accepted in time.
        public var after: Duration
        /// The longest message.
        public var length: Duration
        public var keepDays: Int
        /// How long the greeting takes; nil if there is none.
        public var greeting: Duration?
    }

    /// A message. It can be read as an MP4.
    public struct CallMessage: Sendable, Equatable {
        /// The session id of its call.
        public var id: String
        public var caller: CallParty
        public var startedAt: Date
        public var length: Duration
        /// The size of the MP4; 0 if the caller's media cannot be stored in one.
        public var byteCount: UInt64
        public var isWatched: Bool
        /// It was cut off at its largest size.
        public var isCut: Bool
    }

    public func answeringMachine(of device: DeviceID? = nil) async throws(ApusError) -> AnsweringMachine {
        AnsweringMachine(try await ask(ClientGetAnsweringMachineRequest.with { $0.device = device?.rawValue ?? "" }))
    }

    /// Turns an answering machine on or off.
    ///
    /// - Parameters:
    ///   - after: at most 120 seconds; zero: when nobody has accepted in time.
    ///   - length: the longest message, 1 to 120 seconds.
    ///   - keepDays: how long messages are kept, 1 to 365.
    @discardableResult
    public func setAnsweringMachine(
        of device: DeviceID? = nil, isEnabled: Bool, after: Duration = .zero, length: Duration = .seconds(30),
        keepDays: Int = 30
    ) async throws(ApusError) -> AnsweringMachine {
        let request = ClientSetAnsweringMachineRequest.with {
            ($0.device, $0.enabled) = (device?.rawValue ?? "", isEnabled)
            $0.afterSeconds = UInt32(clamping: after.components.seconds)
            $0.lengthSeconds = UInt32(clamping: length.components.seconds)
            $0.keepDays = UInt32(clamping: keepDays)
        }
        return AnsweringMachine(try await ask(request))
    }

    /// Gives an answering machine a greeting of at most 30 seconds and 1.5 MiB: configurations and frames, as a source
    /// delivers them. No frames remove the greeting.
    ///
    /// - Throws: 21031 for a greeting that is too long.
    public func setGreeting(of device: DeviceID? = nil, _ frames: [MediaFrame]) async throws(ApusError) {
        for piece in Greeting.pieces(of: frames) {
            var request = piece
            request.device = device?.rawValue ?? ""
            _ = try await ask(request)
        }
    }

    /// The newest messages, the newest first.
    ///
    /// - Parameter limit: at most 500.
    public func callMessages(of device: DeviceID? = nil, limit: Int = 50) async throws(ApusError) -> [CallMessage] {
        let request = ClientListMessagesRequest.with {
            ($0.device, $0.pageSize) = (device?.rawValue ?? "", UInt32(clamping: limit))
        }
        return try await ask(request).messages.map { CallMessage($0) }
    }

    /// The MP4 of a message.
    ///
    /// - Throws: 8002 if there is no such message for this account, or for a device that belongs to it.
    public func readCallMessage(_ id: String) async throws(ApusError) -> [UInt8] {
        var bytes: [UInt8] = []
        var index: UInt32 = 0
        while true {
            let piece = try await ask(ClientReadMessageRequest.with { ($0.message, $0.index) = (id, index) })
            guard !piece.data.isEmpty else { return bytes }
            bytes += piece.data
            guard bytes.count < piece.bytes else { return bytes }
            index += 1
        }
    }

    /// Marks a message as watched, or as new. Throws 8002 as ``readCallMessage(_:)``.
    public func markCallMessage(_ id: String, isWatched: Bool = true) async throws(ApusError) {
        _ = try await ask(ClientMarkMessageRequest.with { ($0.message, $0.watched) = (id, isWatched) })
    }

    /// Throws 8002 as ``readCallMessage(_:)``.
    public func deleteCallMessage(_ id: String) async throws(ApusError) {
        _ = try await ask(ClientDeleteMessageRequest.with { $0.message = id })
    }
}

/// The requests that carry a greeting.
package enum Greeting {
    private static let pieceByteCount = 48 << 10

    /// One request for each piece, without the machine that it is for.
    package static func pieces(of frames: [MediaFrame]) -> [ClientSetGreetingRequest] {
        guard !frames.isEmpty else { return [ClientSetGreetingRequest()] }
        var bytes = ByteBuffer()
        for frame in frames { frame.encode(into: &bytes) }
        let number = UInt64.random(in: 1...UInt64.max)
        var pieces: [ClientSetGreetingRequest] = []
        while bytes.readableBytes > 0, let data = bytes.readSlice(length: min(bytes.readableBytes, pieceByteCount)) {
            pieces.append(
                .with {
                    ($0.number, $0.index) = (number, UInt32(pieces.count))
                    ($0.data, $0.last) = (Data(data.readableBytesView), bytes.readableBytes == 0)
                })
        }
        return pieces
    }
}

extension ClientSession.AnsweringMachine {
    fileprivate init(_ machine: ClientAnsweringMachine) {
        (isEnabled, after) = (machine.enabled, .seconds(Int64(machine.afterSeconds)))
        (length, keepDays) = (.seconds(Int64(machine.lengthSeconds)), Int(machine.keepDays))
        greeting = machine.greetingMs == 0 ? nil : .milliseconds(Int64(machine.greetingMs))
    }
}

extension ClientSession.CallMessage {
    fileprivate init(_ message: ClientCallMessage) {
        (id, byteCount, isWatched, isCut) = (message.message, message.bytes, message.watched, message.cut)
        caller = ClientSession.CallParty(message.caller)
        startedAt = Date(timeIntervalSince1970: Double(message.startedMs) / 1000)
        length = .milliseconds(Int64(message.lengthMs))
    }
}
