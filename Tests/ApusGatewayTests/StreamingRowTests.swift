import ApusCore
import ApusGateway
import Testing

@Suite("The row of connections with streams (D7)")
struct StreamingRowTests {
    private final class Connection {
        let name: Int
        var slot: Int?
        var sent = MonotonicTime(nanoseconds: 0)
        init(_ name: Int) { self.name = name }
    }

    private func time(_ milliseconds: UInt64) -> MonotonicTime { MonotonicTime(nanoseconds: milliseconds * 1_000_000) }

    @Test("The last connection takes the slot and the time of the one that leaves")
    func moves() {
        var row = StreamingRow<Connection>()
        let connections = (0..<3).map { Connection($0) }
        #expect(connections.map { row.append($0, now: time(1)) } == [0, 1, 2])
        row.sent(2, now: time(50))
        #expect(row.remove(0) === connections[2])
        #expect(row.silent(for: .milliseconds(60), now: time(61)).map(\.name) == [1])
        #expect(row.silent(for: .milliseconds(60), now: time(110)).map(\.name) == [2, 1])
    }

    @Test("The last connection leaves without a move, and the row can be empty and fill again")
    func last() {
        var row = StreamingRow<Connection>()
        #expect(row.append(Connection(0), now: time(1)) == 0)
        #expect(row.remove(0) == nil)
        #expect(row.count == 0)
        #expect(row.silent(for: .zero, now: time(9)).isEmpty)
        #expect(row.append(Connection(1), now: time(1)) == 0)
    }

    @Test("Whoever comes and goes, each slot's time is its own connection's", arguments: 1...100)
    func property(seed: UInt64) {
        var random = seed &* 0x9e37_79b9_7f4a_7c15
        func next(_ bound: Int) -> Int {
            random ^= random << 13
            random ^= random >> 7
            random ^= random << 17
            return Int(random % UInt64(bound))
        }
        var row = StreamingRow<Connection>()
        let connections = (0..<12).map { Connection($0) }
        for step in 1...1000 {
            let now = time(UInt64(step))
            let one = connections[next(connections.count)]
            switch (next(3), one.slot) {
            case (0, let slot?):
                one.slot = nil
                row.remove(slot)?.slot = slot
            case (_, let slot?):
                one.sent = now
                row.sent(slot, now: now)
            case (_, nil):
                one.sent = now
                one.slot = row.append(one, now: now)
            }
            let streaming = connections.filter { $0.slot != nil }
            #expect(streaming.compactMap(\.slot).sorted() == Array(0..<row.count), "seed \(seed), step \(step)")
            let silent = row.silent(for: .milliseconds(10), now: now).map(\.name).sorted()
            let expected = streaming.filter { now - $0.sent >= .milliseconds(10) }.map(\.name)
            #expect(silent == expected, "seed \(seed), step \(step)")
        }
    }
}
