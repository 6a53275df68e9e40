import ApusCluster
import ApusCore
import Testing

private typealias Machine = EntityStateMachine<Int, String, String>

/// Runs a machine whose messages are names, and whose commits end when a test says so.
private struct Run {
    var machine: Machine
    /// What became of each message, in order.
    var said: [String] = []
    /// Messages that are carried out and have not ended.
    var running: [(request: Machine.Request, content: Int)] = []
    var commits: [Machine.State] = []
    var loads = 0
    var isOver = false
    /// Messages that end when a test says so.
    var slow: Set<String> = []

    init(isKept: Bool = true, callCountMax: Int = 16) {
        var configuration = Machine.Configuration(isKept: isKept, isSame: { $0 == $1 })
        configuration.callCountMax = callCountMax
        machine = Machine(initial: 0, configuration: configuration)
    }

    static func loaded(isKept: Bool = true, callCountMax: Int = 16) -> Run {
        var run = Run(isKept: isKept, callCountMax: callCountMax)
        run.send("get")
        run.perform(run.machine.loaded(nil))
        run.said = []
        run.loads = 0
        return run
    }

    static func id(_ number: UInt64) -> RequestID { RequestID(high: 0, low: number) }

    /// "add" adds one, "note" adds one that may be lost, "fail" fails, all else reads.
    mutating func send(_ name: String, id: UInt64? = nil) {
        perform(machine.came(Machine.Request(call: name, id: id.map(Self.id))))
    }

    mutating func end(_ request: Machine.Request, _ content: Int) {
        let isFailure = request.call.hasPrefix("fail")
        let isNote = request.call.hasPrefix("note")
        let new = isNote || request.call.hasPrefix("add") ? content + 1 : content
        perform(
            machine.ended(
                Machine.Result(
                    content: isFailure ? nil : new, answer: request.id == nil || isFailure ? nil : .reply([UInt8(new)]),
                    mayBeLost: isNote, ending: "\(request.call)=\(isFailure ? "error" : "\(new)")")))
    }

    mutating func perform(_ actions: [Machine.Action]) {
        for action in actions {
            switch action {
            case .load: loads += 1
            case .run(let request, let content):
                if slow.contains(request.call) { running.append((request, content)) } else { end(request, content) }
            case .commit(let state, _): commits.append(state)
            case .finish(let ending): said.append(ending)
            case .repeatAnswer(let call, .reply(let bytes)): said.append("\(call)=again \(bytes[0])")
            case .repeatAnswer(let call, let answer): said.append("\(call)=\(answer)")
            case .refuse(let call, let error): said.append("\(call)!\(error.code)")
            case .fail(let ending, let error): said.append("\(ending)!\(error.code)")
            case .leaveOpen(let ending, let error): said.append("\(ending)?\(error.code)")
            case .leave: isOver = true
            }
        }
    }

    mutating func committed(_ outcome: Machine.CommitOutcome = .confirmed) { perform(machine.committed(outcome)) }
}

@Suite("Entities whose state outlives them, decided (D15)")
struct EntityStateMachineTests {
    @Test("No message is carried out before the state was loaded, and then all in their order")
    func load() {
        var run = Run()
        run.send("get a")
        run.send("add b")
        run.send("get c")
        #expect(run.loads == 1)
        #expect(run.said.isEmpty && run.commits.isEmpty)
        run.perform(run.machine.loaded(Machine.State(content: 41, memory: RequestMemory())))
        #expect(run.said == ["get a=41"])
        #expect(run.commits.map(\.content) == [42])
        run.committed()
        #expect(run.said == ["get a=41", "add b=42", "get c=42"])
    }

    @Test("A state with changes that were never confirmed is written once more before anybody is answered")
    func unconfirmedLoad() {
        var memory = RequestMemory()
        memory.remember(Run.id(7), .reply([42]))
        var run = Run()
        run.send("get a")
        run.send("add b", id: 7)
        run.send("get c")
        run.perform(run.machine.loaded(Machine.State(content: 42, memory: memory), isConfirmed: false))
        #expect(run.said.isEmpty)
        #expect(run.commits.map(\.content) == [42])
        run.committed()
        #expect(run.said == ["get a=42", "add b=again 42", "get c=42"])
        #expect(run.commits.count == 1 && run.machine.isIdle)
    }

    @Test("Where such a state is lost, a repetition is not answered from it")
    func lostLoad() {
        var memory = RequestMemory()
        memory.remember(Run.id(7), .reply([42]))
        var run = Run()
        run.send("add b", id: 7)
        run.perform(run.machine.loaded(Machine.State(content: 42, memory: memory), isConfirmed: false))
        run.committed(.lost(ApusError(.moved)))
        #expect(run.said == ["add b!10009"])
        #expect(run.isOver)
    }

    @Test("A change that may be lost is answered at once, and is written with the next one that may not")
    func mayBeLost() {
        var run = Run.loaded()
        run.send("note a")
        run.send("get b")
        #expect(run.said == ["note a=1", "get b=1"])
        #expect(run.commits.isEmpty && run.machine.isIdle)
        run.send("add c")
        #expect(run.commits.map(\.content) == [2])
        run.send("note d")
        // It may have seen a change that is not confirmed.
        #expect(run.said.count == 2)
        run.committed()
        #expect(run.said == ["note a=1", "get b=1", "add c=2", "note d=3"])
        #expect(run.commits.count == 1)
    }

    @Test("A change that may be lost is written nevertheless if the message has an id, or has set a reminder")
    func mayNotBeLost() throws {
        var run = Run.loaded()
        run.send("note a", id: 7)
        #expect(run.said.isEmpty && run.commits.map(\.content) == [1])
        run.committed()
        #expect(run.said == ["note a=1"])

        run.slow = ["note b"]
        run.send("note b")
        let address = EntityAddress(kind: EntityKind(rawValue: 9), key: "b", shard: ShardID(key: "b"))
        let reminder = Reminder(entity: address, name: "later", id: Run.id(1), due: 5, payload: [])
        run.perform(
            run.machine.ended(
                Machine.Result(content: 2, reminders: [.set(reminder)], mayBeLost: true, ending: "note b=2")))
        #expect(run.said == ["note a=1"] && run.commits.map(\.content) == [1, 2])
        run.committed()
        #expect(run.said == ["note a=1", "note b=2"])
    }

    @Test("A state that cannot be read refuses what waits, and ends the activation")
    func loadFailed() {
        var run = Run()
        run.send("add a")
        run.send("add b")
        run.perform(run.machine.loadFailed(ApusError(.storageFailed)))
        #expect(run.said == ["add a!10021", "add b!10021"])
        #expect(run.isOver && run.machine.isOver && run.commits.isEmpty)
        run.send("get c")
        #expect(run.said.last == "get c!10009")
    }

    @Test("An answer leaves when its change is confirmed; so do those of all who may have seen the change")
    func answersFollowChanges() {
        var run = Run.loaded()
        run.send("get a")
        #expect(run.said == ["get a=0"])
        run.send("add b")
        run.send("get c")
        #expect(run.said == ["get a=0"])
        run.committed()
        #expect(run.said == ["get a=0", "add b=1", "get c=1"])
        #expect(run.machine.isIdle)
    }

    @Test("One commit is under way at a time; the next has all that happened meanwhile")
    func commitsGather() {
        var run = Run.loaded()
        for name in ["add a", "add b", "add c", "get d"] { run.send(name) }
        #expect(run.commits.map(\.content) == [1])
        run.committed()
        #expect(run.said == ["add a=1"])
        #expect(run.commits.map(\.content) == [1, 3])
        run.committed()
        #expect(run.said == ["add a=1", "add b=2", "add c=3", "get d=3"])
        #expect(run.commits.count == 2)
    }

    @Test("A message that fails changes nothing, and costs no commit")
    func failure() {
        var run = Run.loaded()
        run.send("fail a")
        #expect(run.said == ["fail a=error"])
        #expect(run.commits.isEmpty && run.machine.state.content == 0)
    }

    @Test("What is not kept is answered at once")
    func unkept() {
        var run = Run.loaded(isKept: false)
        run.send("add a")
        run.send("get b")
        #expect(run.said == ["add a=1", "get b=1"])
        #expect(run.commits.isEmpty)
    }

    @Test("A request with an id is carried out once; its repetition waits for the same confirmation")
    func repeated() {
        var run = Run.loaded()
        run.send("add a", id: 7)
        run.send("add again", id: 7)
        #expect(run.said.isEmpty)
        run.committed()
        #expect(run.said == ["add a=1", "add again=again 1"])
        run.send("add later", id: 7)
        #expect(run.said.last == "add later=again 1")
        #expect(run.machine.state.content == 1 && run.commits.count == 1)
        #expect(run.commits[0].memory.count == 1)
    }

    @Test("A request that failed may come again")
    func repeatedFailure() {
        var run = Run.loaded()
        run.send("fail a", id: 7)
        run.send("add a", id: 7)
        run.committed()
        #expect(run.said == ["fail a=error", "add a=1"])
    }

    @Test("While a message is carried out no other is, and the others follow in their order")
    func oneAtATime() {
        var run = Run.loaded()
        run.slow = ["add slow"]
        run.send("add slow", id: 1)
        run.send("add b")
        run.send("get c")
        run.send("add slow too", id: 1)
        #expect(run.said.isEmpty && run.machine.callCount == 4)
        let (request, content) = run.running.removeFirst()
        run.end(request, content)
        #expect(run.said.isEmpty && run.running.isEmpty)
        run.committed()
        #expect(run.said == ["add slow=1"])
        run.committed()
        #expect(run.said == ["add slow=1", "add b=2", "get c=2", "add slow too=again 1"])
        #expect(run.machine.state.content == 2 && run.machine.isIdle)
    }

    @Test("Where a request fails, its repetition that waited is carried out")
    func failedWithRepetition() {
        var run = Run.loaded()
        run.slow = ["fail slow"]
        run.send("fail slow", id: 1)
        run.send("add again", id: 1)
        let (request, content) = run.running.removeFirst()
        run.end(request, content)
        run.committed()
        #expect(run.said == ["fail slow=error", "add again=1"])
    }

    @Test("A commit that is not confirmed fails those who waited, and is made again before anybody sees its change")
    func unconfirmed() {
        var run = Run.loaded()
        run.send("add a")
        run.committed(.unconfirmed(ApusError(.deadlineExceeded)))
        #expect(run.said == ["add a=1?10005"])
        run.send("get b")
        #expect(run.said.count == 1)
        #expect(run.commits.map(\.content) == [1, 1])
        run.committed()
        #expect(run.said.last == "get b=1")
    }

    @Test("A lost commit ends the activation: who was not carried out may come again, the others may have been heard")
    func lost() {
        var run = Run.loaded()
        run.slow = ["add slow"]
        run.send("add a")
        run.send("add b")
        run.send("add slow")
        run.send("add waits")
        run.committed(.lost(ApusError(.linkLost)))
        #expect(run.said == ["add a=1!10008", "add b=2!10008", "add waits!10009"])
        #expect(run.isOver)
        let (request, content) = run.running.removeFirst()
        run.end(request, content)
        #expect(run.said.last == "add slow=3!10008")
        #expect(run.commits.count == 1)
    }

    @Test("A shard that leaves takes what was not committed with it; the commit under way still decides")
    func leave() {
        var run = Run.loaded()
        run.send("add a")
        run.send("add b")
        run.perform(run.machine.leave())
        #expect(run.said == ["add b=2!10008"])
        run.committed()
        #expect(run.said == ["add b=2!10008", "add a=1"])
        #expect(run.commits.count == 1)
    }

    @Test("Over the bound a message is refused, whatever the others wait for")
    func bound() {
        var run = Run.loaded(callCountMax: 3)
        run.send("add a")
        run.send("add b")
        run.send("get c")
        run.send("get d")
        #expect(run.said == ["get d!10007"])
        run.committed()
        run.committed()
        run.send("get e")
        #expect(run.said == ["get d!10007", "add a=1", "add b=2", "get c=2", "get e=2"])
    }

    @Test("Reminders are part of the state, and a message that only sets one is a change")
    func reminders() {
        var run = Run.loaded()
        let entity = EntityAddress(kind: .probe, key: "one")
        let first = Reminder(entity: entity, name: "ring", id: Run.id(1), due: 5)
        let second = Reminder(entity: entity, name: "ring", id: Run.id(2), due: 9)
        run.slow = ["get remind"]
        for changes in [[ReminderChange.set(first)], [.set(second), .delivered(first)], [.delivered(second)]] {
            run.send("get remind")
            let (_, content) = run.running.removeFirst()
            run.perform(run.machine.ended(Machine.Result(content: content, reminders: changes, ending: "done")))
            run.committed()
        }
        #expect(run.commits.map { $0.reminders.map(\.due) } == [[5], [9], []])
        #expect(run.said == ["done", "done", "done"])
    }

    @Test(
        "Whatever comes in whatever order: every message is answered once, and no answer is ahead of its change",
        arguments: 0..<400)
    func anyOrder(seed: Int) {
        var generator = SeededRandom(seed: UInt64(seed))
        var run = Run(callCountMax: 8)
        run.slow = ["add slow", "get slow", "fail slow"]
        var sent = 0
        var (confirmed, checkedCount, answeredMax) = (0, 0, 0)
        let kinds = ["add", "get", "fail", "add slow", "get slow", "fail slow"]
        for _ in 0..<200 {
            switch Int.random(in: 0..<10, using: &generator) {
            case 0..<5:
                let kind = kinds.randomElement(using: &generator) ?? "get"
                let id = Bool.random(using: &generator) ? UInt64.random(in: 0..<6, using: &generator) : nil
                sent += 1
                run.send(kind, id: id)
            case 5: run.perform(run.machine.loaded(Machine.State(content: 0, memory: RequestMemory())))
            case 6..<8:
                if let first = run.running.first {
                    run.running.removeFirst()
                    run.end(first.request, first.content)
                }
            default:
                guard let last = run.commits.last else { continue }
                let isConfirmed = Int.random(in: 0..<4, using: &generator) > 0
                if isConfirmed { confirmed = last.content }
                run.committed(isConfirmed ? .confirmed : .unconfirmed(ApusError(.deadlineExceeded)))
            }
            // No answer says more than what was confirmed, then or later.
            let added = run.said[checkedCount...]
            checkedCount = run.said.count
            for answer in added where !answer.contains("!") {
                guard let number = answer.split(whereSeparator: { $0 == "=" || $0 == " " }).last.flatMap({ Int($0) })
                else { continue }
                answeredMax = max(answeredMax, number)
            }
            #expect(answeredMax <= confirmed, "seed \(seed)")
        }
        run.perform(run.machine.loaded(Machine.State(content: 0, memory: RequestMemory())))
        for _ in 0..<1000 where !run.machine.isIdle {
            if let first = run.running.first {
                run.running.removeFirst()
                run.end(first.request, first.content)
            }
            run.committed()
        }
        #expect(run.machine.isIdle, "seed \(seed)")
        #expect(run.said.count == sent, "seed \(seed): every message has one end")
    }
}
