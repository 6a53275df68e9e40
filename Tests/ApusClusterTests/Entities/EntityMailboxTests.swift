import ApusCluster
import ApusCore
import Testing

@Suite("Whose turn it is at one entity (D15)")
struct EntityMailboxTests {
    @Test("One message at a time, in the order of arrival")
    func oneAtATime() {
        var mailbox = EntityMailbox<Int>(countMax: 10)
        #expect(mailbox.isIdle)
        #expect(mailbox.came(1) == .now)
        #expect(mailbox.came(2) == .later)
        #expect(mailbox.came(3) == .later)
        #expect(mailbox.ended() == 2)
        #expect(mailbox.came(4) == .later)
        #expect(mailbox.ended() == 3)
        #expect(mailbox.ended() == 4)
        #expect(mailbox.ended() == nil)
        #expect(mailbox.isIdle)
        #expect(mailbox.came(5) == .now)
    }

    @Test("A message that interleaves runs beside what runs, and holds nobody up")
    func interleaves() {
        var mailbox = EntityMailbox<Int>(countMax: 10)
        #expect(mailbox.came(1) == .now)
        #expect(mailbox.interleaved() == true)
        #expect(mailbox.ended() == nil)
        #expect(!mailbox.isIdle)
        #expect(mailbox.came(2) == .now)
        mailbox.interleavedEnded()
        #expect(mailbox.count == 1)
    }

    @Test("One over the bound is refused, of either kind, and there is room again when one ended")
    func bound() {
        var mailbox = EntityMailbox<Int>(countMax: 3)
        #expect(mailbox.came(1) == .now)
        #expect(mailbox.came(2) == .later)
        #expect(mailbox.interleaved() == true)
        #expect(mailbox.came(3) == .refused)
        #expect(mailbox.interleaved() == false)
        #expect(mailbox.ended() == 2)
        #expect(mailbox.came(3) == .later)
        #expect(mailbox.came(4) == .refused)
    }

    @Test("What waits when the entity leaves is given back in its order, and nothing runs after it")
    func leaves() {
        var mailbox = EntityMailbox<Int>(countMax: 10)
        for number in 1...4 { _ = mailbox.came(number) }
        #expect(Array(mailbox.takeWaiting()) == [2, 3, 4])
        #expect(mailbox.ended() == nil)
        #expect(mailbox.isIdle)
    }

    @Test(
        "Over any sequence each message runs once, none beside another, none before an earlier one", arguments: 0..<100)
    func any(seed: Int) {
        var random = SeededRandom(seed: UInt64(seed))
        var mailbox = EntityMailbox<Int>(countMax: 6)
        var (next, running, last, accepted, done) = (0, nil as Int?, -1, 0, 0)
        func run(_ message: Int) {
            #expect(running == nil)
            #expect(message > last)
            (running, last) = (message, message)
        }
        for _ in 0..<400 {
            if Bool.random(using: &random) {
                switch mailbox.came(next) {
                case .now:
                    accepted += 1
                    run(next)
                case .later: accepted += 1
                case .refused: #expect(mailbox.count == 6)
                }
                next += 1
            } else if running != nil {
                done += 1
                running = nil
                if let message = mailbox.ended() { run(message) }
            }
            #expect(mailbox.count == accepted - done)
        }
    }
}
