import ApusCore
import ApusDialogs
import Testing

@Suite("Several devices of a room that hear one person: the loudest one listens (VA-8)")
struct ArbitrationStateMachineTests {
    private typealias Machine = ArbitrationStateMachine

    private static func wake(_ device: String, _ level: Int32, endedMs: Int64 = 1000, energy: Int32 = 0) -> Machine.Wake
    {
        Machine.Wake(
            device: device, id: "wake-\(device)-\(endedMs)", signalToNoise: level, energy: energy, endedMs: endedMs)
    }

    @Test("The loudest one of the window wins, and the others lose to it")
    func loudest() {
        var machine = Machine(windowMs: 150)
        let (quiet, loud, late) = (Self.wake("a", 500), Self.wake("b", 1200), Self.wake("c", 900))
        #expect(machine.heard(quiet, others: ["b", "c", "d"], at: 1100) == .waits(untilMs: 1250))
        #expect(machine.heard(loud, others: [], at: 1150) == .waits(untilMs: 1250))
        #expect(machine.heard(late, others: [], at: 1249) == .waits(untilMs: 1250))
        #expect(machine.answer(to: quiet.id, at: 1250) == .loses(to: loud))
        #expect(machine.answer(to: loud.id, at: 1250) == .wins)
        #expect(machine.answer(to: late.id, at: 1300) == .loses(to: loud))
        // A message that comes twice.
        #expect(machine.heard(loud, others: ["b"], at: 1400) == .wins)
        #expect(machine.heard(quiet, others: ["b"], at: 1400) == .loses(to: loud))
    }

    @Test("A device that is alone wins at once, and so does the loudest one when all have come")
    func atOnce() {
        var machine = Machine(windowMs: 150)
        #expect(machine.heard(Self.wake("a", 500), others: [], at: 1010) == .wins)
        var room = Machine(windowMs: 150)
        #expect(room.heard(Self.wake("a", 500), others: ["b"], at: 1010) == .waits(untilMs: 1160))
        #expect(room.heard(Self.wake("b", 900), others: ["a"], at: 1030) == .wins)
        #expect(room.answer(to: "wake-a-1000", at: 1031) == .loses(to: Self.wake("b", 900)))
    }

    @Test(
        "Devices that are equally loud have a stable order",
        arguments: [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]])
    func ties(order: [String]) {
        var machine = Machine(windowMs: 150)
        for device in order { _ = machine.heard(Self.wake(device, 700), others: ["a", "b", "c", "d"], at: 1010) }
        #expect(machine.answer(to: "wake-a-1000", at: 1160) == .wins)
        var energy = Machine(windowMs: 150)
        _ = energy.heard(Self.wake("a", 700, energy: 10), others: ["b", "c"], at: 1010)
        _ = energy.heard(Self.wake("b", 700, energy: 20), others: [], at: 1010)
        #expect(energy.answer(to: "wake-b-1000", at: 1160) == .wins)
    }

    @Test("A louder device that is late listens if the winner yields, and not if a sentence has begun there")
    func revisions() {
        for isFree in [true, false] {
            var machine = Machine(windowMs: 150)
            let (first, late) = (Self.wake("a", 500), Self.wake("b", 900))
            #expect(machine.heard(first, others: [], at: 1010) == .wins)
            #expect(machine.heard(Self.wake("c", 590), others: [], at: 1200) == .loses(to: first), "not clearly louder")
            #expect(machine.heard(late, others: [], at: 1500) == .revises(first))
            #expect(machine.answer(to: first.id, at: 1510) == .wins, "until it has yielded")
            #expect(machine.revised(late.id, isFree: isFree, at: 1520) == (isFree ? .wins : .loses(to: first)))
            #expect(machine.answer(to: first.id, at: 1530) == (isFree ? .loses(to: late) : .wins))
            // After a sentence nothing is revised any more.
            let third = Self.wake("d", 1900)
            #expect(machine.heard(third, others: [], at: 1600) == (isFree ? .revises(late) : .loses(to: first)))
        }
        var slow = Machine(windowMs: 150)
        _ = slow.heard(Self.wake("a", 500), others: ["b"], at: 1010)
        #expect(slow.heard(Self.wake("b", 900), others: [], at: 2161) == .wins, "too late: a phrase of its own")
    }

    @Test("Whoever asks for a revision may die: the winner keeps its place")
    func lostRevision() {
        var machine = Machine(windowMs: 150)
        _ = machine.heard(Self.wake("a", 500), others: [], at: 1010)
        _ = machine.heard(Self.wake("b", 900), others: [], at: 1200)
        #expect(machine.heard(Self.wake("c", 950), others: [], at: 1300) == .waits(untilMs: 1700))
        #expect(machine.answer(to: "wake-c-1000", at: 1700) == .loses(to: Self.wake("a", 500)))
        #expect(machine.revised("wake-b-1000", isFree: true, at: 1710) == .loses(to: Self.wake("a", 500)))
    }

    @Test("A tap wins at once, also over the device that has won")
    func taps() {
        var machine = Machine(windowMs: 150)
        #expect(machine.tapped(Self.wake("a", 0), at: 1000) == nil)
        #expect(machine.heard(Self.wake("b", 3000), others: [], at: 1100) == .loses(to: Self.wake("a", 0)))
        var decided = Machine(windowMs: 150)
        _ = decided.heard(Self.wake("b", 3000), others: [], at: 1100)
        #expect(decided.tapped(Self.wake("a", 0), at: 1200) == Self.wake("b", 3000))
        #expect(decided.heard(Self.wake("c", 9000), others: [], at: 1250) == .loses(to: Self.wake("a", 0)))
    }

    @Test("The winner of another phrase takes the place of the one before")
    func nextPhrase() {
        var machine = Machine(windowMs: 150)
        let (first, second) = (Self.wake("a", 500), Self.wake("b", 400, endedMs: 3000))
        #expect(machine.heard(first, others: [], at: 1010) == .wins && machine.earlier(than: first.id) == nil)
        #expect(machine.heard(second, others: [], at: 3010) == .wins && machine.earlier(than: second.id) == first)
        let again = Self.wake("b", 400, endedMs: 5000)
        #expect(machine.heard(again, others: [], at: 5010) == .wins && machine.earlier(than: again.id) == nil)
        #expect(machine.tapped(Self.wake("c", 0, endedMs: 7000), at: 7000) == again)
    }

    @Test("Another phrase is another round, and rounds and devices are bounded")
    func bounds() {
        var machine = Machine(windowMs: 150)
        for number in 0..<20 {
            let ended = Int64(number) * 2000
            #expect(machine.heard(Self.wake("a", 500, endedMs: ended), others: [], at: ended + 10) == .wins)
        }
        #expect(machine.answer(to: "wake-a-0", at: 40_000) == .unknown)
        var full = Machine(windowMs: 150)
        for number in 0..<100 { _ = full.heard(Self.wake("d\(number)", Int32(number)), others: ["x"], at: 1010) }
        #expect(full.answer(to: "wake-d31-1000", at: 1200) == .wins)
    }

    @Test(
        "Random rounds have one winner at a time, and it changes only by yielding", arguments: 0..<20 as Range<UInt64>)
    func randomWalk(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = Machine(windowMs: 150)
        var now: Int64 = 10_000
        var known: [Machine.Wake] = []
        for _ in 0..<20_000 {
            now += Int64.random(in: 0...120, using: &random)
            known.removeAll { now - $0.endedMs > 1_500 }
            switch Int.random(in: 0..<10, using: &random) {
            case 0..<4:
                let device = "device-\(UInt8.random(in: 0..<6, using: &random))"
                guard !known.contains(where: { $0.device == device }) else { continue }
                let wake = Machine.Wake(
                    device: device, id: "\(device)/\(now)", signalToNoise: .random(in: 0...3000, using: &random),
                    energy: 0, endedMs: now - Int64.random(in: 0...300, using: &random))
                known.append(wake)
                _ = machine.heard(wake, others: Bool.random(using: &random) ? [] : ["device-0"], at: now)
            case 4..<6:
                if let wake = known.randomElement(using: &random) {
                    _ = machine.revised(wake.id, isFree: Bool.random(using: &random), at: now)
                }
            default: break
            }
            for wake in known {
                switch machine.answer(to: wake.id, at: now) {
                case .loses(let winner): #expect(winner.device != wake.device && winner.id != wake.id)
                case .waits(let until): #expect(until > now && until <= now + 500, "it waits for ever")
                case .revises(let winner): #expect(machine.answer(to: winner.id, at: now) == .wins)
                case .wins, .unknown: break
                }
            }
        }
    }
}
