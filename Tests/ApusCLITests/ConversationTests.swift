import ApusCLI
import ApusCore
import ApusWyoming
import Testing

@Suite("What a conversation agent says, and what it answers (docs/voice.md)")
struct ConversationTests {
    private typealias Machine = ConversationStateMachine

    private static func time(_ seconds: Int) -> MonotonicTime { .zero + .seconds(100 + seconds) }

    /// A machine, what it has done, and the time.
    private struct Agent {
        var machine: Machine
        var actions: [Machine.Action] = []
        var now = ConversationTests.time(0)

        init(_ limits: Machine.Limits = .init(), clients: Int = 2) {
            machine = Machine(info: WyomingInfo(), limits: limits)
            for client in 0..<clients { machine.opened(client, conversation: "own-\(client)", at: now) }
        }

        /// What follows of a message.
        mutating func receive(_ message: WyomingMessage, _ client: Int = 0) -> [Machine.Action] {
            var actions: [Machine.Action] = []
            machine.received(message, client, at: now, &actions)
            return actions
        }

        mutating func text(_ text: String, _ client: Int = 0, in conversation: String? = nil) -> [Machine.Action] {
            let context = conversation.map {
                [JSONValue.Member(name: "conversation_id", value: .string($0))]
            }
            return receive(.transcript(.init(text: text, language: "en", context: context ?? [])), client)
        }

        mutating func answer(_ number: Int, _ answer: Machine.Answer) -> [Machine.Action] {
            var actions: [Machine.Action] = []
            machine.answered(number, answer, at: now, &actions)
            return actions
        }
    }

    private static func said(_ actions: [Machine.Action]) -> Machine.Sentence? {
        for case .say(let sentence) in actions { return sentence }
        return nil
    }

    private static func code(_ actions: [Machine.Action]) -> String? {
        for case .send(_, .error(_, let code)) in actions { return code }
        return nil
    }

    @Test("A text is said, and the reply has its context with the conversation")
    func text() throws {
        var agent = Agent()
        #expect(agent.receive(.describe) == [.send(0, .info(WyomingInfo()))])
        #expect(agent.receive(.ping(text: "a")) == [.send(0, .pong(text: "a"))])
        let context: [JSONValue.Member] = [
            .init(name: "conversation_id", value: .string("c")), .init(name: "device_id", value: .string("d")),
        ]
        let sentence = try #require(
            Self.said(agent.receive(.transcript(.init(text: "help", language: "en", context: context)))))
        #expect(sentence.text == "help" && sentence.language == "en" && !sentence.endsQuestion)
        let handled = agent.answer(sentence.number, .handled("Yes."))
        #expect(handled == [.send(0, .handled(text: "Yes.", context: .object(context)))])
        let other = try #require(Self.said(agent.text("hm", 1)))
        let own = JSONValue.object([.init(name: "conversation_id", value: .string("own-1"))])
        #expect(
            agent.answer(other.number, .notHandled("What?")) == [.send(1, .notHandled(text: "What?", context: own))])
        let failed = try #require(Self.said(agent.text("hm", 1)))
        #expect(Self.code(agent.answer(failed.number, .failed(ApusError(.notAllowed)))) == "12004")
    }

    @Test("Texts of all clients are said one after the other; those of a client that is gone are not")
    func order() throws {
        var agent = Agent(clients: 3)
        let first = try #require(Self.said(agent.text("one", 0)))
        #expect(agent.text("two", 1).isEmpty && agent.text("three", 2).isEmpty && agent.machine.textCount == 3)
        agent.machine.closed(1)
        agent.machine.closed(0)
        let next = agent.answer(first.number, .handled("1"))
        #expect(next.count == 1 && Self.said(next)?.text == "three", "no reply goes to a client that is gone")
        #expect(agent.answer(first.number, .handled("1")).isEmpty, "an answer counts once")
    }

    @Test("A question is answered in its own conversation only")
    func questions() throws {
        var agent = Agent()
        func ends(_ actions: [Machine.Action]) throws -> Bool { try #require(Self.said(actions)).endsQuestion }
        let asked = try #require(Self.said(agent.text("unlock the front door", in: "a")))
        _ = agent.answer(asked.number, .asked("Shall I?"))
        // The same conversation goes on over another connection.
        #expect(try ends(agent.text("yes", 1, in: "a")) == false)
        _ = agent.answer(asked.number + 1, .asked("Really?"))
        #expect(try ends(agent.text("yes", 1, in: "b")) == true)
        _ = agent.answer(asked.number + 2, .handled("There is no question."))
        #expect(try ends(agent.text("help", 0)) == false)
        _ = agent.answer(asked.number + 3, .failed(ApusError(.linkLost)))
        #expect(try ends(agent.text("yes", 0)) == true, "what was lost may have been a question")
        _ = agent.answer(asked.number + 4, .asked("Shall I?"))
        #expect(try ends(agent.text("yes", 1)) == true, "without a name, a connection is a conversation")
    }

    @Test("Texts that are too long, too many or too late, and events of other servers, have their numbers")
    func bounds() throws {
        var limits = Machine.Limits()
        (limits.textsMax, limits.connectionTextsMax, limits.wrongEventsMax) = (3, 2, 2)
        var agent = Agent(limits)
        #expect(Self.code(agent.text(String(repeating: "a", count: 513))) == "10002")
        #expect(Self.code(agent.text("a", in: String(repeating: "a", count: 9000))) == "10002")
        let first = try #require(Self.said(agent.text("1", 0)))
        #expect(agent.text("2", 0).isEmpty)
        #expect(Self.code(agent.text("3", 0)) == "10007", "of this client")
        #expect(agent.text("4", 1).isEmpty)
        #expect(Self.code(agent.text("5", 1)) == "10007", "in all")
        var late: [Machine.Action] = []
        agent.machine.tick(at: agent.now + limits.answerTime, &late)
        #expect(late.count == 2 && Self.code(late) == "10005", "\(late)")
        #expect(agent.answer(first.number, .handled("1")).count == 1)

        for _ in 0..<2 { #expect(Self.code(agent.receive(.transcribe(.init()), 0)) == "10004") }
        #expect(agent.receive(.other(WyomingEvent(type: "recognize")), 0) == [.close(0)])
        agent.machine.closed(0)
        #expect(agent.text("1", 0).isEmpty, "a connection that is closed says nothing")
        var idle: [Machine.Action] = []
        agent.machine.tick(at: agent.now + limits.idleTime, &idle)
        #expect(idle.isEmpty, "its text was answered later")
        agent.machine.tick(at: agent.now + limits.answerTime + limits.idleTime, &idle)
        #expect(idle == [.close(1)])
    }

    @Test("An agent that ends answers what waits, and waits for what is being said")
    func stop() throws {
        var agent = Agent()
        let first = try #require(Self.said(agent.text("1", 0)))
        _ = agent.text("2", 1)
        var actions: [Machine.Action] = []
        agent.machine.stop(at: agent.now, &actions)
        #expect(Self.code(actions) == "10017" && actions.count == 1)
        #expect(Self.code(agent.text("3", 1)) == "10017")
        let last = agent.answer(first.number, .handled("1"))
        #expect(last.count == 2 && last.last == .end, "\(last)")
    }

    @Test(
        "In 100,000 random steps each text is answered once, and the bounds hold",
        arguments: 1...4 as ClosedRange<UInt64>)
    func random(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var limits = Machine.Limits()
        (limits.textsMax, limits.connectionTextsMax, limits.wrongEventsMax) = (6, 3, 4)
        var agent = Agent(limits, clients: 0)
        /// Of each client: its texts without an answer.
        var open: [Int: Int] = [:]
        var saying: Machine.Sentence?
        var lastClient = 0
        var (asked, answered) = (0, 0)
        func apply(_ actions: [Machine.Action]) {
            for action in actions {
                switch action {
                case .send(let client, .handled), .send(let client, .notHandled), .send(let client, .error):
                    #expect(open[client, default: 0] > 0, "an answer without a text")
                    open[client, default: 0] -= 1
                    answered += 1
                case .send: Issue.record("no other message is due")
                case .close(let client):
                    #expect(open[client] == 0, "a client with a text is not idle")
                    agent.machine.closed(client)
                    open[client] = nil
                case .say(let sentence):
                    #expect(saying == nil, "one text at a time")
                    saying = sentence
                case .end: Issue.record("nobody has stopped it")
                }
            }
        }
        for _ in 0..<25_000 {
            let client = open.keys.sorted().randomElement(using: &random)
            switch Int.random(in: 0..<10, using: &random) {
            case 0 where open.count < 8:
                lastClient += 1
                open[lastClient] = 0
                agent.machine.opened(lastClient, conversation: "own", at: agent.now)
            case 1:
                guard let client, Bool.random(using: &random) else { break }
                agent.machine.closed(client)
                open[client] = nil
            case 2...5:
                guard let client else { break }
                asked += 1
                open[client, default: 0] += 1
                apply(agent.text("a", client, in: Bool.random(using: &random) ? "c" : nil))
                #expect(open[client, default: 0] <= limits.connectionTextsMax)
            case 6:
                agent.now = agent.now + .seconds(Int64.random(in: 0..<20, using: &random))
                var actions: [Machine.Action] = []
                agent.machine.tick(at: agent.now, &actions)
                apply(actions)
            default:
                guard let sentence = saying else { break }
                saying = nil
                let kinds: [Machine.Answer] = [
                    .handled("1"), .asked("2"), .notHandled("3"), .failed(ApusError(.linkLost)),
                ]
                apply(agent.answer(sentence.number, kinds[Int.random(in: 0..<4, using: &random)]))
            }
            #expect(agent.machine.textCount <= limits.textsMax)
        }
        #expect(asked > 2000 && answered > 1000)
    }
}
