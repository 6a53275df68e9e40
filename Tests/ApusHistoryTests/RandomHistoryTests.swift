import ApusCore
import ApusHistory
import Testing

@Suite("Random histories of right and wrong registers")
struct RandomHistoryTests {
    private let checker = LinearizabilityChecker()

    @Test("Every history of real registers is linearizable, at any concurrency and share of unknown outcomes")
    func right() {
        for seed in 0..<300 as Range<UInt64> {
            var options = RegisterSimulation.Options()
            options.clients = 1 + Int(seed % 9)
            options.unknownShare = Double(seed % 4) * 0.15
            let operations = RegisterSimulation.run(seed: seed, options: options)
            #expect(checker.check(operations) == .linearizable, "seed \(seed)")
        }
    }

    @Test(
        "Histories of wrong registers are found to be wrong",
        arguments: [
            (RegisterSimulation.Fault.staleReads, 99), (.lostChanges, 75), (.splitBrain, 99), (.repeatedChanges, 90),
        ])
    func wrong(fault: RegisterSimulation.Fault, foundMin: Int) {
        var options = RegisterSimulation.Options()
        (options.fault, options.faultShare) = (fault, 0.2)
        var found = 0
        for seed in 0..<100 as Range<UInt64> {
            let operations = RegisterSimulation.run(seed: seed, options: options)
            guard let violation = checker.violation(operations) else { continue }
            found += 1
            #expect(violation.isMinimal && violation.operations.count <= 12, "seed \(seed): \(violation)")
            #expect(checker.violation(violation.operations) != nil, "seed \(seed): what is shown is no violation")
        }
        #expect(found >= foundMin, "\(fault) was found in \(found) of 100 histories")
    }

    @Test("The verdict on short histories is that of every order, also with equal values and touching times")
    func definition() {
        var random = SeededRandom(seed: 14)
        var counts = (right: 0, wrong: 0)
        for number in 0..<20_000 {
            let operations = Self.short(&random)
            let isRight = EveryOrder.isLinearizable(operations)
            if isRight { counts.right += 1 } else { counts.wrong += 1 }
            let verdict = checker.check(operations)
            guard isRight else {
                guard case .violation(let violation) = verdict else {
                    Issue.record("history \(number) is wrong, and the verdict is \(verdict): \(operations)")
                    return
                }
                if EveryOrder.isLinearizable(violation.operations) {
                    Issue.record("history \(number): what is shown is no violation: \(violation)")
                    return
                }
                continue
            }
            if verdict != .linearizable {
                Issue.record("history \(number) is right, and the verdict is \(verdict)")
                return
            }
        }
        #expect(counts.right > 3_000 && counts.wrong > 3_000, "\(counts)")
    }

    /// Up to seven operations of few values within a short time.
    private static func short(_ random: inout SeededRandom) -> [RegisterOperation] {
        func number(_ count: UInt64) -> UInt64 { random.next() % count }
        let values = 1 + number(5)
        // Half of the histories have distinct values.
        let isDistinct = number(2) == 0
        var written: UInt64 = 0
        func new() -> UInt64 {
            written += 1
            return isDistinct ? written : number(values)
        }
        return (0..<(1 + Int(number(7)))).map { client in
            let (start, length) = (number(12), number(6))
            var operation = RegisterOperation(
                client: client, entity: "r", request: .read, invokedAt: .milliseconds(start))
            switch number(3) {
            case 0: operation.outcome = .value(number(values))
            case 1:
                operation.request = .write(new())
                operation.outcome = .ok
            default:
                operation.request = .compareAndSwap(expected: number(values), new: new())
                operation.outcome = number(3) == 0 ? .mismatch(number(values)) : .ok
            }
            switch number(8) {
            case 0, 1: operation.outcome = .unknown
            case 2 where number(4) == 0: operation.outcome = .failed
            default: break
            }
            if operation.outcome != .unknown { operation.returnedAt = .milliseconds(start + length) }
            return operation
        }
    }

    // MARK: Limits

    @Test("8 clients with 2000 operations each are checked within a second, right or wrong at the end")
    func large() throws {
        var options = RegisterSimulation.Options()
        options.clients = 8
        options.operationsPerClient = 2_000
        options.entities = 1
        var operations = RegisterSimulation.run(seed: 1, options: options)
        try #require(operations.count == 16_001)
        var start = MonotonicTime.usedByThisThread()
        #expect(checker.check(operations) == .linearizable)
        Self.expectFast(since: start)
        // The last read finds an old value instead.
        operations[operations.count - 1].outcome = .value(1)
        start = MonotonicTime.usedByThisThread()
        let violation = try #require(checker.violation(operations))
        Self.expectFast(since: start)
        #expect(violation.isMinimal && violation.operations.count <= 4, "\(violation)")
    }

    /// In time of the processor, of which tests beside this one take some. Builds without optimization take longer.
    private static func expectFast(since start: Duration) {
        let span = MonotonicTime.usedByThisThread() - start
        #if DEBUG
        #expect(span < .seconds(20))
        #else
        #expect(span < .seconds(1))
        #endif
    }

    @Test("A history whose search is too long is undecided, and the limit is kept")
    func undecided() {
        // Thirty writes of two values at once, before a read of another value: each set of them is a configuration.
        var history = HandWritten()
        for client in 0..<30 { history.add(client, 0, 10, .write(UInt64(client % 2 + 1)), .ok) }
        history.add(20, 20, 21, .read, .value(99))
        #expect(
            LinearizabilityChecker(configurationCountMax: 1_000).check(history.operations)
                == .undecided(entity: "r", configurationCountMax: 1_000))
        // A violation of another register is reported all the same.
        history.add(20, 30, 31, .read, .value(99), entity: "s")
        #expect(LinearizabilityChecker(configurationCountMax: 1_000).violation(history.operations)?.entity == "s")
    }

    @Test("Unknown writes of distinct values do not widen the search, however many there are")
    func manyUnknown() {
        var history = HandWritten()
        for client in 0..<2_000 as Range<UInt64> {
            let start = client * 10
            history.add(0, start, start + 4, .write(2 * client + 1), .ok)
            history.add(1, start, nil, .write(2 * client + 2))
            // Every second unknown write takes effect, some of them a thousand operations later.
            if client % 2 == 0 {
                let found = client > 1_000 && client % 4 == 0 ? 2 * (client - 999) + 2 : 2 * client + 2
                history.add(2, start + 5, start + 6, .read, .value(found))
            }
        }
        #expect(LinearizabilityChecker(configurationCountMax: 20_000).check(history.operations) == .linearizable)
    }
}
