import ApusCluster
import ApusCore
import ApusWire
import Testing

@Suite("Machines that are too busy, and what the failure detector makes of it (D4)")
struct StarvationTests {
    private let a = node("a")
    private let b = node("b")
    private static let host: UInt64 = 77

    private func vitals(lateness: UInt16 = 0, host: UInt64 = Self.host) -> HeartbeatVitals {
        HeartbeatVitals(
            wallMilliseconds: 0, latenessMilliseconds: lateness,
            process: .init(host: host, number: 10, thread: 11, started: 12))
    }

    /// A detector on the machine 77 that heard its peer at 0 ms.
    private func detector(_ vitals: HeartbeatVitals) -> MembershipStateMachine {
        var machine = MembershipStateMachine(local: a, host: Self.host)
        _ = machine.handle(.membersChanged([b]), now: at(0))
        _ = machine.handle(.received(.heartbeat, from: b, vitals), now: at(0))
        return machine
    }

    /// Ticks every 10 ms and answers each inspection; the actions that are neither datagrams nor
    /// shares of votes.
    private func run(
        _ machine: inout MembershipStateMachine, from start: Int = 10, through end: Int,
        state: (Int) -> MembershipStateMachine.ProcessState
    ) -> [(at: Int, action: MembershipStateMachine.Action)] {
        var log: [(at: Int, action: MembershipStateMachine.Action)] = []
        for now in stride(from: start, through: end, by: 10) {
            for action in machine.handle(.tick, now: at(now)) {
                log.append((now, action))
                guard case .inspect(let peer, _) = action else { continue }
                log += machine.handle(.inspected(peer, state(now)), now: at(now)).map { (now, $0) }
            }
        }
        return log.filter { entry in
            switch entry.action {
            case .send, .half, .uncertain: false
            default: true
            }
        }
    }

    @Test("A peer of the same machine is looked at when it falls silent: one that is stopped is dead without a burst")
    func stopped() {
        var machine = detector(vitals())
        let log = run(&machine, through: 400) { _ in .stopped }
        #expect(log.map(\.action).contains(.inspect(b, vitals().process)))
        #expect(log.last?.action == .confirmedDead(b, .processStopped))
        #expect(log.last?.at == 210)
        #expect(machine.evidence(about: b, now: at(210))?.probeCount == 1)
    }

    @Test("One that is stopped while its burst is under way is looked at again at its end")
    func stoppedInTheBurst() {
        var machine = detector(vitals())
        let log = run(&machine, through: 400) { $0 < 230 ? .idle : .stopped }
        #expect(log.last?.action == .confirmedDead(b, .processStopped))
        #expect(log.last?.at == 270)
    }

    @Test("A process that is gone is certain: only a new link calls it back once its link is lost")
    func gone() {
        var machine = detector(vitals())
        #expect(run(&machine, through: 400) { _ in .gone }.last?.action == .confirmedDead(b, .processGone))
    }

    @Test("A peer that waits for a processor is not dead, and is alive again when it is heard")
    func waiting() {
        var machine = detector(vitals())
        let log = run(&machine, through: 900) { _ in .waiting }
        #expect(!log.map(\.action).contains(.confirmedDead(b, .silence)))
        #expect(machine.evidence(about: b, now: at(900))?.waitCount ?? 0 >= 9)
        #expect(machine.handle(.received(.heartbeat, from: b, vitals()), now: at(905)).contains(.recovered(b)))
    }

    @Test("It is waited for until its silence is a second long")
    func waitingTooLong() {
        var machine = detector(vitals())
        let log = run(&machine, through: 1500) { _ in .waiting }
        #expect(log.last?.action == .confirmedDead(b, .silence))
        #expect((1000...1070).contains(log.last?.at ?? 0))
    }

    @Test("One that waited and is then stopped is dead at the end of the burst under way")
    func waitingThenStopped() {
        var machine = detector(vitals())
        let log = run(&machine, through: 700) { $0 < 400 ? .waiting : .stopped }
        #expect(log.last?.action == .confirmedDead(b, .processStopped))
        #expect((400...460).contains(log.last?.at ?? 0))
    }

    @Test("An idle process is looked at twice, since its heartbeat may have come in between")
    func idle() {
        var machine = detector(vitals())
        var heard = detector(vitals())
        #expect(run(&machine, through: 400) { _ in .idle }.last?.at == 280)
        _ = run(&heard, through: 270) { _ in .idle }
        #expect(heard.handle(.received(.heartbeat, from: b, vitals()), now: at(275)).contains(.recovered(b)))
        #expect(run(&heard, from: 280, through: 400) { _ in .idle }.isEmpty)
    }

    @Test("A peer of another machine, and one that does not say where it runs, are not looked at", arguments: [0, 78])
    func elsewhere(host: UInt64) {
        var machine = detector(vitals(host: host))
        let log = run(&machine, through: 400) { _ in .waiting }
        #expect(log.last?.action == .confirmedDead(b, .silence) && log.last?.at == 270)
    }

    @Test(
        "The silence that counts grows with the peer's own lateness, by half a second at most",
        arguments: [(0, 210), (20, 210), (100, 310), (300, 510), (5000, 710)] as [(UInt16, Int)])
    func peerLateness(lateness: UInt16, suspectedAt: Int) {
        var machine = detector(vitals(lateness: lateness, host: 0))
        let log = run(&machine, through: 900) { _ in .idle }
        #expect(log.first?.action == .suspected(b, .silence))
        #expect(log.first?.at == suspectedAt)
    }

    @Test("It grows with the observer's own lateness too, for two seconds at most")
    func ownLateness() {
        var machine = detector(vitals(host: 0))
        _ = machine.handle(.tick, now: at(10))
        // 40 ms late: no reason yet to take anything back.
        _ = machine.handle(.tick, now: at(60))
        #expect(machine.lateness == .milliseconds(40) && machine.lateTickCount == 0)
        #expect(run(&machine, from: 70, through: 240) { _ in .idle }.isEmpty)
        #expect(run(&machine, from: 250, through: 250) { _ in .idle }.first?.action == .suspected(b, .silence))
        for now in stride(from: 260, through: 2600, by: 10) {
            _ = machine.handle(.received(.heartbeat, from: b, vitals(host: 0)), now: at(now))
            _ = machine.handle(.tick, now: at(now))
        }
        #expect(machine.lateness == .zero)
    }

    @Test("A machine that nobody ticked while it had no peers was not late")
    func alone() {
        var machine = MembershipStateMachine(local: a, host: Self.host)
        _ = machine.handle(.tick, now: at(0))
        _ = machine.handle(.membersChanged([b]), now: at(60_000))
        _ = machine.handle(.tick, now: at(60_005))
        #expect(machine.lateness == .zero && machine.lateTickCount == 0)
    }

    @Test("Evidence says what both sides measured")
    func evidence() {
        var machine = detector(vitals(lateness: 33))
        _ = run(&machine, through: 270) { _ in .stopped }
        let evidence = machine.evidence(about: b, now: at(270))
        #expect(evidence?.silence == .milliseconds(270) && evidence?.sinceDatagram == .milliseconds(270))
        #expect(evidence?.datagramCount == 1)
        #expect(evidence?.peerLateness == .milliseconds(33))
        #expect("\(evidence.map { "\($0)" } ?? "")".contains("its lateness 33 ms"))
        #expect("\(evidence.map { "\($0)" } ?? "")".contains("probes 1, asked "))
    }
}
