import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusEvents
import ApusSessions
import CoreMetrics
import Logging

// Servers of the integrator that see each sentence before it is read, and each reply after it is made (docs/voice.md).

/// What a server makes of a sentence.
enum DialogBefore: Sendable, Equatable {
    /// The sentence is read as it is: there is no server, it has failed, or it wants nothing.
    case nothing
    /// This text is read instead.
    case text(String)
    /// The sentence is answered.
    case reply(String)

    /// What is read instead of the sentence; nil: the sentence.
    var text: String? {
        if case .text(let text) = self { text } else { nil }
    }
}

extension DialogService {
    /// How long a server may take.
    private static let interceptorTime = Duration.seconds(2)
    /// What remains of the time of a sentence after a server has been asked.
    private static let interceptorReserve = Duration.milliseconds(700)

    /// Asks the server of the home before a sentence is read. If it fails or is late, the sentence is read as it is.
    func before(
        _ message: DialogRun, _ home: VoiceHome, _ device: DeviceID, until end: MonotonicTime
    ) async -> DialogBefore {
        guard !home.content.before.isEmpty else { return .nothing }
        let payload = JSONValue.object([
            .init(name: "text", value: .string(message.text)),
            .init(
                name: "language", value: .string(message.language.isEmpty ? home.content.language : message.language)),
            .init(name: "device", value: .string(device.rawValue)),
        ])
        let event = SkillEvent(
            namespace: "Recognizer", name: "Before",
            messageID: Self.messageID("before", message.id, message.speaker, device),
            dialogRequestID: message.id, payload: payload.text, context: message.context)
        guard let answer = await ask(home.content.before, event, message.speaker, device, until: end) else {
            return .nothing
        }
        if let reply = answer["reply"]?.string, (1...SkillAnswer.replyByteCountMax).contains(reply.utf8.count) {
            return .reply(reply)
        }
        guard let text = answer["text"]?.string, (1...DialogConfiguration.textByteCountMax).contains(text.utf8.count)
        else { return .nothing }
        return .text(text)
    }

    /// Asks the server of the home after a reply was made. If it fails or is late, the reply stays.
    ///
    /// - Parameter id: of the sentence.
    /// - Returns: the reply that is given.
    func after(
        _ id: String, _ text: String, _ reply: String, _ outcome: DialogOutcome, _ speaker: DialogSpeaker,
        _ home: VoiceHome?, _ device: DeviceID, until end: MonotonicTime
    ) async -> String {
        guard let server = home?.content.after, !server.isEmpty else { return reply }
        let payload = JSONValue.object([
            .init(name: "text", value: .string(text)), .init(name: "reply", value: .string(reply)),
            .init(name: "outcome", value: .string(outcome.name)),
            .init(name: "device", value: .string(device.rawValue)),
        ])
        let event = SkillEvent(
            namespace: "Speech", name: "After", messageID: Self.messageID("after", id, speaker, device),
            dialogRequestID: id, payload: payload.text, context: "")
        guard let answer = await ask(server, event, speaker, device, until: end), let new = answer["reply"]?.string,
            (1...SkillAnswer.replyByteCountMax).contains(new.utf8.count)
        else { return reply }
        return new
    }

    /// The same for each repetition of a sentence.
    private static func messageID(
        _ kind: String, _ sentence: String, _ speaker: DialogSpeaker, _ device: DeviceID
    ) -> String {
        Hexadecimal.text(RequestID("\(kind)/\(sentence)", of: device, speaker.account, step: 0).bytes)
    }

    /// The same, for a sentence whose steps have ended.
    ///
    /// - Parameter home: that of the speaker; nil: it is read.
    func after(
        _ turn: DialogTurn, _ reply: DialogReply, in home: VoiceHome?, _ device: DeviceID, until end: MonotonicTime
    ) async -> String {
        var home = home
        if home == nil { home = try? await homes.home(of: AccountID(unchecked: turn.speaker.account)) }
        return await after(
            turn.id, turn.text, reply.text, reply.outcome, turn.speaker, home, device, until: end)
    }

    /// - Returns: what a server has answered; nil if it has answered nothing, not in time, or no JSON.
    private func ask(
        _ server: String, _ event: SkillEvent, _ speaker: DialogSpeaker, _ device: DeviceID, until end: MonotonicTime
    ) async -> JSONValue? {
        let left = end - .now() - Self.interceptorReserve
        guard left > .zero, let access = AccessID(rawValue: speaker.access) else { return nil }
        do throws(ApusError) {
            let bytes = try await events.send(
                Array(event.json.utf8), to: server, account: AccountID(unchecked: speaker.account), access: access,
                device: speaker.isDevice ? device : nil, id: event.messageID, timeout: min(left, Self.interceptorTime))
            guard !bytes.isEmpty else {
                asked.increment()
                return nil
            }
            guard let answer = JSONValue(bytes[...]) else {
                throw ApusError(.passToServerFailed, "the answer is not JSON")
            }
            asked.increment()
            return answer
        } catch {
            askedInVain.increment()
            log.debug("A server of sentences has failed", metadata: Logger.facts(of: error))
            return nil
        }
    }
}

extension SentenceReader {
    /// The plan of a sentence that a server has seen before. What the server says instead answers no question: the
    /// person has not said it. The same holds for what a language model makes of a sentence that the grammar rejects.
    func plan(
        of text: String, _ before: DialogBefore?, _ guest: GuestAnswer?, answering question: DialogQuestion?
    ) -> DialogPlan {
        let plan =
            switch before {
            case .nothing?, nil: plan(of: text, answering: question)
            case .text(let new)?: plan(of: new, answering: nil)
            case .reply(let reply)?: self.reply(reply, .done)
            }
        guard plan.isRejected, let guest else { return plan }
        return self.plan(of: guest)
    }
}

extension DialogOutcome {
    /// As in the client's contract.
    fileprivate var name: String {
        switch self {
        case .done: "DONE"
        case .waiting: "WAITING"
        case .failed: "FAILED"
        case .asked: "ASKED"
        case .notUnderstood: "NOT_UNDERSTOOD"
        case .refused: "REFUSED"
        case .interrupted: "INTERRUPTED"
        case .nothingHeard: "NOTHING_HEARD"
        case .unspecified, .UNRECOGNIZED: "UNSPECIFIED"
        }
    }
}
