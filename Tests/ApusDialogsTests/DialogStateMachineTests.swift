import ApusCore
import ApusDialogs
import SwiftProtobuf
import Testing

@Suite("The dialog of a device: its phases, and each sentence once (VA-6, VA-7, VA-9)")
struct DialogStateMachineTests {
    private static let step = DialogStep.with { ($0.entry, $0.kind, $0.path) = ("lamp", .write, "ProWritable.power") }

    private static func begin(
        _ number: UInt8, steps: Int = 1, choices: Int = 0, question: UInt64 = 0
    ) -> DialogBegin {
        .with {
            ($0.id, $0.text, $0.language, $0.question) = ("id-\(number)", "text", "en", question)
            $0.plan.steps = Array(repeating: Self.step, count: steps)
            if steps == 0 { ($0.plan.reply, $0.plan.outcome) = ("a reply", choices > 0 ? .asked : .done) }
            $0.plan.choices = Array(repeating: DialogChoice(), count: choices)
        }
    }

    private static func finish(_ number: UInt8, _ reply: String = "done") -> DialogFinish {
        .with {
            ($0.id, $0.reply, $0.outcome) = ("id-\(number)", reply, .done)
            $0.steps = [Self.step]
        }
    }

    private typealias Machine = DialogStateMachine

    @Test("A sentence goes through all phases, and is published with each change")
    func phases() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        let begun = machine.begin(Self.begin(1), at: 1000, &actions)
        #expect(begun.turn.endedMs == 0 && machine.state.phase == .thinking)
        let turn = machine.finish(Self.finish(1), at: 1100, &actions)
        #expect(turn.plan.reply == "done" && turn.endedMs == 1100 && machine.state.phase == .speaking)
        machine.advance(at: machine.state.deadlineMs, &actions)
        #expect(machine.state.phase == .idle)
        let phases = actions.flatMap { action in
            if case .publish(let changes) = action { changes.flatMap(\.phases) } else { [DialogPhase]() }
        }
        #expect(phases.prefix(5) == [.listening, .thinking, .speaking, .finished, .idle])
    }

    @Test("A repetition has the turn that there is, whatever it asks for")
    func repetitions() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        _ = machine.begin(Self.begin(1), at: 1000, &actions)
        actions = []
        let again = machine.begin(Self.begin(1, steps: 0), at: 1001, &actions)
        #expect(again.turn.plan.steps.count == 1 && actions.isEmpty)
        let first = machine.finish(Self.finish(1), at: 1100, &actions)
        let second = machine.finish(Self.finish(1, "another"), at: 1200, &actions)
        #expect(first == second)
    }

    @Test("A question is open until its time ends or the next sentence, and an older reading does not answer it")
    func questions() {
        let configuration = DialogConfiguration()
        var machine = Machine(restoring: DialogState(), configuration)
        var actions: [Machine.Action] = []
        _ = machine.begin(Self.begin(1, steps: 0, choices: 1), at: 1000, &actions)
        let number = machine.question(of: "", "", at: 1001)?.number ?? 0
        #expect(number > 0)
        #expect(machine.begin(Self.begin(2), at: 1002, &actions).isStale)
        #expect(machine.begin(Self.begin(2, question: number + 1), at: 1002, &actions).isStale)
        let end = 1000 + Int64(configuration.questionTime.milliseconds)
        #expect(machine.question(of: "", "", at: end - 1) != nil && machine.question(of: "", "", at: end) == nil)
        // A yes that comes too late was read with a question that is over.
        #expect(machine.begin(Self.begin(2, question: number), at: end, &actions).isStale)
        #expect(!machine.begin(Self.begin(2, question: number), at: end - 1, &actions).isStale)
        #expect(machine.question(of: "", "", at: end - 1) == nil)
    }

    @Test("A stop ends each phase, and what was asked of devices is noted with the sentence")
    func stops() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        _ = machine.begin(Self.begin(1), at: 1000, &actions)
        machine.stop(at: 1010, &actions)
        #expect(machine.state.phase == .idle && machine.state.turns.last?.plan.outcome == .interrupted)
        let turn = machine.finish(Self.finish(1), at: 1100, &actions)
        #expect(turn.plan.reply == "done" && turn.plan.outcome == .interrupted && machine.state.phase == .idle)
        // Words of a person who interrupts a reply are heard without a listening: a stop must be known from the state.
        #expect(machine.state.stops == 1)
        machine.stop(at: 1200, &actions)
        #expect(machine.state.stops == 2, "also while it is idle")
        machine.published(machine.state.unpublished.map(\.version))
        machine.advance(at: .max / 2, &actions)
        #expect(machine.state.turns.isEmpty && machine.state.stops == 2, "also after it was forgotten")
    }

    private static func listening(_ id: String) -> DialogListening {
        .with { ($0.id, $0.language) = (id, "en") }
    }

    private static func heard(_ number: UInt8, _ listening: String, choices: Int = 0) -> DialogBegin {
        var message = begin(number, steps: choices > 0 ? 0 : 1, choices: choices)
        message.heard = listening
        return message
    }

    @Test("A tap listens until a sentence comes, or its time ends politely; a repetition changes nothing (VA-7)")
    func taps() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        machine.listen(Self.listening("tap-1"), at: 1000, &actions)
        #expect(machine.state.phase == .listening && machine.state.deadlineMs == 16_000)
        let version = machine.state.version
        machine.listen(Self.listening("tap-1"), at: 2000, &actions)
        #expect(machine.state.version == version && machine.state.deadlineMs == 16_000)
        #expect(!machine.begin(Self.heard(1, "tap-1"), at: 3000, &actions).isOver)
        #expect(machine.state.phase == .thinking && machine.state.turns.last?.heard == "tap-1")
        // A tap while it thinks or speaks interrupts, and begins again.
        machine.listen(Self.listening("tap-2"), at: 4000, &actions)
        #expect(machine.state.phase == .listening && machine.state.turns.last?.plan.outcome == .interrupted)
        machine.listen(Self.listening("tap-3"), at: 5000, &actions)
        #expect(machine.state.listening.id == "tap-3" && machine.state.deadlineMs == 20_000)
        actions = []
        machine.advance(at: 20_000, &actions)
        #expect(machine.state.phase == .idle && !machine.state.hasListening)
        guard case .publish(let changes)? = actions.first else { Issue.record("nothing is published"); return }
        #expect(changes[0].turn.plan.reply == "Sorry, I did not hear anything." && changes[0].listening.id == "tap-3")
        #expect(changes[0].turn.plan.outcome == .nothingHeard && changes[0].phases == [.idle])
    }

    @Test("What was heard before a stop, a tap or a louder device is not carried out (VA-9)")
    func afterCancel() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        machine.listen(Self.listening("tap-1"), at: 1000, &actions)
        machine.stop(at: 1100, &actions)
        #expect(machine.state.phase == .idle && machine.begin(Self.heard(1, "tap-1"), at: 1200, &actions).isOver)
        machine.listen(Self.listening("tap-2"), at: 1300, &actions)
        machine.listen(Self.listening("tap-3"), at: 1400, &actions)
        #expect(machine.begin(Self.heard(2, "tap-2"), at: 1500, &actions).isOver)
        let isThirdFree = machine.yield("tap-3", at: 1600, &actions)
        #expect(isThirdFree && machine.state.phase == .idle)
        #expect(machine.begin(Self.heard(3, "tap-3"), at: 1700, &actions).isOver && machine.state.turns.isEmpty)
        // The yield comes before the message to listen.
        let isFourthFree = machine.yield("tap-4", at: 1800, &actions)
        #expect(isFourthFree)
        machine.listen(Self.listening("tap-4"), at: 1900, &actions)
        #expect(machine.state.phase == .idle)
        machine.listen(Self.listening("tap-5"), at: 2000, &actions)
        _ = machine.begin(Self.heard(4, "tap-5"), at: 2100, &actions)
        let isFifthFree = machine.yield("tap-5", at: 2200, &actions)
        #expect(!isFifthFree, "a sentence has begun")
    }

    @Test("After a question it listens again once the reply was given, and not before")
    func continues() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        func ask(_ number: UInt8, _ listening: String) {
            machine.listen(Self.listening(listening), at: 1000, &actions)
            var message = Self.heard(number, listening, choices: 1)
            message.question = machine.question(of: "", "", at: 1000)?.number ?? 0
            _ = machine.begin(message, at: 1000, &actions)
        }
        ask(1, "tap-1")
        // The time of the reply is over, and nobody says that it was given.
        machine.advance(at: machine.state.deadlineMs, &actions)
        #expect(machine.state.phase == .idle)
        ask(2, "tap-2")
        machine.spoken("id-1", at: 1100, &actions)
        #expect(machine.state.phase == .speaking, "another reply was given")
        actions = []
        machine.spoken("id-2", at: 1100, &actions)
        #expect(machine.state.phase == .listening && machine.state.listening.id == "id-2")
        guard case .publish(let changes)? = actions.first else { Issue.record("nothing is published"); return }
        #expect(changes[0].phases == [.finished, .idle, .listening])
        // A sentence that was typed has nobody at the device who would answer.
        var typed = Self.begin(3, steps: 0, choices: 1)
        typed.question = machine.question(of: "", "", at: 1200)?.number ?? 0
        machine.stop(at: 1150, &actions)
        typed.question = 0
        _ = machine.begin(typed, at: 1200, &actions)
        machine.spoken("id-3", at: 1300, &actions)
        #expect(machine.state.phase == .idle)
    }

    @Test("A reply that took longer to say than to read: the device listens to the answer all the same")
    func slowVoice() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        machine.listen(Self.listening("tap-1"), at: 1000, &actions)
        _ = machine.begin(Self.heard(1, "tap-1", choices: 1), at: 1000, &actions)
        let end = machine.state.deadlineMs
        machine.advance(at: end, &actions)
        #expect(machine.state.phase == .idle && machine.state.hasQuestion)
        machine.spoken("id-1", at: end + 1, &actions)
        #expect(machine.state.phase == .listening)
        machine.stop(at: end + 2, &actions)
        machine.spoken("id-1", at: end + 3, &actions)
        #expect(machine.state.phase == .idle, "the question was withdrawn")
    }

    @Test("Sound joins a listening, whose time begins again; after a stop, its repetition opens nothing (VA-9)")
    func joins() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        machine.listen(Self.listening("tap-1"), at: 1000, &actions)
        machine.listen(Self.listening("sound-1"), joins: true, at: 12_000, &actions)
        #expect(machine.state.listening.id == "tap-1" && machine.state.deadlineMs == 27_000)
        machine.stop(at: 13_000, &actions)
        machine.listen(Self.listening("sound-1"), joins: true, at: 13_100, &actions)
        #expect(machine.state.phase == .idle)
        machine.listen(Self.listening("sound-2"), joins: true, at: 13_200, &actions)
        #expect(machine.state.phase == .listening && machine.state.listening.id == "sound-2")
    }

    @Test("Without a tap it listens six times in a row at most")
    func bounded() {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        machine.listen(Self.listening("tap-1"), at: 1000, &actions)
        var count = 0
        while machine.state.phase == .listening, count < 20 {
            count += 1
            var message = Self.heard(UInt8(count), machine.state.listening.id, choices: 1)
            message.question = machine.question(of: "", "", at: 1000)?.number ?? 0
            _ = machine.begin(message, at: 1000, &actions)
            machine.spoken("id-\(count)", at: 1100, &actions)
        }
        #expect(count == 7 && machine.state.phase == .idle)
    }

    @Test("A sentence that nobody finishes ends in time, and is asked for again before")
    func deadlines() throws {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        let turn = machine.begin(Self.begin(1), at: 1000, &actions).turn
        actions = []
        machine.advance(at: try #require(machine.nextMs), &actions)
        #expect(actions.contains(.work(turn)))
        machine.advance(at: machine.state.deadlineMs, &actions)
        #expect(machine.state.phase == .speaking && machine.state.turns.last?.plan.outcome == .failed)
        actions = []
        machine.restored(at: 20_000, &actions)
        #expect(!actions.contains(.work(turn)))
    }

    @Test("The data of a former account is forgotten, and versions grow on")
    func accounts() throws {
        var machine = Machine(restoring: DialogState(), DialogConfiguration())
        var actions: [Machine.Action] = []
        try machine.enter(5)
        _ = machine.begin(Self.begin(1, steps: 0, choices: 1), at: 1000, &actions)
        let version = machine.state.version
        try machine.enter(6)
        #expect(
            machine.state.turns.isEmpty && machine.question(of: "", "", at: 1001) == nil
                && machine.state.phase == .unspecified)
        _ = machine.begin(Self.begin(2), at: 1000, &actions)
        #expect(machine.state.version > version)
        // A sentence of the former account that comes late.
        #expect(throws: ApusError.self) { try machine.enter(5) }
    }

    @Test("A million random steps show no illegal change, and no sentence twice", arguments: 0..<20 as Range<UInt64>)
    func randomWalk(seed: UInt64) {
        var walk = DialogWalk(seed: seed)
        for _ in 0..<50_000 { walk.step() }
        #expect(walk.violations.isEmpty, "seed \(seed): \(walk.violations.prefix(3))")
        #expect(walk.finishedCount > 1000 && walk.interruptedCount > 100 && walk.lateCount > 10)
        #expect(walk.overCount > 100 && walk.continuedCount > 3)
    }
}

/// A dialog with random events, and what was seen of it.
private struct DialogWalk {
    private var generator: SeededRandom
    private var machine = DialogStateMachine(restoring: DialogState(), DialogConfiguration())
    private var now: Int64 = 1_000
    private var phase = DialogPhase.unspecified
    private var version: UInt64 = 0
    private var nextID: UInt64 = 1
    /// The replies of sentences that have ended, by id.
    private var replies: [String: String] = [:]
    private(set) var violations: [String] = []
    private(set) var finishedCount = 0
    private(set) var interruptedCount = 0
    private(set) var lateCount = 0
    private(set) var overCount = 0
    private(set) var continuedCount = 0
    /// The listenings that have yielded without a sentence.
    private var over: Set<String> = []

    init(seed: UInt64) { generator = SeededRandom(seed: seed) }

    private static func id(_ number: UInt64) -> String { "id-\(number)" }

    mutating func step() {
        now += Int64.random(in: 0...800, using: &generator)
        var actions: [DialogStateMachine.Action] = []
        switch Int.random(in: 0..<124, using: &generator) {
        case 100..<106:
            nextID += 1
            let isNew = Int.random(in: 0..<4, using: &generator) > 0
            let known = isNew ? nil : machine.state.known.randomElement(using: &generator)
            let id = known ?? "tap-\(nextID)"
            let isKnown = machine.state.known.contains(id)
            machine.listen(DialogListening.with { ($0.id, $0.language) = (id, "en") }, at: now, &actions)
            if isKnown, !actions.isEmpty { violations.append("a repeated tap changes the dialog") }
            if !isKnown, machine.state.listening.id != id { violations.append("a tap is not heard") }
        case 106..<108: yield(&actions)
        case 108..<124:
            let before = machine.state
            let isLast = Int.random(in: 0..<8, using: &generator) > 0
            let id = (isLast ? before.turns.last : before.turns.randomElement(using: &generator))?.id ?? ""
            machine.spoken(id, at: now, &actions)
            // A slow voice ends after the time of a reader, while the question is open.
            let mayListen = before.phase == .speaking || (before.phase == .idle && before.hasQuestion)
            if machine.state.phase == .listening, before.phase != .listening, !mayListen {
                violations.append("it listens before the reply was given")
            }
            if machine.state.phase == .listening, before.phase != .listening { continuedCount += 1 }
        case 0..<30: begin(&actions)
        case 30..<60: finish(&actions)
        case 60..<68: machine.stop(at: now, &actions)
        case 68..<92:
            let times = [machine.nextMs, machine.state.deadlineMs, nil]
            if let time = times.randomElement(using: &generator) ?? nil, time > now { now = time }
            machine.advance(at: now, &actions)
        case 92..<96: machine.restored(at: now, &actions)
        case 96..<99: machine.published([version])
        default:
            try? machine.enter(machine.state.dataSinceMs + UInt64.random(in: 0...1, using: &generator))
        }
        check(actions)
    }

    private mutating func yield(_ actions: inout [DialogStateMachine.Action]) {
        let id = machine.state.known.randomElement(using: &generator) ?? "id-0"
        let hasBegun = machine.state.turns.contains { $0.heard == id }
        if machine.yield(id, at: now, &actions) == hasBegun { violations.append("a device yields after its sentence") }
        if machine.isListening(id) { violations.append("a device listens that has yielded") }
        over.insert(id)
    }

    private mutating func begin(_ actions: inout [DialogStateMachine.Action]) {
        let isNew = Int.random(in: 0..<4, using: &generator) > 0
        if isNew { nextID += 1 }
        let message = DialogBegin.with {
            ($0.id, $0.text, $0.language) = (Self.id(nextID), "text", "en")
            $0.question = machine.question(of: "", "", at: now)?.number ?? 0
            if Bool.random(using: &generator) {
                $0.plan.steps = [DialogStep()]
            } else {
                ($0.plan.reply, $0.plan.outcome) = ("reply \(nextID)", .done)
                if Bool.random(using: &generator) { $0.plan.choices = [DialogChoice()] }
            }
            switch Int.random(in: 0..<4, using: &generator) {
            case 0..<2: if machine.state.phase == .listening { $0.heard = machine.state.listening.id }
            case 2: $0.heard = machine.state.known.randomElement(using: &generator) ?? ""
            default: break
            }
        }
        let before = machine.state.turns.contains { $0.id == message.id }
        let isOver = !message.heard.isEmpty && !machine.isListening(message.heard)
        let begun = machine.begin(message, at: now, &actions)
        if begun.isOver {
            overCount += 1
            if !isOver || !actions.isEmpty { violations.append("a sentence that is heard is refused") }
            return
        }
        if !before, !begun.isStale, isOver || over.contains(message.heard) {
            violations.append("a sentence of a listening that is over begins")
        }
        if before, !actions.isEmpty { violations.append("a repetition changes the dialog") }
        if !before, begun.isStale { violations.append("a sentence with the open question is refused") }
    }

    private mutating func finish(_ actions: inout [DialogStateMachine.Action]) {
        let turns = machine.state.turns
        let isLast = Bool.random(using: &generator)
        guard let turn = isLast ? turns.last : turns.randomElement(using: &generator) else { return }
        let reply = "finished \(UInt64.random(in: 0..<1000, using: &generator))"
        let message = DialogFinish.with { ($0.id, $0.reply, $0.outcome) = (turn.id, reply, .done) }
        let answer = machine.finish(message, at: now, &actions)
        if answer.endedMs == 0 { violations.append("a finished sentence has no end") }
        if answer.plan.reply == reply, answer.plan.outcome == .done { finishedCount += 1 }
    }

    private mutating func check(_ actions: [DialogStateMachine.Action]) {
        for action in actions {
            switch action {
            case .work(let turn):
                if machine.state.phase != .thinking || machine.state.turns.last?.id != turn.id {
                    violations.append("a sentence is carried out that is over")
                }
            case .publish(let changes):
                for change in changes where change.version > version { follow(change) }
            }
        }
        if machine.state.phase != phase, !(machine.state.phase == .unspecified) {
            violations.append("the phase \(machine.state.phase) was not published after \(phase)")
        }
        // What was said is forgotten.
        if machine.state.phase == .unspecified { (phase, replies) = (.unspecified, [:]) }
        for turn in machine.state.turns where turn.endedMs != 0 && !turn.plan.reply.isEmpty {
            if let known = replies[turn.id], known != turn.plan.reply { violations.append("a reply has changed") }
            replies[turn.id] = turn.plan.reply
        }
        if machine.state.phase == .listening, machine.nextMs.map({ $0 > now + 15_000 }) ?? true {
            violations.append("it listens without an end in time")
        }
        if machine.state.hasListening != (machine.state.phase == .listening) || machine.state.known.count > 8 {
            violations.append("what is known of listenings is wrong")
        }
        if machine.state.phase == .thinking, machine.nextMs == nil {
            violations.append("a sentence has no end in time")
        }
        if machine.state.turns.count > 8 || machine.state.unpublished.count > 16 {
            violations.append("too much is kept")
        }
    }

    private mutating func follow(_ change: DialogChange) {
        if version > 0, change.version != version + 1 {
            violations.append("version \(change.version) after \(version)")
        }
        version = change.version
        for next in change.phases {
            if !DialogStateMachine.mayFollow(next, phase) { violations.append("\(next) after \(phase)") }
            phase = next
        }
        if change.turn.plan.outcome == .interrupted { interruptedCount += 1 }
        if change.turn.plan.outcome == .failed { lateCount += 1 }
    }
}
