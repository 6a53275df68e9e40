package import ApusCore
package import ApusWyoming

/// A conversation agent of the Wyoming protocol (`handle`), such as Home Assistant asks (docs/voice.md): what its
/// clients may send, which text is said to the device next, and what is answered.
///
/// **Texts** of all connections are said one after the other, in the order in which they came: a sentence interrupts
/// the one before in the dialog of a device, and two clients must not interrupt each other. Each `transcript` is a new
/// sentence, also one that a client sends again on a new connection.
///
/// **Questions.** The cluster takes an answer from the session that was asked, and all clients share one session. So a
/// question belongs to the conversation in which it was asked, by `conversation_id` of the context; without one, to the
/// connection. A text of another conversation ends the question first.
///
/// **Bounds.** The texts that wait, of a connection and in all, their size and their time; the size of a context;
/// events that an agent does not take; the time in which a connection sends nothing. The listener bounds connections
/// and events.
///
/// Pure: no I/O. Time and random names come in.
package struct ConversationStateMachine {
    package typealias Connection = Int

    package struct Limits: Sendable {
        /// Texts that wait or are being said, of all connections.
        package var textsMax = 32
        /// The same, of one connection.
        package var connectionTextsMax = 4
        /// A text is answered within this time, also with an error.
        package var answerTime = Duration.seconds(20)
        /// A connection without a text that sends nothing for this long is closed.
        package var idleTime = Duration.seconds(60)
        /// Events that an agent does not take. After one more the connection is closed.
        package var wrongEventsMax = 16

        package init() {}
    }

    /// The longest text, in bytes: that of a sentence.
    package static let textByteCountMax = 512
    /// The longest context, in bytes of JSON.
    package static let contextByteCountMax = 8 << 10
    /// The member of a context that names the conversation.
    package static let conversationName = "conversation_id"

    /// A text to say.
    package struct Sentence: Equatable, Sendable {
        package var number: Int
        package var text: String
        package var language: String?
        /// The question that is open was asked in another conversation: it must be ended first.
        package var endsQuestion: Bool
        package var deadline: MonotonicTime
    }

    /// What became of a text.
    package enum Answer: Equatable, Sendable {
        case handled(String)
        /// The reply is a question.
        case asked(String)
        case notHandled(String)
        case failed(ApusError)
    }

    package enum Action: Equatable {
        case send(Connection, WyomingMessage)
        case close(Connection)
        /// ``answered(_:_:at:_:)`` follows. One text is said at a time.
        case say(Sentence)
        /// After ``stop(at:_:)``: nothing is being said any more.
        case end
    }

    private struct Client {
        /// The conversation of texts that name none.
        var conversation: String
        var textCount = 0
        var wrongEventCount = 0
        var lastMessage: MonotonicTime
    }

    private struct Text {
        var connection: Connection
        var sentence: Sentence
        var context: [JSONValue.Member]
        var conversation: String
    }

    private enum Question {
        case none
        case asked(conversation: String)
        /// The answer to a text was lost.
        case unknown
    }

    private let info: WyomingInfo
    private let limits: Limits
    private var clients: [Connection: Client] = [:]
    private var waiting: [Text] = []
    private var saying: Text?
    private var question = Question.none
    private var lastNumber = 0
    private var isStopping = false

    package init(info: WyomingInfo, limits: Limits = Limits()) { (self.info, self.limits) = (info, limits) }

    /// Texts that wait or are being said.
    package var textCount: Int { waiting.count + (saying == nil ? 0 : 1) }

    // MARK: - Events

    /// A client has connected.
    ///
    /// - Parameter conversation: a random name.
    package mutating func opened(_ connection: Connection, conversation: String, at now: MonotonicTime) {
        clients[connection] = Client(conversation: conversation, lastMessage: now)
    }

    /// A connection is closed. Its texts that wait are not said.
    package mutating func closed(_ connection: Connection) {
        clients[connection] = nil
        waiting.removeAll { $0.connection == connection }
    }

    package mutating func received(
        _ message: WyomingMessage, _ connection: Connection, at now: MonotonicTime, _ actions: inout [Action]
    ) {
        guard clients[connection] != nil else { return }
        clients[connection]?.lastMessage = now
        switch message {
        case .describe: actions.append(.send(connection, .info(info)))
        case .ping(let text): actions.append(.send(connection, .pong(text: text)))
        case .transcript(let transcript): take(transcript, connection, at: now, &actions)
        case .transcribe, .audioStart, .audioChunk, .audioStop, .synthesize, .detect, .voiceStarted, .voiceStopped,
            .transcriptStart, .transcriptChunk, .transcriptStop, .info, .pong, .error, .detection, .notDetected,
            .handled, .notHandled, .other:
            refuse(message, connection, &actions)
        }
    }

    /// A text was said.
    package mutating func answered(
        _ number: Int, _ answer: Answer, at now: MonotonicTime, _ actions: inout [Action]
    ) {
        guard let text = saying, text.sentence.number == number else { return }
        saying = nil
        switch answer {
        case .handled, .notHandled: question = .none
        case .asked: question = .asked(conversation: text.conversation)
        case .failed: question = .unknown
        }
        reply(answer, to: text, at: now, &actions)
        next(&actions)
    }

    /// Time has passed.
    package mutating func tick(at now: MonotonicTime, _ actions: inout [Action]) {
        for text in waiting where text.sentence.deadline <= now {
            let late = ApusError(.deadlineExceeded, "other texts were said for too long")
            reply(.failed(late), to: text, at: now, &actions)
        }
        waiting.removeAll { $0.sentence.deadline <= now }
        for (connection, client) in clients.sorted(by: { $0.key < $1.key })
        where client.textCount == 0 && client.lastMessage + limits.idleTime <= now {
            actions.append(.close(connection))
        }
    }

    /// Nothing more is said but what is being said already.
    package mutating func stop(at now: MonotonicTime, _ actions: inout [Action]) {
        guard !isStopping else { return }
        isStopping = true
        let rest = waiting
        waiting = []
        for text in rest { reply(.failed(Self.stopping), to: text, at: now, &actions) }
        if saying == nil { actions.append(.end) }
    }

    // MARK: - Parts

    private static let stopping = ApusError(.shuttingDown, "this agent ends; try again in a moment")

    private mutating func take(
        _ transcript: WyomingTranscript, _ connection: Connection, at now: MonotonicTime, _ actions: inout [Action]
    ) {
        guard let client = clients[connection] else { return }
        guard !isStopping else { return fail(Self.stopping, connection, &actions) }
        guard transcript.text.utf8.count <= Self.textByteCountMax else {
            return fail(
                ApusError(.frameTooLarge, "a text has at most \(Self.textByteCountMax) bytes"), connection, &actions)
        }
        guard JSONValue.object(transcript.context).text.utf8.count <= Self.contextByteCountMax else {
            return fail(
                ApusError(.frameTooLarge, "a context has at most \(Self.contextByteCountMax) bytes"), connection,
                &actions)
        }
        guard client.textCount < limits.connectionTextsMax, textCount < limits.textsMax else {
            return fail(ApusError(.overloaded, "too many texts wait to be said"), connection, &actions)
        }
        var context = transcript.context
        var conversation = client.conversation
        if let name = context.first(where: { $0.name.isExactly(Self.conversationName) })?.value.string {
            conversation = name
        } else {
            context.removeAll { $0.name.isExactly(Self.conversationName) }
            context.append(.init(name: Self.conversationName, value: .string(conversation)))
        }
        lastNumber += 1
        clients[connection]?.textCount += 1
        let sentence = Sentence(
            number: lastNumber, text: transcript.text, language: transcript.language, endsQuestion: false,
            deadline: now + limits.answerTime)
        waiting.append(
            Text(connection: connection, sentence: sentence, context: context, conversation: conversation))
        next(&actions)
    }

    /// Says the next text, if none is being said.
    private mutating func next(_ actions: inout [Action]) {
        guard saying == nil else { return }
        guard !waiting.isEmpty else {
            if isStopping { actions.append(.end) }
            return
        }
        var text = waiting.removeFirst()
        switch question {
        case .none: break
        case .asked(let conversation): text.sentence.endsQuestion = !conversation.isExactly(text.conversation)
        case .unknown: text.sentence.endsQuestion = true
        }
        saying = text
        actions.append(.say(text.sentence))
    }

    private mutating func reply(
        _ answer: Answer, to text: Text, at now: MonotonicTime, _ actions: inout [Action]
    ) {
        // The client may be gone.
        guard clients[text.connection] != nil else { return }
        clients[text.connection]?.textCount -= 1
        clients[text.connection]?.lastMessage = now
        let context = JSONValue.object(text.context)
        switch answer {
        case .handled(let reply), .asked(let reply):
            actions.append(.send(text.connection, .handled(text: reply, context: context)))
        case .notHandled(let reply):
            actions.append(.send(text.connection, .notHandled(text: reply, context: context)))
        case .failed(let error): fail(error, text.connection, &actions)
        }
    }

    private mutating func refuse(_ message: WyomingMessage, _ connection: Connection, _ actions: inout [Action]) {
        let count = (clients[connection]?.wrongEventCount ?? 0) + 1
        clients[connection]?.wrongEventCount = count
        guard count <= limits.wrongEventsMax else { return actions.append(.close(connection)) }
        let type = message.event.type
        fail(
            ApusError(.methodUnknown, "a conversation agent takes describe, ping and transcript, and not \(type)"),
            connection, &actions)
    }

    private func fail(_ error: ApusError, _ connection: Connection, _ actions: inout [Action]) {
        actions.append(.send(connection, .error(text: error.message, code: "\(error.code.number)")))
    }
}
