import ApusCluster
import ApusCore
import Testing

@Suite("Comparison of clocks (D4)")
struct ClockStateMachineTests {
    private let b = node("b")
    private let c = node("c")
    private let d = node("d")
    /// The own clock at 0 ms, in Unix milliseconds.
    private static let start: UInt64 = 1_800_000_000_000

    private func machine(_ peers: NodeID...) -> ClockStateMachine {
        var machine = ClockStateMachine(differenceMax: .seconds(2))
        machine.setPeers(peers)
        return machine
    }

    /// Heartbeats every 50 ms of peers whose clocks are ahead by so many milliseconds, each `delay` on its way.
    private func hear(
        _ machine: inout ClockStateMachine, _ offsets: [(NodeID, Int64)], from start: Int, through end: Int,
        own: Int64 = 0, delay: (Int) -> Int64 = { _ in 0 }
    ) {
        for now in stride(from: start, through: end, by: 50) {
            let truth = Int64(Self.start) + Int64(now)
            for (peer, offset) in offsets {
                machine.heard(
                    peer, clock: UInt64(truth + offset - delay(now)), wall: UInt64(truth + own), now: at(now))
            }
        }
    }

    @Test("Clocks that agree within 2 s are no difference")
    func agree() {
        var machine = machine(b, c)
        hear(&machine, [(b, 1900), (c, -1900)], from: 0, through: 1000)
        let report = machine.judge(now: at(1000))
        #expect(report.differing.isEmpty && report.adjustment == .zero)
        #expect(report.offsets.map(\.value) == [.milliseconds(1900), .milliseconds(-1900)])
    }

    @Test("Datagrams that wait up to ten seconds do not count as a difference while others come in time")
    func delay() {
        var machine = machine(b, c)
        hear(&machine, [(b, 0), (c, 0)], from: 0, through: 3000) { $0 % 500 == 0 ? 0 : 10_000 }
        #expect(machine.judge(now: at(3000)).differing.isEmpty)
    }

    @Test("One of two peers whose clock is wrong is named, and changes nothing here")
    func otherIsWrong() {
        var machine = machine(b, c)
        hear(&machine, [(b, 7_200_000), (c, 30)], from: 0, through: 1000)
        let report = machine.judge(now: at(1000))
        #expect(report.differing == [ClockStateMachine.Offset(peer: b, value: .seconds(7200))])
        #expect(!report.isAlone && report.adjustment == .zero)
    }

    @Test("A node whose own clock is wrong goes by the median of its cluster", arguments: [7_200_000, -7_200_000])
    func ownIsWrong(own: Int64) {
        var machine = machine(b, c)
        hear(&machine, [(b, 0), (c, 40)], from: 0, through: 1000, own: own)
        let report = machine.judge(now: at(1000))
        #expect(report.isAlone && report.differing.count == 2)
        #expect((report.adjustment - .milliseconds(-own)).milliseconds.magnitude <= 40)
    }

    @Test("Two nodes cannot say whose clock is wrong: it is reported, and nobody changes")
    func two() {
        var machine = machine(b)
        hear(&machine, [(b, 0)], from: 0, through: 1000, own: 7_200_000)
        let report = machine.judge(now: at(1000))
        #expect(report.differing.count == 1 && !report.isAlone && report.adjustment == .zero)
    }

    @Test("Of two pairs that differ, each goes by its own clock")
    func pairs() {
        var machine = machine(b, c, d)
        hear(&machine, [(b, 0), (c, 7_200_000), (d, 7_200_000)], from: 0, through: 1000)
        let report = machine.judge(now: at(1000))
        #expect(report.adjustment == .zero && report.differing.count == 2)
    }

    @Test("A clock that is set right is right within two seconds, and at once where it is the own one")
    func setRight() {
        var peers = machine(b, c)
        hear(&peers, [(b, 7_200_000), (c, 0)], from: 0, through: 1000)
        hear(&peers, [(b, 0), (c, 0)], from: 1050, through: 3000)
        #expect(peers.judge(now: at(3000)).differing.isEmpty)

        var own = machine(b, c)
        hear(&own, [(b, 0), (c, 0)], from: 0, through: 1000, own: 7_200_000)
        #expect(own.judge(now: at(1000)).adjustment != .zero)
        hear(&own, [(b, 0), (c, 0)], from: 1050, through: 1100)
        #expect(own.judge(now: at(1100)).adjustment == .zero)
    }

    @Test("A difference ends clearly below the bound, so that it does not come and go")
    func hysteresis() {
        var machine = machine(b)
        hear(&machine, [(b, 2010)], from: 0, through: 1000)
        #expect(machine.judge(now: at(1000)).differing.count == 1)
        hear(&machine, [(b, 1990)], from: 3000, through: 4000)
        #expect(machine.judge(now: at(4000)).differing.count == 1)
        hear(&machine, [(b, 1490)], from: 6000, through: 7000)
        #expect(machine.judge(now: at(7000)).differing.isEmpty)
    }

    @Test("A peer that is no longer heard, or no longer a member, does not count")
    func silent() {
        var machine = machine(b, c)
        hear(&machine, [(b, 7_200_000), (c, 7_200_000)], from: 0, through: 1000)
        hear(&machine, [(c, 7_200_000)], from: 1050, through: 5000)
        #expect(machine.judge(now: at(5000)).offsets.map(\.peer) == [c])
        machine.setPeers([b])
        #expect(machine.judge(now: at(5000)).offsets.isEmpty)
    }

    @Test("Any clock that a peer may send is borne", arguments: [0, 1, .max / 2, .max] as [UInt64])
    func extreme(clock: UInt64) {
        var machine = machine(b, c)
        for now in 0..<3 {
            machine.heard(b, clock: clock, wall: Self.start, now: at(now))
            machine.heard(c, clock: Self.start, wall: clock, now: at(now))
        }
        _ = machine.judge(now: at(10))
    }
}
