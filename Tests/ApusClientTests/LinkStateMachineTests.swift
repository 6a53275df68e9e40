import ApusClient
import ApusCore
import Testing

@Suite("Which door a client uses (D6, D7, IV-A5, IV-A7)")
struct LinkStateMachineTests {
    private static let doors = (1...3).map { HostPort(host: "door\($0)", port: 7443) }

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    private func machine() -> LinkStateMachine {
        LinkStateMachine(configuration: LinkStateMachine.Configuration(), doors: Self.doors, seed: 1)
    }

    private func online() -> LinkStateMachine {
        var machine = machine()
        #expect(machine.start(now: time(0)) == [.connect(1, Self.doors[0])])
        #expect(machine.welcomed(1, doors: Self.doors, now: time(5)) == [.activate(1), .report(.online)])
        machine.hasStreams = true
        return machine
    }

    @Test("An attempt that does not answer is joined by one at the next door, and the first welcome wins")
    func hedge() {
        var machine = machine()
        _ = machine.start(now: time(0))
        #expect(machine.tick(now: time(140)).isEmpty)
        #expect(machine.tick(now: time(150)) == [.connect(2, Self.doors[1])])
        #expect(machine.welcomed(2, doors: [], now: time(160)) == [.drop(1), .activate(2), .report(.online)])
        #expect(machine.welcomed(1, doors: [], now: time(161)) == [.drop(1)])
    }

    @Test("A lost connection is replaced at once at another door, without a word of offline")
    func lost() {
        var machine = online()
        let actions = machine.closed(1, error: nil, now: time(50))
        #expect(actions.count == 1)
        guard case .connect(2, _) = actions[0] else { return #expect(Bool(false), "\(actions)") }
        #expect(machine.welcomed(2, doors: [], now: time(60)) == [.activate(2)])
    }

    @Test("Silence opens a second door beside the first; signs of life from the first drop it again")
    func silence() {
        var machine = online()
        #expect(machine.tick(now: time(180)).isEmpty)
        let actions = machine.tick(now: time(186))
        guard case .connect(2, let door) = actions.first else { return #expect(Bool(false), "\(actions)") }
        #expect(door != Self.doors[0])
        machine.heard(1, now: time(190))
        #expect(machine.welcomed(2, doors: [], now: time(195)) == [.drop(2)])
        #expect(machine.activeID == 1)
    }

    @Test("A second door that answers while the first stays silent takes over")
    func takeOver() {
        var machine = online()
        _ = machine.tick(now: time(186))
        #expect(machine.welcomed(2, doors: [], now: time(195)) == [.drop(1), .activate(2)])
        #expect(machine.activeID == 2)
    }

    @Test("When every door failed, attempts wait, and the state is offline after the grace (IV-A7)")
    func offline() {
        var machine = online()
        _ = machine.closed(1, error: nil, now: time(100))
        for id in UInt64(2)...4 { _ = machine.closed(id, error: nil, now: time(100)) }
        #expect(machine.tick(now: time(110)).isEmpty)
        var reported = false
        var connects = 0
        for millisecond in stride(from: UInt64(120), to: 1200, by: 20) {
            for action in machine.tick(now: time(millisecond)) {
                if case .report(.offline) = action { reported = true }
                if case .connect(let id, _) = action {
                    connects += 1
                    _ = machine.closed(id, error: nil, now: time(millisecond))
                }
            }
        }
        #expect(reported)
        #expect((3...40).contains(connects))
    }

    @Test(
        "A token that is not taken and a session taken elsewhere end the link for good (IV-A5)",
        arguments: [
            (ErrorCode.tokenInvalid, LinkState.tokenFailed), (.tokenExpired, .tokenFailed), (.kicked, .kicked),
        ])
    func ends(code: ErrorCode, state: LinkState) {
        var machine = online()
        #expect(machine.closed(1, error: ApusError(code), now: time(50)).contains(.report(state)))
        #expect(machine.tick(now: time(10_000)).isEmpty)
        #expect(machine.activeID == nil)
    }

    @Test("Never more than three attempts at once, and doors that are learned are bounded (D13)")
    func bounds() {
        var machine = online()
        let many = (0..<100).map { HostPort(host: "d\($0)", port: 1) }
        _ = machine.closed(1, error: nil, now: time(10))
        _ = machine.welcomed(2, doors: many, now: time(20))
        #expect(machine.doors.count == 32)
        var open = 0
        _ = machine.closed(2, error: nil, now: time(30))
        for millisecond in stride(from: UInt64(40), to: 1500, by: 20) {
            for action in machine.tick(now: time(millisecond)) {
                if case .connect = action { open += 1 }
            }
        }
        #expect(open <= 2)
    }
}
