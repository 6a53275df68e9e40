import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Logging
import Testing

@Suite("Lines that clients can cause in the relay's log")
struct AllocationLineTests {
    @Test("A thousand allocations that begin and end write a hundred lines in a second, and how many were left out")
    func lines() throws {
        let lines = LogLines(from: .info)
        let relay = try RelayUnderTest(log: lines.logger)
        defer { relay.control.stop() }
        let client = relay.client()
        let start = MonotonicTime.now()
        for _ in 0..<1_000 {
            _ = try client.allocate()
            #expect(try client.code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        }
        let seconds = Int((MonotonicTime.now() - start).components.seconds) + 2
        func leftOut() -> Int {
            (lines.with("An allocation ended") + lines.with("Lines of a message were left out"))
                .compactMap { $0.facts["apus.left_out"].flatMap { Int("\($0)") } }.reduce(0, +)
        }
        func written() -> Int { lines.with("An allocation ended").count }
        for _ in 0..<100 where written() + leftOut() < 1_000 { pause(milliseconds: 50) }
        #expect(written() <= 100 * seconds && written() + leftOut() == 1_000)
    }
}
