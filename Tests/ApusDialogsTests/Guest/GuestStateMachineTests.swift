import ApusCore
import ApusDialogs
import ApusTestKit
import Testing

@Suite("The requests to a language model: shares, and the pause after failures (VA, docs/voice.md)")
struct GuestStateMachineTests {
    private static let start = MonotonicTime(nanoseconds: 1_000_000_000)
    private static let (anna, ben, carl) = (
        AccountID(unchecked: "anna"), AccountID(unchecked: "ben"), AccountID(unchecked: "carl")
    )

    /// A request that is asked and ends at once.
    private static func ask(
        _ machine: inout GuestStateMachine, _ account: AccountID, _ end: GuestStateMachine.End, at time: MonotonicTime
    ) -> GuestStateMachine.Admission {
        let admission = machine.admit(account, at: time)
        if admission == .ask { machine.ended(of: account, end, at: time) }
        return admission
    }

    @Test("An account has half of the places, and all accounts together have all of them")
    func shares() {
        var machine = GuestStateMachine(runningMax: 8)
        for _ in 0..<4 { #expect(machine.admit(Self.anna, at: Self.start) == .ask) }
        #expect(machine.admit(Self.anna, at: Self.start) == .full)
        for _ in 0..<4 { #expect(machine.admit(Self.ben, at: Self.start) == .ask) }
        #expect(machine.admit(Self.carl, at: Self.start) == .full && machine.runningCount == 8)
        machine.ended(of: Self.anna, .answered, at: Self.start)
        #expect(machine.admit(Self.carl, at: Self.start) == .ask)
        var single = GuestStateMachine(runningMax: 1)
        #expect(single.admit(Self.anna, at: Self.start) == .ask && single.admit(Self.anna, at: Self.start) == .full)
    }

    @Test("After five failures in a row the model is not asked for ten seconds, and one more failure pauses it again")
    func pause() {
        var machine = GuestStateMachine(runningMax: 8)
        for account in [Self.anna, Self.anna, Self.anna, Self.anna, Self.ben] {
            #expect(Self.ask(&machine, account, .failed, at: Self.start) == .ask)
        }
        let (before, after) = (Self.start + .milliseconds(9_999), Self.start + .seconds(10))
        #expect(Self.ask(&machine, Self.carl, .answered, at: before) == .paused)
        #expect(Self.ask(&machine, Self.carl, .failed, at: after) == .ask)
        #expect(Self.ask(&machine, Self.anna, .answered, at: after + .seconds(9)) == .paused)
        #expect(Self.ask(&machine, Self.anna, .answered, at: after + .seconds(10)) == .ask)
        #expect(Self.ask(&machine, Self.anna, .failed, at: after + .seconds(10)) == .ask)
        #expect(Self.ask(&machine, Self.anna, .failed, at: after + .seconds(10)) == .ask, "the row has begun again")
    }

    @Test("Failures with the sentences of one account pause that account only")
    func oneAccount() {
        var machine = GuestStateMachine(runningMax: 8)
        for _ in 0..<5 { #expect(Self.ask(&machine, Self.anna, .failed, at: Self.start) == .ask) }
        #expect(Self.ask(&machine, Self.anna, .failed, at: Self.start) == .paused)
        #expect(Self.ask(&machine, Self.ben, .abandoned, at: Self.start) == .ask)
        #expect(Self.ask(&machine, Self.ben, .failed, at: Self.start) == .ask)
        #expect(Self.ask(&machine, Self.ben, .failed, at: Self.start) == .paused)
    }

    @Test("What ends because the client's time is over is not a failure")
    func abandoned() {
        var machine = GuestStateMachine(runningMax: 2)
        for _ in 0..<20 { #expect(Self.ask(&machine, Self.anna, .abandoned, at: Self.start) == .ask) }
    }

    @Test("No random sequence takes more places than there are, keeps one, or pauses for longer", arguments: 0..<20)
    func random(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let runningMax = Int.random(in: 1...9, using: &random)
        var machine = GuestStateMachine(runningMax: runningMax)
        let accounts = (0..<4).map { AccountID(unchecked: "a\($0)") }
        var (running, now): ([AccountID], MonotonicTime) = ([], Self.start)
        var (row, lastFailure) = (0, Self.start)
        for _ in 0..<20_000 {
            now = now + .milliseconds(Int.random(in: 0...400, using: &random))
            if Bool.random(using: &random) {
                let account = accounts[Int.random(in: 0..<4, using: &random)]
                let own = running.count { $0 == account }
                switch machine.admit(account, at: now) {
                case .ask: running.append(account)
                case .full: #expect(running.count == runningMax || own == max(1, runningMax / 2))
                case .paused: #expect(row >= 5 && now < lastFailure + .seconds(10))
                }
                #expect(running.count { $0 == account } <= max(1, runningMax / 2) && running.count <= runningMax)
            } else if let index = running.indices.randomElement(using: &random) {
                let end: GuestStateMachine.End = [.answered, .failed, .failed, .failed, .abandoned][
                    Int.random(in: 0..<5, using: &random)]
                if end == .failed { (row, lastFailure) = (row + 1, now) }
                if end == .answered { row = 0 }
                machine.ended(of: running.remove(at: index), end, at: now)
            }
            #expect(machine.runningCount == running.count)
        }
    }
}
