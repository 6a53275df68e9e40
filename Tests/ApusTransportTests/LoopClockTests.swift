import ApusTransport
import ApusCore
import ApusTestKit
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("The clock of an event loop (D7)", .timeLimit(.minutes(1)))
struct LoopClockTests {
    private func withClock(_ body: (LoopClock) async throws -> Void) async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        do {
            try await body(try LoopClock(on: group.next()))
        } catch {
            try await group.shutdownGracefully()
            throw error
        }
        try await group.shutdownGracefully()
    }

    /// Sets, moves and takes back many deadlines at random, and checks which go off, when, and in which order.
    @Test("Whatever was moved or taken back, each deadline goes off once, in order, and none before its time")
    func order() async throws {
        try await withClock { clock in
            let log = Mutex<[(number: Int, due: MonotonicTime, at: MonotonicTime)]>([])
            let expected = try await clock.eventLoop.submit {
                var random = SystemRandomNumberGenerator()
                let start = MonotonicTime.now()
                let all = Deadlines(clock, count: 200) { number, due in
                    log.withLock { $0.append((number, due, .now())) }
                }
                for _ in 0..<2_000 {
                    let number = Int.random(in: 0..<200, using: &random)
                    if Bool.random(using: &random) {
                        all.set(number, start + .milliseconds(Int.random(in: 20...120, using: &random)))
                    } else {
                        all.clear(number)
                    }
                }
                return all.due
            }.get()
            let count = expected.count { $0 != nil }
            try await eventually("all went off") { log.withLock { $0.count == count } }
            try await Task.sleep(for: .milliseconds(50))
            let seen = log.withLock { $0 }
            #expect(seen.count == count)
            for entry in seen {
                #expect(entry.due == expected[entry.number])
                #expect(entry.at >= entry.due)
            }
            #expect(seen.map(\.due) == seen.map(\.due).sorted())
        }
    }

    @Test("A deadline set anew by its own going off, to a time that has passed, does not hold the loop up")
    func again() async throws {
        try await withClock { clock in
            let count = Mutex(0)
            let other = Mutex(false)
            try await clock.eventLoop.submit {
                let all = Deadlines(clock, count: 1) { _, _ in count.withLock { $0 += 1 } }
                all.repeats = true
                all.set(0, .now())
            }.get()
            try await eventually("it went off often") { count.withLock { $0 > 100 } }
            try await clock.eventLoop.submit { other.withLock { $0 = true } }.get()
            #expect(other.withLock { $0 })
        }
    }
}

/// Deadlines with what they were last set to; confined to the clock's event loop.
private final class Deadlines: @unchecked Sendable {  // SAFETY: confined to the event loop.
    private(set) var due: [MonotonicTime?]
    private var deadlines: [LoopDeadline] = []
    var repeats = false

    init(_ clock: LoopClock, count: Int, onDue: @escaping @Sendable (Int, MonotonicTime) -> Void) {
        due = Array(repeating: nil, count: count)
        deadlines = (0..<count).map { number in
            // Strong: the deadlines live as long as one of them is set.
            clock.deadline { [self] in
                onDue(number, due[number] ?? .zero)
                if repeats { set(number, .zero) }
            }
        }
    }

    func set(_ number: Int, _ time: MonotonicTime) {
        due[number] = time
        deadlines[number].set(time)
    }

    func clear(_ number: Int) {
        due[number] = nil
        deadlines[number].clear()
    }
}
