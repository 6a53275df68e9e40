import ApusCalls
package import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusMedia
import ApusSessions
import ApusStorage
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf

extension AnsweringService {
    /// The largest request: a piece of a greeting, which may be in base64.
    private static let greetingByteCountMax = 128 << 10

    /// Registers the requests.
    package func add(to api: inout ClientAPI) {
        api.on(ClientGetAnsweringMachineRequest.self) { [self] request, call throws(ApusError) in
            let party = try await CallParty(device: request.device, account: request.account, call, sessions)
            let machine = try await records.machine(party.name)?.body ?? AnsweringMachine()
            let isOwn = machine.isOf(try await account(of: party))
            return ClientAnsweringMachine(isOwn ? machine : AnsweringMachine(), party)
        }
        api.on(ClientSetAnsweringMachineRequest.self, orderKey: { _ in "answering" }) {
            [self] request, call throws(ApusError) in
            try await set(request, call)
        }
        api.on(
            ClientSetGreetingRequest.self, byteCountMax: Self.greetingByteCountMax, orderKey: { _ in "answering" }
        ) { [self] request, call throws(ApusError) in
            let party = try await CallParty(device: request.device, account: request.account, call, sessions)
            try await greet(request, party.name, of: try await account(of: party))
            return ClientSetGreetingResponse()
        }
        api.on(ClientListMessagesRequest.self) { [self] request, call throws(ApusError) in
            try await list(request, call)
        }
        api.on(ClientReadMessageRequest.self) { [self] request, call throws(ApusError) in
            let message = try await message(request.message, call).body
            let piece =
                request.index < message.pieces
                ? try await records.store.record(
                    AnsweringRecords.movies, AnsweringRecords.key(message.call, request.index))?.body : nil
            return .with { ($0.data, $0.bytes) = (piece?.data ?? Data(), message.bytes) }
        }
        api.on(ClientMarkMessageRequest.self) { [self] request, call throws(ApusError) in
            let message = try await message(request.message, call)
            var body = message.body
            body.isWatched = request.watched
            _ = try await records.put(body, version: message.version)
            return ClientMarkMessageResponse()
        }
        api.on(ClientDeleteMessageRequest.self) { [self] request, call throws(ApusError) in
            let message = try await message(request.message, call)
            try await records.delete(message.body, message.version)
            return ClientDeleteMessageResponse()
        }
    }

    /// - Throws: 21031 for a value out of range, and the errors of ``CallParty/init(device:account:_:_:)``.
    private func set(
        _ request: ClientSetAnsweringMachineRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientAnsweringMachine {
        typealias Bounds = AnsweringConfiguration
        let party = try await CallParty(device: request.device, account: request.account, call, sessions)
        guard request.afterSeconds <= Bounds.afterSecondsMax, request.lengthSeconds <= Bounds.lengthSecondsMax,
            request.keepDays <= Bounds.keepDaysMax
        else {
            throw ApusError(
                .badParameter,
                "a machine answers within \(Bounds.afterSecondsMax) s; a message has at most "
                    + "\(Bounds.lengthSecondsMax) s and is kept for at most \(Bounds.keepDaysMax) days")
        }
        let length = request.lengthSeconds == 0 ? Bounds.lengthSeconds : request.lengthSeconds
        let days = request.keepDays == 0 ? Bounds.keepDays : request.keepDays
        let machine = try await records.change(party.name, of: try await account(of: party)) { machine in
            machine.isEnabled = request.enabled
            (machine.afterMs, machine.lengthMs) = (Int64(request.afterSeconds) * 1000, Int64(length) * 1000)
            machine.keepMs = Int64(days) * 86_400_000
        }
        return ClientAnsweringMachine(machine.new, party)
    }

    /// Stores a piece of a greeting. Pieces are written to the place that the current greeting does not use, so a party
    /// has at most two greetings.
    ///
    /// - Throws: 21031 for a piece that is too long, for too many pieces, and for an invalid greeting; 10007 if the
    ///   account has no room for it; 10030 if pieces before the last one are missing.
    private func greet(
        _ request: ClientSetGreetingRequest, _ party: String, of account: String
    ) async throws(ApusError) {
        guard request.data.count <= AnsweringConfiguration.greetingPieceByteCountMax,
            request.index < AnsweringConfiguration.greetingPiecesMax
        else { throw ApusError(.badParameter, "a greeting has at most 32 pieces of 65,536 bytes") }
        guard request.number != 0 else {
            try await records.change(party, of: account) {
                ($0.greetingPieces, $0.greetingMs, $0.greetingUpload) = (0, 0, 0)
            }
            for number: UInt64 in [0, 1] {
                try await records.eraseGreeting(AnsweringRecords.greetingPlace(number, of: party))
            }
            return
        }
        let machine = try await records.machine(party)?.body ?? AnsweringMachine()
        guard machine.greetingUpload != request.number || !machine.isOf(account) else { return }
        let next = machine.greeting &+ 1
        let piece = AnsweringPiece.with {
            $0.of = AnsweringRecords.greetingPlace(next, of: party)
            ($0.index, $0.data, $0.upload) = (request.index, request.data, request.number)
        }
        try await records.putGreeting(piece, of: account, within: configuration.shares)
        guard request.last else { return }
        let pieces = try await records.greetingPieces(next, of: party, count: request.index + 1)
        guard pieces.count == Int(request.index) + 1, pieces.allSatisfy({ $0.upload == request.number }) else {
            throw ApusError(.versionConflict, "pieces of the greeting are missing")
        }
        let length = try Self.greetingTime(pieces)
        try await records.change(party, of: account) { machine in
            guard machine.greeting &+ 1 == next else { return }
            (machine.greeting, machine.greetingPieces) = (next, request.index + 1)
            (machine.greetingMs, machine.greetingUpload) = (length / 1000, request.number)
        }
    }

    /// The length of a greeting, in microseconds.
    ///
    /// - Throws: 21031 if the pieces contain no valid frames, too many frames, or frames of more than 30 seconds.
    private static func greetingTime(_ pieces: [AnsweringPiece]) throws(ApusError) -> Int64 {
        let frames: [MediaFrame]
        do throws(ApusError) {
            frames = try StoredFrames.frames(of: pieces)
        } catch {
            throw ApusError(.badParameter, "the greeting has no media frames: \(error.message)")
        }
        guard frames.count <= AnsweringConfiguration.greetingFramesMax else {
            throw ApusError(
                .badParameter, "a greeting has at most \(AnsweringConfiguration.greetingFramesMax) frames")
        }
        let times = frames.filter { !$0.header.flags.contains(.configuration) }.map(\.header.ptsMicroseconds)
        let length = (times.max() ?? 0) - (times.min() ?? 0)
        guard !times.isEmpty, length <= AnsweringConfiguration.greetingTimeMax else {
            throw ApusError(.badParameter, "a greeting has frames, and takes at most 30 seconds")
        }
        return length
    }

    private func list(
        _ request: ClientListMessagesRequest, _ call: ClientCall
    ) async throws(ApusError) -> ClientListMessagesResponse {
        let party = try await CallParty(device: request.device, account: request.account, call, sessions)
        let limit = Int(min(request.pageSize == 0 ? 50 : request.pageSize, 500))
        let page = try await records.page(
            of: party.name, after: request.pageToken, limit: limit)
        let account = try await account(of: party)
        let now = view.clock.wallMilliseconds()
        let shown = page.messages.filter { $0.account == account && $0.state == .stored && $0.expiresMs > now }
        return .with {
            $0.messages = shown.map { ClientCallMessage($0) }
            $0.nextPageToken = page.next
        }
    }

    /// A message that the client may read.
    ///
    /// - Throws: 8002 if there is no such message, or if the client may not read it, so that it cannot tell which;
    ///   20011 if the message belongs to a disabled device.
    private func message(
        _ id: String, _ call: ClientCall
    ) async throws(ApusError) -> Record<AnsweringMessage> {
        guard CallService.shard(of: id) != nil, let found = try await records.message(id), found.body.state == .stored,
            found.body.expiresMs > view.clock.wallMilliseconds(), try await may(call, read: found.body)
        else { throw ApusError(.targetUnknown, "no such message") }
        return found
    }

    /// True if a client may read a message. An account may read a device's messages while the device is bound to it.
    ///
    /// - Throws: 20011 if the device is disabled.
    private func may(_ call: ClientCall, read message: AnsweringMessage) async throws(ApusError) -> Bool {
        let session = call.session
        if session.role == .admin { return true }
        guard session.account.rawValue == message.account else { return false }
        if let device = session.device { return message.party == CallParty.device(device).name }
        guard session.role == .app, session.allowedDevices == nil else { return false }
        guard message.party.hasPrefix("device/") else { return true }
        let device = DeviceID(unchecked: String(message.party.dropFirst("device/".count)))
        guard let record = try await sessions.record(of: device), record.account == session.account else {
            return false
        }
        try record.checkEnabled()
        return true
    }
}

extension ClientAnsweringMachine {
    init(_ machine: AnsweringMachine, _ party: CallParty) {
        self.init()
        if party.kind == .device { device = party.id } else { account = party.id }
        (enabled, afterSeconds) = (machine.isEnabled, UInt32(clamping: machine.afterMs / 1000))
        lengthSeconds = UInt32(clamping: machine.lengthMs / 1000)
        keepDays = UInt32(clamping: machine.keepMs / 86_400_000)
        greetingMs = UInt32(clamping: machine.greetingMs)
    }
}

extension ClientCallMessage {
    init(_ stored: AnsweringMessage) {
        self.init()
        message = stored.call
        if stored.callerDevice.isEmpty {
            caller.account = stored.callerAccount
        } else {
            caller.device = stored.callerDevice
        }
        (startedMs, expiresMs, bytes) = (stored.startedMs, stored.expiresMs, stored.bytes)
        lengthMs = UInt32(clamping: (stored.lastUs - stored.firstUs) / 1000)
        (watched, cut, framesLost) = (stored.isWatched, stored.isCut, stored.framesLost)
    }
}
