import ApusClientAPI
import ApusCluster
import ApusCommands
import ApusContract
import ApusCore
import ApusEvents
import ApusSessions
import Foundation
import SwiftProtobuf

// The skill of a home: a server of the integrator (VA-10 to VA-12, docs/voice.md).

extension DialogService {
    /// How long a skill may take for a sentence, or for an event.
    private static let skillTime = Duration.seconds(2)

    /// Asks the skill about a sentence, and has the device carry out what it answers.
    ///
    /// - Returns: the reply; may be empty.
    /// - Throws: 21002 if the skill does not answer in time, 21005 if it fails or its answer is not valid, 10007 if too
    ///   many messages wait for servers.
    func ask(
        skill step: DialogStep, _ device: DeviceID, id: RequestID, of turn: DialogTurn, _ authority: Authority,
        until end: MonotonicTime
    ) async throws(ApusError) -> String {
        let event = SkillEvent(
            namespace: "Recognizer", name: "Text", messageID: Hexadecimal.text(id.bytes), dialogRequestID: turn.id,
            payload: step.json, context: step.context)
        // The skill is one of the speaker's integrator, which may be another than the device's.
        let answer = try await ask(
            step.path, event, device, authority, isOfDevice: turn.speaker.isDevice, until: end)
        return answer.reply
    }

    /// A custom event of a device for the skill of its account's home (VA-11).
    ///
    /// - Throws: 10040 if the device has not synchronized its dialog since it connected, 8002 if the home has no skill,
    ///   21031 if the event is not valid; otherwise as ``ask(skill:_:id:of:_:until:)``.
    func send(
        _ request: ClientSendDialogEventRequest, id: String, _ call: ClientCall
    ) async throws(ApusError) -> ClientSendDialogEventResponse {
        guard let device = call.session.device else { throw ApusError(.notAllowed, "a device sends events") }
        guard call.connection.map({ synchronized.contains($0) }) ?? false else { throw ApusError(.notSynchronized) }
        guard (1...64).contains(request.name.utf8.count) else {
            throw ApusError(.badParameter, "an event has a name of 1 to 64 bytes")
        }
        _ = try await access(to: device, call.session)
        try takeTurn(of: call.session.account)
        let skill = try await homes.home(of: call.session.account).content.skill
        guard !skill.isEmpty else { throw ApusError(.targetUnknown, "the home has no skill") }
        let event = SkillEvent(
            namespace: "Custom", name: request.name, messageID: id, dialogRequestID: request.dialogRequestID,
            payload: try SkillEvent.payload(request.payload), context: try SkillEvent.context(request.context))
        let end = MonotonicTime.now() + (try call.timeLeft())
        let answer = try await ask(skill, event, device, Authority(call.session), isOfDevice: true, until: end)
        return .with { ($0.messageID, $0.directives) = (id, UInt32(answer.directives.count)) }
    }

    private func ask(
        _ server: String, _ event: SkillEvent, _ device: DeviceID, _ authority: Authority, isOfDevice: Bool,
        until end: MonotonicTime
    ) async throws(ApusError) -> SkillAnswer {
        guard let access = AccessID(rawValue: authority.identities.first ?? "") else { throw ApusError(.malformed) }
        let bytes = try await events.send(
            Array(event.json.utf8), to: server, account: authority.account, access: access,
            device: isOfDevice ? device : nil,
            id: event.messageID, timeout: min(try end.timeLeft(), Self.skillTime))
        let answer = try SkillAnswer(bytes)
        for (index, directive) in answer.directives.enumerated() {
            // The same ids in each repetition: the device carries each out once.
            let id = RequestID(event.messageID, of: device, authority.account.rawValue, step: index)
            var directive = directive
            (directive.messageID, directive.dialogRequestID) = (Hexadecimal.text(id.bytes), event.dialogRequestID)
            _ = try await commands.act(
                try directive.command, id: Data(id.bytes), on: device, by: authority, timeout: try end.timeLeft())
        }
        return answer
    }
}

/// An event for a skill (VA-11, VA-12): `{"context":[…],"event":{"header":{…},"payload":{…}}}`.
///
/// Pure value.
struct SkillEvent: Sendable {
    /// The longest context or payload, in bytes.
    static let byteCountMax = 8 << 10

    var namespace: String
    var name: String
    var messageID: String
    var dialogRequestID: String
    /// A JSON object.
    var payload: String
    /// A JSON array; empty: none.
    var context: String

    var json: String {
        let header = [
            ("namespace", namespace), ("name", name), ("messageId", messageID), ("dialogRequestId", dialogRequestID),
        ].map { JSONValue.Member(name: $0.0, value: .string($0.1)) }
        let event: [JSONValue.Member] = [
            .init(name: "header", value: .object(header)),
            .init(name: "payload", value: JSONValue(ArraySlice(payload.utf8)) ?? .object([])),
        ]
        return JSONValue.object([
            .init(name: "context", value: JSONValue(ArraySlice(context.utf8)) ?? .array([])),
            .init(name: "event", value: .object(event)),
        ]).text
    }

    /// A context that a client sends.
    ///
    /// - Throws: 21031 if it is not an array of objects with a header and a payload; 10002 if it is too long.
    static func context(_ text: String) throws(ApusError) -> String {
        guard !text.isEmpty else { return "" }
        guard text.utf8.count <= byteCountMax else { throw ApusError(.frameTooLarge, "the context is too long") }
        guard case .array(let items)? = JSONValue(ArraySlice(text.utf8)),
            items.allSatisfy({ $0["header"] != nil && $0["payload"] != nil })
        else { throw ApusError(.badParameter, "the context is an array of objects with a header and a payload") }
        return JSONValue.array(items).text
    }

    /// A payload that a client sends.
    ///
    /// - Throws: 21031 if it is not a JSON object; 10002 if it is too long.
    static func payload(_ text: String) throws(ApusError) -> String {
        guard !text.isEmpty else { return "{}" }
        guard text.utf8.count <= byteCountMax else { throw ApusError(.frameTooLarge, "the payload is too long") }
        guard case .object(let members)? = JSONValue(ArraySlice(text.utf8)) else {
            throw ApusError(.badParameter, "the payload is a JSON object")
        }
        return JSONValue.object(members).text
    }
}

/// What a skill answers: `{"reply":"…","directives":[{"directive":{…}}]}`. Both may be missing.
///
/// Pure value.
struct SkillAnswer: Sendable {
    /// The longest reply, in bytes.
    static let replyByteCountMax = 2 << 10
    static let directivesMax = 8

    var reply = ""
    var directives: [ClientDialogDirective] = []

    /// - Throws: 21005 if it is not valid. An empty answer is.
    init(_ bytes: [UInt8]) throws(ApusError) {
        guard !bytes.isEmpty else { return }
        guard let value = JSONValue(bytes[...]) else { throw ApusError(.passToServerFailed, "the answer is not JSON") }
        reply = value["reply"]?.string ?? ""
        var items: [JSONValue] = []
        if case .array(let found)? = value["directives"] { items = found }
        guard reply.utf8.count <= Self.replyByteCountMax, items.count <= Self.directivesMax else {
            throw ApusError(.passToServerFailed, "the reply is too long, or there are too many directives")
        }
        for item in items {
            do throws(ApusError) {
                directives.append(try ClientDialogDirective(json: item.text))
            } catch {
                throw ApusError(.passToServerFailed, error.message)
            }
        }
    }
}
