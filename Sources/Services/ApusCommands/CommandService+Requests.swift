package import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import ApusThings
import Foundation
import SwiftProtobuf

extension CommandService {
    /// The longest request: content in base64, or JSON in JSON.
    private static let requestByteCountMax = 2 * CommandState.contentByteCountMax + 4096
    /// The commands that one acknowledgement names.
    private static let acknowledgedMax = 256

    /// Registers the requests, and the topic of the devices.
    package func add(to api: inout ClientAPI) {
        addSending(to: &api)
        addDevices(to: &api)
        api.on(ClientGetCommandRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device)
            let found = try await read(device, id: try Self.id(request.id), call).entries.first
            guard let found else { throw ApusError(.targetUnknown, "nothing is known of this command") }
            return ClientCommand(found, device)
        }
        api.on(ClientListCommandsRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device)
            let reply = try await read(device, id: Data(), call)
            return .with {
                $0.commands = reply.entries.map { ClientCommand($0, device) }
                $0.order = ClientCommandOrder(rawValue: reply.order.rawValue) ?? .unspecified
            }
        }
        api.on(ClientCancelCommandRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device)
            return ClientCommand(try await cancel(device, id: try Self.id(request.id), call), device)
        }
        api.on(ClientSetCommandOrderRequest.self) { [self] request, call throws(ApusError) in
            guard let order = CommandOrder(rawValue: request.order.rawValue), (0...3).contains(order.rawValue) else {
                throw ApusError(.badParameter, "the order is not one of the three")
            }
            try await setOrder(order, of: try Self.device(request.device), call)
            return ClientSetCommandOrderResponse()
        }
        api.on(ClientCheckLocalAccessRequest.self) { [self] request, call throws(ApusError) in
            guard let device = call.session.device else { throw ApusError(.notAllowed, "a device checks this") }
            guard let user = RelayUser(request.user, expires: request.expiresS) else {
                throw ApusError(.badParameter, "the user is none of the cluster")
            }
            try await sessions.check(user, controls: device)
            return ClientCheckLocalAccessResponse()
        }
    }

    private func addSending(to api: inout ClientAPI) {
        api.on(ClientSendCommandRequest.self, byteCountMax: Self.requestByteCountMax) {
            [self] request, call throws(ApusError) in
            let device = try Self.device(request.device)
            let content = try Self.content(request)
            guard content.bytes.count <= CommandState.contentByteCountMax else {
                throw ApusError(.messageTooLarge, "a command has at most \(CommandState.contentByteCountMax) bytes")
            }
            let ttl: Duration? = request.ttlSeconds == 0 ? nil : .seconds(Int64(request.ttlSeconds))
            guard ttl ?? .zero <= configuration.ttlMax else {
                throw ApusError(.badParameter, "commands.ttl_max is \(configuration.ttlMax.components.seconds) s")
            }
            let entry = try await send(
                content, id: try Self.id(request, call), to: device, noAnswer: request.noAnswer, ttl: ttl,
                until: try Self.until(request), call)
            guard entry.code == 0 else { throw ApusError(ErrorCode(number: entry.code), entry.message) }
            return ClientCommand(entry, device)
        }
    }

    private func addDevices(to api: inout ClientAPI) {
        api.add(CommandTopics(self))
        api.on(ClientAcknowledgeCommandsRequest.self) { [self] request, call throws(ApusError) in
            guard request.ids.count <= Self.acknowledgedMax else {
                throw ApusError(.badParameter, "at most \(Self.acknowledgedMax) commands are acknowledged at once")
            }
            var ids: [Data] = []
            for id in request.ids { ids.append(try Self.id(id)) }
            try await acknowledge(ids, call)
            return ClientAcknowledgeCommandsResponse()
        }
        api.on(ClientAnswerCommandRequest.self, byteCountMax: Self.requestByteCountMax) {
            [self] request, call throws(ApusError) in
            let answer = CommandAnswer.with {
                ($0.code, $0.message) = (Self.code(request.code), request.message)
                $0.answer = request.json.isEmpty ? request.data : Data(request.json.utf8)
            }
            let id = try Self.id(request.id)
            if !request.json.isEmpty { _ = try JSONValue(checking: request.json) }
            try await self.answer(answer.with(id: id), call)
            return ClientAnswerCommandResponse()
        }
    }

    // MARK: - Fields

    /// A device names only errors of devices.
    private static func code(_ number: Int32) -> Int32 {
        let own: [ClosedRange<Int32>] = [20_000...20_999, 21_000...21_999, 24_000...24_999]
        return number == 0 || own.contains { $0.contains(number) } ? number : ErrorCode.actionFailed.number
    }

    private static func device(_ text: String) throws(ApusError) -> DeviceID {
        try DeviceID(checking: text, "the device's id")
    }

    /// - Throws: 21031 if it is no id.
    private static func id(_ text: String) throws(ApusError) -> Data {
        guard text.utf8.count == 32, let id = Hexadecimal.bytes(text) else {
            throw ApusError(.badParameter, "a command's id has 32 hexadecimal digits")
        }
        return Data(id)
    }

    /// The id that the client chose for the command or its request, or a random one.
    private static func id(_ request: ClientSendCommandRequest, _ call: ClientCall) throws(ApusError) -> Data {
        guard request.id.isEmpty else { return try id(request.id) }
        // The same for each command with the client's key: the queue refuses another one.
        guard let request = call.request.map({ RequestID(key: $0.key, digest: 0) }) else {
            return CommandContent.randomID()
        }
        return [request.high, request.low].reduce(into: Data()) { data, number in
            withUnsafeBytes(of: number.bigEndian) { data.append(contentsOf: $0) }
        }
    }

    private static func content(_ request: ClientSendCommandRequest) throws(ApusError) -> CommandContent {
        guard request.path.isEmpty else {
            guard request.data.isEmpty else { throw ApusError(.badParameter, "an action has JSON, and no data") }
            return try CommandContent(path: request.path, json: request.json)
        }
        guard request.json.isEmpty else { throw ApusError(.pathIllegal, "JSON needs the path of an action") }
        return CommandContent(data: request.data)
    }

    private static func until(_ request: ClientSendCommandRequest) throws(ApusError) -> CommandStatus {
        let usual: CommandStatus = request.noAnswer ? .acknowledged : .answered
        guard request.until != .unspecified else { return usual }
        guard let wanted = CommandStatus(rawValue: request.until.rawValue), (1...6).contains(wanted.rawValue) else {
            throw ApusError(.badParameter, "the status is not one of a command")
        }
        // Nothing follows the usual one but what ends the command otherwise.
        return min(wanted, usual)
    }
}

/// The topic by which a device takes its commands: `commands/own`.
private struct CommandTopics: ClientTopicKind {
    let name = CommandService.topicKind
    let summary = "The commands of the device that subscribes; the key is `own`."
    let events = [ClientEventKind(ClientCommandDelivery.self)]
    private let service: CommandService

    init(_ service: CommandService) { self.service = service }

    func subscribe(_ topic: ClientTopic, after: TopicPosition?, _ call: ClientCall) async throws(ApusError) {
        guard topic.key == CommandService.ownKey else {
            throw ApusError(.notAllowed, "a device takes its own commands only")
        }
        try await service.listen(call)
    }

    func unsubscribe(_ topic: ClientTopic, _ call: ClientCall) async {
        if let connection = call.connection { service.leave(connection) }
    }

    func ended(_ connection: any ClientConnection) { service.leave(connection) }

    func slept(_ isAsleep: Bool, _ call: ClientCall) async throws(ApusError) {
        try await service.slept(isAsleep, call)
    }
}

extension ClientCommandDelivery {
    init(_ message: CommandDeliver) {
        self.init()
        let entry = message.entry
        (id, path, noAnswer) = (Hexadecimal.text(entry.id), entry.path, entry.noAnswer)
        if entry.path.isEmpty { data = entry.content } else { json = String(decoding: entry.content, as: UTF8.self) }
        (ttlMs, acknowledge, sender) = (UInt32(clamping: message.ttlMs), message.acknowledge, entry.sender)
        (user, userExpiresS) = (entry.origin.user, entry.origin.expiresS)
    }
}

extension ClientCommand {
    init(_ entry: CommandEntry, _ device: DeviceID) {
        self.init()
        (id, self.device, path, sender) = (Hexadecimal.text(entry.id), device.rawValue, entry.path, entry.sender)
        status = ClientCommandStatus(rawValue: entry.status.rawValue) ?? .unspecified
        (code, message) = (entry.code, entry.message)
        if entry.path.isEmpty { data = entry.answer } else { json = String(decoding: entry.answer, as: UTF8.self) }
        (createdMs, changedMs, expiresMs) = (entry.createdMs, entry.changedMs, entry.expiresMs)
    }
}

extension CommandAnswer {
    fileprivate func with(id: Data) -> CommandAnswer {
        var answer = self
        answer.id = id
        return answer
    }
}
