import ApusCore
import ApusDialogs
import SwiftProtobuf

/// A deliberate error of the dialog or of a node that carries out its sentences.
enum DialogMutant: String, CaseIterable, Sendable {
    case none
    /// A repetition gets a plan that is made again, for a home that may have changed.
    case plansAgain
    /// A step has a new id in each repetition.
    case newStepIDs
    /// A step begins before the dialog has taken the sentence.
    case actsFirst
    /// The next owner does not continue sentences.
    case forgetsSentences
    /// The next owner does not publish what its predecessor has not published.
    case forgetsChanges
    /// A confirmation is taken for a question that was asked after it was read.
    case confirmsAnything
    /// A late result replaces the reply.
    case repliesTwice
    /// A sentence that was heard before a stop or another tap is carried out.
    case actsAfterCancel
    /// The microphone opens again when the reply begins.
    case opensEarly
}

/// One dialog in a cluster that fails: its owner dies, messages are lost, doubled and late, clients repeat their
/// sentences, and several nodes carry out the same sentence.
///
/// Times are milliseconds of a virtual clock. A run is the same for the same seed.
struct DialogWorld {
    /// A change at the owner that the standby does not have yet.
    private struct Held {
        var state: DialogState
        var outputs: [Letter]
    }

    /// A node that carries out a sentence, by its number.
    private struct Worker {
        let sentence: Int
        /// It is at the owner's node, and dies with it.
        let isAtOwner: Bool
        var question: DialogQuestion?
        var turn: DialogTurn?
        var isOver = false
    }

    private struct Sentence {
        let id: String
        let text: String
        /// One: its client dies after the first attempt.
        let triesMax: Int
        /// The tap after which it is said; empty: it is typed.
        var heard = ""
        var tries = 0
        var reply: String?
    }

    private enum Letter {
        case say(Int)
        case look(worker: Int)
        case looked(worker: Int, DialogState)
        case begin(worker: Int, DialogBegin)
        case begun(worker: Int, DialogBegun)
        case step(worker: Int, id: String, target: String)
        case acted(worker: Int)
        case finish(worker: Int, DialogFinish)
        case finished(worker: Int, DialogTurn)
        /// The owner asks its node, which may have died.
        case work(DialogStateMachine.Action, incarnation: Int)
        case published([UInt64])
        case confirm(incarnation: Int)
        case wake
        case stop
        /// The device was tapped. It repeats the message.
        case tap(String)
        case heard(Int)
        case play(DialogTurn)
        case spoken(String)
        case kill
        case own
        case changeHome
    }

    private let mutant: DialogMutant
    private var random: SeededRandom
    private var now: Int64 = 1_000_000
    private var letters: [(at: Int64, number: Int, letter: Letter)] = []
    private var letterCount = 0
    private let loss: Double
    private let delayMax: Int64
    private let configuration = DialogConfiguration()

    private var state = DialogState()
    private var confirmed = DialogState()
    private var held: [Held] = []
    private var incarnation = 0
    private var isDown = false
    /// Deaths of the owner that are still to come, each just after a change.
    private var plannedDeaths = 0
    private var isRestored = false
    private var sentences: [Sentence] = []
    private var workers: [Worker] = []
    /// Where a lamp is: sentences that are read later name another device.
    private var home = 0
    /// What devices were asked to do: each id once, as their queues do.
    private var stepIDs: Set<String> = []
    private(set) var done: [String: [String]] = [:]
    private var published: [UInt64: DialogChange] = [:]
    /// The replies that the device has given completely.
    private var played: Set<String> = []
    private var playing: Set<String> = []
    private(set) var violations: [String] = []
    private(set) var counts = Counts()

    struct Counts {
        var replies = 0
        var repeated = 0
        var deaths = 0
        var lostChanges = 0
        var continued = 0
        var confirmations = 0
        var stale = 0
        var interrupted = 0
        var heard = 0
        var over = 0
        var opened = 0
    }

    init(seed: UInt64, mutant: DialogMutant = .none) {
        self.mutant = mutant
        random = SeededRandom(seed: seed)
        loss = [0, 0.05, 0.3][Int(random.next() % 3)]
        delayMax = [3, 30, 800][Int(random.next() % 3)]
        let texts = ["lamp", "lamp", "unlock", "yes", "time"]
        for index in 0..<Int(random.next() % 6 + 2) {
            let text = texts[Int(random.next() % UInt64(texts.count))]
            sentences.append(Sentence(id: "sentence-\(index)", text: text, triesMax: chance(0.2) ? 1 : 40))
            if chance(0.4) {
                sentences[index].heard = "tap-\(index)"
                later(number(1...6_000), .heard(index))
            } else {
                later(number(1...6_000), .say(index))
            }
        }
        for _ in 0..<Int(random.next() % 4) { later(number(1...8_000), .kill) }
        plannedDeaths = Int(random.next() % 4)
        if chance(0.3) { later(number(1...6_000), .stop) }
        for _ in 0..<Int(random.next() % 3) { later(number(1...6_000), .changeHome) }
    }

    // MARK: The run

    /// - Returns: what was violated.
    mutating func run() -> [String] {
        let end = now + 900_000
        while let next = letters.popLast(), violations.count < 5 {
            guard next.at < end else {
                violations.append("something continues for ever")
                break
            }
            now = max(now, next.at)
            take(next.letter)
        }
        checkEnd()
        return violations
    }

    private mutating func chance(_ share: Double) -> Bool { random.nextUnit() < share }

    private mutating func number(_ range: ClosedRange<Int64>) -> Int64 {
        range.lowerBound + Int64(random.next() % UInt64(range.upperBound - range.lowerBound + 1))
    }

    private mutating func later(_ delay: Int64, _ letter: Letter) {
        letterCount += 1
        let at = now + max(0, delay)
        let index = letters.lastIndex { $0.at > at }.map { $0 + 1 } ?? 0
        letters.insert((at, letterCount, letter), at: index)
    }

    /// Sends over the network.
    private mutating func send(_ letter: Letter) {
        for _ in 0..<(chance(0.1) ? 2 : 1) where !chance(loss) { later(number(1...delayMax), letter) }
    }

    private mutating func take(_ letter: Letter) {
        switch letter {
        case .say(let index): say(index)
        case .look(let worker): look(worker)
        case .looked(let worker, let seen): looked(worker, seen)
        case .begin(let worker, let message): begin(worker, message)
        case .begun(let worker, let answer): begun(worker, answer)
        case .step(let worker, let id, let target): act(worker, id, target)
        case .acted(let worker): acted(worker)
        case .finish(let worker, let message): finish(worker, message)
        case .finished(let worker, let turn): finished(worker, turn)
        case .work(let action, let number): if number == incarnation { work(action) }
        case .published(let versions):
            change { machine, _, _ in
                machine.published(versions); return nil
            }
        case .confirm(let number): if number == incarnation { confirm() }
        case .wake:
            guard !isDown, let next = machine.nextMs, now >= next else { return }
            change { machine, now, actions in
                machine.advance(at: now, &actions); return nil
            }
        case .stop:
            change { machine, now, actions in
                machine.stop(at: now, &actions); return nil
            }
        case .tap(let id):
            change { machine, now, actions in
                machine.listen(DialogListening.with { ($0.id, $0.language) = (id, "en") }, at: now, &actions)
                return nil
            }
        case .heard(let index):
            for delay in [Int64(0), 600, 1200] where delay == 0 || !chance(0.5) {
                for _ in 0..<(chance(0.1) ? 2 : 1) where !chance(loss) {
                    later(delay + number(1...delayMax), .tap(sentences[index].heard))
                }
            }
            later(number(50...3_000), .say(index))
        case .play(let turn):
            guard playing.insert(turn.id).inserted else { return }
            // It ends before the cluster expects it, or later, or the device dies while it plays.
            if !chance(0.1) { later(number(100...6_000), .spoken(turn.id)) }
        case .spoken(let id):
            played.insert(id)
            change { machine, now, actions in
                machine.spoken(id, at: now, &actions)
                return nil
            }
        case .kill: kill()
        case .own: own()
        case .changeHome: home += 1
        }
    }

    // MARK: The dialog

    private var machine: DialogStateMachine { DialogStateMachine(restoring: state, configuration) }

    /// - Parameter body: returns the answer.
    private mutating func change(
        _ body: (inout DialogStateMachine, Int64, inout [DialogStateMachine.Action]) -> Letter?
    ) {
        guard !isDown else { return }
        var (machine, actions) = (machine, [DialogStateMachine.Action]())
        if isRestored { machine.restored(at: now, &actions) }
        if isRestored, mutant == .forgetsChanges {
            machine.published(machine.state.unpublished.map(\.version))
            actions.removeAll { if case .publish = $0 { true } else { false } }
        }
        isRestored = false
        let before = machine.state
        let answer = body(&machine, now, &actions)
        if mutant == .opensEarly, machine.state.phase == .speaking, let turn = machine.state.turns.last {
            machine.spoken(turn.id, at: now, &actions)
        }
        if machine.state.continued > before.continued {
            counts.opened += 1
            if !played.contains(machine.state.listening.id) { violations.append("it hears its own reply") }
        }
        for turn in before.turns where !turn.plan.reply.isEmpty {
            guard let after = machine.state.turns.first(where: { $0.id == turn.id }) else { continue }
            if after.plan.reply != turn.plan.reply { violations.append("the reply to \(turn.id) has changed") }
        }
        state = machine.state
        held.append(
            Held(
                state: state, outputs: actions.map { .work($0, incarnation: incarnation) } + [answer].compactMap(\.self)
            ))
        later(number(1...4), .confirm(incarnation: incarnation))
        if plannedDeaths > 0, chance(0.1) {
            plannedDeaths -= 1
            later(number(0...6), .kill)
        }
        if let next = machine.nextMs { later(next - now, .wake) }
    }

    private mutating func confirm() {
        guard !isDown, !held.isEmpty else { return }
        let first = held.removeFirst()
        confirmed = first.state
        for output in first.outputs {
            if case .work = output { later(number(0...10), output) } else { send(output) }
        }
    }

    private mutating func kill() {
        guard !isDown else { return }
        (counts.deaths, isDown, incarnation) = (counts.deaths + 1, true, incarnation + 1)
        // The standby may have the newest changes, whose answers are lost.
        let kept = held.prefix(Int(random.next() % UInt64(held.count + 1)))
        counts.lostChanges += held.count - kept.count
        if let last = kept.last { confirmed = last.state }
        (state, held, isRestored) = (confirmed, [], true)
        for index in workers.indices where workers[index].isAtOwner { workers[index].isOver = true }
        later(number(50...400), .own)
    }

    private mutating func own() {
        isDown = false
        // The reminders of the shard.
        if let next = machine.nextMs { later(max(1, next - now), .wake) }
    }

    private mutating func work(_ action: DialogStateMachine.Action) {
        guard !isDown else { return }
        switch action {
        case .publish(let changes):
            for change in changes {
                if change.turn.plan.outcome == .failed { violations.append("\(change.turn.id) was not carried out") }
                if let known = published[change.version], known.turn.id != change.turn.id {
                    // The first one was published by an owner whose change was lost.
                    violations.append("version \(change.version) has two turns")
                }
                published[change.version] = change
                if change.phases.last == .speaking { send(.play(change.turn)) }
            }
            send(.published(changes.map(\.version)))
        case .work(let turn):
            guard mutant != .forgetsSentences, let index = sentences.firstIndex(where: { $0.id == turn.id }) else {
                return
            }
            counts.continued += 1
            workers.append(Worker(sentence: index, isAtOwner: true, turn: turn))
            carryOut(workers.count - 1, turn)
        }
    }

    // MARK: Clients and workers

    private mutating func say(_ index: Int) {
        guard sentences[index].reply == nil, sentences[index].tries < sentences[index].triesMax else { return }
        if sentences[index].tries > 0 { counts.repeated += 1 }
        sentences[index].tries += 1
        workers.append(Worker(sentence: index, isAtOwner: !isDown && chance(0.8)))
        send(.look(worker: workers.count - 1))
        later(600, .look(worker: workers.count - 1))
        later(2_000, .say(index))
    }

    private mutating func look(_ worker: Int) {
        guard !isDown, !workers[worker].isOver, workers[worker].turn == nil else { return }
        var seen = state
        if machine.question(of: "", "", at: now) == nil { seen.clearQuestion() }
        send(.looked(worker: worker, seen))
    }

    private mutating func looked(_ worker: Int, _ seen: DialogState) {
        guard !workers[worker].isOver else { return }
        let sentence = sentences[workers[worker].sentence]
        if let known = seen.turns.last(where: { $0.id == sentence.id }) {
            var turn = known
            if mutant == .plansAgain, turn.endedMs == 0 { turn.plan = plan(sentence.text, nil) }
            return carryOut(worker, turn)
        }
        let question = seen.hasQuestion ? seen.question : nil
        workers[worker].question = question
        let plan = plan(sentence.text, question)
        if mutant == .actsFirst, let step = plan.steps.first {
            later(1, .step(worker: worker, id: sentence.id, target: step.device))
        }
        let message = DialogBegin.with {
            ($0.id, $0.text, $0.language, $0.plan) = (sentence.id, sentence.text, "en", plan)
            ($0.question, $0.heard) = (question?.number ?? 0, sentence.heard)
        }
        send(.begin(worker: worker, message))
        later(700, .begin(worker: worker, message))
    }

    /// What a sentence means: a pure function of the text, the question and the home.
    private func plan(_ text: String, _ question: DialogQuestion?) -> DialogPlan {
        if text == "yes", let choice = question?.choices.first { return choice.plan }
        return .with {
            switch text {
            case "lamp": $0.steps = [.with { ($0.kind, $0.device) = (.write, "lamp-\(home)") }]
            case "unlock":
                ($0.reply, $0.outcome) = ("Shall I unlock door \(home)?", .asked)
                $0.choices = [
                    .with { $0.plan.steps = [.with { ($0.kind, $0.device) = (.act, "door-\(home)") }] }
                ]
            default: ($0.reply, $0.outcome) = ("It is \(text).", .done)
            }
        }
    }

    private mutating func begin(_ worker: Int, _ message: DialogBegin) {
        guard !isDown, !workers[worker].isOver else { return }
        let open = machine.question(of: "", "", at: now)?.number ?? 0
        let isNew = !state.turns.contains { $0.id == message.id }
        var message = message
        let read = message.question
        if mutant == .confirmsAnything { message.question = open }
        let isOver = !message.heard.isEmpty && !machine.isListening(message.heard)
        if mutant == .actsAfterCancel { message.heard = "" }
        var (isStale, isRefused) = (false, false)
        change { machine, now, actions in
            let answer = machine.begin(message, at: now, &actions)
            (isStale, isRefused) = (answer.isStale, answer.isOver)
            return .begun(worker: worker, answer)
        }
        if isNew, !isStale, isOver != isRefused { violations.append("what was heard before is carried out") }
        if isNew, !isStale, !isRefused, !message.heard.isEmpty { counts.heard += 1 }
        if isNew, !isStale, !isRefused, open != read, message.text == "yes" {
            violations.append("a confirmation is one of another question")
        }
    }

    private mutating func begun(_ worker: Int, _ answer: DialogBegun) {
        guard !workers[worker].isOver, workers[worker].turn == nil else { return }
        guard !answer.isStale else {
            counts.stale += 1
            return send(.look(worker: worker))
        }
        guard !answer.isOver else {
            counts.over += 1
            workers[worker].isOver = true
            return sentences[workers[worker].sentence].reply = "over"
        }
        if answer.turn.text == "yes", !answer.turn.plan.steps.isEmpty { counts.confirmations += 1 }
        carryOut(worker, answer.turn)
    }

    private mutating func carryOut(_ worker: Int, _ turn: DialogTurn) {
        workers[worker].turn = turn
        guard turn.endedMs == 0, let step = turn.plan.steps.first else { return finished(worker, turn) }
        let id = mutant == .newStepIDs ? "\(turn.id)/\(worker)" : turn.id
        later(number(1...delayMax), .step(worker: worker, id: id, target: step.device))
    }

    /// A device's queue takes an id once.
    private mutating func act(_ worker: Int, _ id: String, _ target: String) {
        guard !workers[worker].isOver else { return }
        if stepIDs.insert(id + "/" + target).inserted {
            done[sentences[workers[worker].sentence].id, default: []].append(target)
        }
        later(number(1...delayMax), .acted(worker: worker))
    }

    private mutating func acted(_ worker: Int) {
        guard !workers[worker].isOver, let turn = workers[worker].turn else { return }
        let message = DialogFinish.with {
            ($0.id, $0.outcome, $0.reply) = (turn.id, .done, "\(turn.plan.steps.first?.device ?? "") is done")
            $0.steps = turn.plan.steps
            if mutant == .repliesTwice { $0.reply += " by \(worker)" }
        }
        send(.finish(worker: worker, message))
        later(500, .finish(worker: worker, message))
    }

    private mutating func finish(_ worker: Int, _ message: DialogFinish) {
        guard !workers[worker].isOver else { return }
        let isReplacing = mutant == .repliesTwice
        change { machine, now, actions in
            if isReplacing, let turn = machine.state.turns.first(where: { $0.id == message.id }), turn.endedMs != 0 {
                return .finished(
                    worker: worker, .with { ($0.id, $0.plan.reply, $0.endedMs) = (message.id, message.reply, now) })
            }
            return .finished(worker: worker, machine.finish(message, at: now, &actions))
        }
    }

    private mutating func finished(_ worker: Int, _ turn: DialogTurn) {
        workers[worker].isOver = true
        let index = workers[worker].sentence
        if turn.plan.outcome == .interrupted { counts.interrupted += 1 }
        let reply = turn.plan.reply
        if let known = sentences[index].reply {
            // A repetition of the client was refused, although its sentence is carried out: its turn was lost.
            if known == "over" { return }
            if known != reply, !reply.isEmpty, !known.isEmpty { violations.append("\(turn.id) has two replies") }
            return
        }
        counts.replies += 1
        sentences[index].reply = reply
        if turn.plan.outcome == .done, !turn.plan.steps.isEmpty, done[turn.id] == nil {
            violations.append("\(turn.id) is said to be done")
        }
    }

    private mutating func checkEnd() {
        for (sentence, targets) in done where targets.count > 1 {
            violations.append("\(sentence) was carried out as \(targets)")
        }
        if state.phase != .idle, state.phase != .unspecified { violations.append("the dialog stays in \(state.phase)") }
        if !state.unpublished.isEmpty { violations.append("changes were never published") }
        for sentence in sentences where sentence.triesMax > 1 && sentence.reply == nil {
            violations.append("\(sentence.id) has no reply")
        }
        checkPublished()
    }

    private mutating func checkPublished() {
        var phase = DialogPhase.unspecified
        var last: DialogChange?
        for change in published.values.sorted(by: { $0.version < $1.version }) {
            if let last, change.previousVersion != last.version {
                violations.append("after version \(last.version) comes \(change.version)")
            }
            for next in change.phases {
                if !DialogStateMachine.mayFollow(next, phase) { violations.append("\(next) after \(phase)") }
                phase = next
            }
            last = change
        }
        if let last, last.version != state.version { violations.append("version \(state.version) was not published") }
    }
}
