import ApusChannels
import ApusCore
import Testing

/// Turns of accounts and streams on a link between nodes (D13).
struct LinkTurnsTests {
    private let good = AccountID(rawValue: "good")
    private let evil = AccountID(rawValue: "evil")

    @Test("However many streams an account has and however large their frames are, another's wait for one of them")
    func accounts() {
        var turns = LinkTurns<Int>(quantum: 64 << 10)
        for stream in 1...60 { turns.wait(stream, of: evil) }
        turns.wait(0, of: good)
        var (goodCount, evilInARow, longest) = (0, 0, 0)
        for _ in 0..<2_000 {
            guard let (stream, account) = turns.next() else { break }
            if account == good {
                #expect(stream == 0)
                goodCount += 1
                evilInARow = 0
                turns.sent(2_000, of: account)
            } else {
                evilInARow += 1
                longest = max(longest, evilInARow)
                turns.sent(4 << 20, of: account)
            }
            turns.wait(stream, of: account)
        }
        #expect(longest == 1)
        // 64 KiB a round each: as many bytes of the one as of the other, as long as both have some.
        #expect(goodCount > 1_900, "\(goodCount)")
    }

    @Test("Streams of one account are served in the order in which they began to wait, each once")
    func streams() {
        var turns = LinkTurns<Int>()
        for stream in [3, 1, 2, 1, 3] { turns.wait(stream, of: good) }
        var served: [Int] = []
        while let (stream, account) = turns.next() {
            served.append(stream)
            turns.sent(100, of: account)
        }
        #expect(served == [3, 1, 2])
        #expect(turns.isEmpty)
    }

    @Test("An account that sent more than its part while others waited lets them go first; an idle link forgets it")
    func debts() {
        var turns = LinkTurns<Int>(quantum: 1_000)
        turns.wait(1, of: evil)
        turns.wait(2, of: good)
        #expect(turns.next()?.stream == 1)
        turns.sent(10_000, of: evil)
        turns.wait(1, of: evil)
        for _ in 0..<8 {
            #expect(turns.next()?.stream == 2)
            turns.sent(1_000, of: good)
            turns.wait(2, of: good)
        }
        while let (_, account) = turns.next() { turns.sent(10_000, of: account) }
        turns.wait(1, of: evil)
        turns.wait(2, of: good)
        #expect(turns.next()?.stream == 1)
    }

    @Test("A thousand accounts have one turn a round each")
    func fairness() {
        var turns = LinkTurns<Int>(quantum: 1_000)
        for stream in 0..<1_000 { turns.wait(stream, of: AccountID(rawValue: "a\(stream)")) }
        var sent = Array(repeating: 0, count: 1_000)
        for _ in 0..<10_000 {
            guard let (stream, account) = turns.next() else { break }
            let byteCount = 100 + stream
            sent[stream] += byteCount
            turns.sent(byteCount, of: account)
            turns.wait(stream, of: account)
        }
        let (least, most) = (sent.min() ?? 0, sent.max() ?? 0)
        #expect(least > 0 && most - least <= 3_000, "\(least) to \(most) bytes")
    }
}

/// What is on its way to another node (D13).
struct LinkWindowTests {
    private func says(_ total: UInt64, to window: inout LinkWindow) -> Bool { window.processed(total) }

    @Test("No more is sent than the window beyond what the other node has worked off")
    func bound() {
        var window = LinkWindow(byteCount: 1_000)
        #expect(says(0, to: &window))
        window.sent(999)
        #expect(window.hasRoom)
        window.sent(500)
        #expect(!window.hasRoom)
        #expect(says(499, to: &window))
        #expect(!window.hasRoom)
        #expect(says(500, to: &window))
        #expect(window.hasRoom)
        // Out of date.
        #expect(says(100, to: &window))
        #expect(window.hasRoom)
    }

    @Test("A node that says nothing has no window; one that worked off more than was sent is not believed")
    func others() {
        var window = LinkWindow(byteCount: 1_000)
        window.sent(1_000_000)
        #expect(window.hasRoom)
        #expect(!says(1_000_001, to: &window))
        #expect(!says(.max, to: &window))
        #expect(window.hasRoom)
        #expect(says(0, to: &window))
        #expect(!window.hasRoom)
    }
}
