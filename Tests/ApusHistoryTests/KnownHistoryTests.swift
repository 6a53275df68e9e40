import ApusCore
import ApusHistory
import Testing

@Suite("Histories that are known to be right or wrong")
struct KnownHistoryTests {
    private let checker = LinearizabilityChecker()

    /// Expects a violation that consists of these operations, by their positions in the history, and no others.
    private func expectViolation(
        _ operations: [RegisterOperation], of positions: [Int], _ location: SourceLocation = #_sourceLocation
    ) {
        guard let violation = checker.violation(operations) else {
            Issue.record("no violation: \(checker.check(operations))", sourceLocation: location)
            return
        }
        #expect(violation.operations == positions.map { operations[$0] }, "\(violation)", sourceLocation: location)
        #expect(violation.isMinimal, sourceLocation: location)
        #expect(
            checker.violation(violation.operations) != nil, "what is shown is no violation by itself",
            sourceLocation: location)
    }

    private func expectLinearizable(
        _ operations: [RegisterOperation], _ location: SourceLocation = #_sourceLocation
    ) {
        #expect(checker.check(operations) == .linearizable, sourceLocation: location)
    }

    @Test("An empty history, and a read of a register that nobody wrote, are linearizable")
    func empty() {
        expectLinearizable([])
        expectLinearizable(HandWritten.make { $0.add(0, 0, 1, .read, .value(RegisterOperation.initialValue)) })
    }

    @Test("Concurrent operations may take effect in either order")
    func concurrent() {
        expectLinearizable(
            HandWritten.make {
                $0.add(0, 0, 10, .write(1), .ok)
                $0.add(1, 5, 15, .write(2), .ok)
                $0.add(2, 6, 7, .read, .value(2))
                $0.add(3, 8, 9, .read, .value(1))
                $0.add(0, 20, 30, .compareAndSwap(expected: 1, new: 3), .ok)
                $0.add(1, 21, 31, .compareAndSwap(expected: 1, new: 4), .mismatch(3))
            })
    }

    @Test("A read that returns when another operation is invoked may come after it: whether they overlapped is unknown")
    func touching() {
        expectLinearizable(
            HandWritten.make {
                $0.add(0, 0, 5, .read, .value(1))
                $0.add(1, 5, 9, .write(1), .ok)
            })
    }

    @Test("A stale read is found")
    func staleRead() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .write(2), .ok)
                $0.add(1, 4, 5, .read, .value(2))
                $0.add(1, 6, 7, .read, .value(1))
            }, of: [0, 1, 3])
    }

    @Test("Two reads that see two concurrent writes in different orders are found")
    func differentOrders() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 100, .write(1), .ok)
                $0.add(1, 0, 100, .write(2), .ok)
                $0.add(2, 10, 11, .read, .value(1))
                $0.add(3, 20, 21, .read, .value(2))
                $0.add(2, 30, 31, .read, .value(1))
            }, of: [0, 1, 2, 3, 4])
    }

    @Test("A lost update is found: two clients changed the value that both had read, and both were acknowledged")
    func lostUpdate() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .read, .value(1))
                $0.add(1, 2, 3, .read, .value(1))
                $0.add(0, 4, 9, .compareAndSwap(expected: 1, new: 2), .ok)
                $0.add(1, 5, 8, .compareAndSwap(expected: 1, new: 3), .ok)
            }, of: [0, 3, 4])
    }

    @Test("Two successful compare-and-swaps from the first value are found")
    func twoSwaps() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 10, .compareAndSwap(expected: 0, new: 1), .ok)
                $0.add(1, 0, 10, .compareAndSwap(expected: 0, new: 2), .ok)
            }, of: [0, 1])
    }

    @Test("A read of a value whose write begins later is found, whatever becomes of the write")
    func future() {
        for outcome in [RegisterOperation.Outcome.ok, .unknown] {
            expectViolation(
                HandWritten.make {
                    $0.add(0, 0, 1, .read, .value(1))
                    $0.add(1, 2, outcome == .ok ? 3 : nil, .write(1), outcome)
                }, of: [0])
        }
    }

    @Test("A read of a value that nobody wrote, or whose write failed, is found")
    func unwritten() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 1, 2, .write(9), .failed)
                $0.add(1, 2, 3, .read, .value(9))
            }, of: [2])
    }

    @Test("A write that was acknowledged and then lost is found by the last read")
    func lostWrite() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .write(2), .ok)
                $0.add(1, 100, 101, .read, .value(1))
            }, of: [0, 1, 2])
    }

    @Test("A compare-and-swap that was repeated and carried out twice is found")
    func repeatedSwap() {
        // The client repeats the request until it is answered. The second execution finds the value of the first.
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 9, .compareAndSwap(expected: 1, new: 2), .mismatch(2))
            }, of: [1])
        // The second execution came after another write, and undid it.
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 90, .compareAndSwap(expected: 0, new: 1), .ok)
                $0.add(1, 10, 11, .read, .value(1))
                $0.add(1, 20, 21, .write(2), .ok)
                $0.add(1, 30, 31, .read, .value(1))
            }, of: [0, 2, 3])
    }

    @Test("A refusal that found the expected value is found")
    func contradiction() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .compareAndSwap(expected: 1, new: 2), .mismatch(1))
            }, of: [0, 1])
    }

    @Test("A refusal shows the value that it found, as a read does")
    func refusal() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .write(2), .ok)
                $0.add(1, 4, 5, .compareAndSwap(expected: 7, new: 8), .mismatch(1))
            }, of: [0, 1, 2])
    }

    // MARK: Unknown outcomes

    @Test("An operation with an unknown outcome may take effect late, or never")
    func late() {
        expectLinearizable(
            HandWritten.make {
                $0.add(0, 0, nil, .write(1))
                $0.add(1, 0, nil, .write(2))
                $0.add(2, 10, 11, .write(3), .ok)
                $0.add(2, 20, 21, .read, .value(3))
                $0.add(2, 30, 31, .read, .value(1))
                $0.add(2, 40, 41, .read, .value(1))
            })
        expectLinearizable(
            HandWritten.make {
                $0.add(0, 0, nil, .compareAndSwap(expected: 3, new: 4))
                $0.add(2, 10, 11, .write(3), .ok)
                $0.add(2, 20, 21, .read, .value(3))
                $0.add(2, 30, 31, .compareAndSwap(expected: 4, new: 5), .ok)
            })
    }

    @Test("An operation with an unknown outcome that takes effect twice is found")
    func twice() {
        expectViolation(
            HandWritten.make {
                $0.add(0, 0, nil, .write(1))
                $0.add(1, 10, 11, .read, .value(1))
                $0.add(1, 20, 21, .write(2), .ok)
                $0.add(1, 30, 31, .read, .value(1))
            }, of: [0, 1, 2, 3])
    }

    @Test("A chain of unknown compare-and-swaps must have happened if its last value is found")
    func chain() {
        let good = HandWritten.make {
            $0.add(0, 0, nil, .write(1))
            $0.add(1, 1, nil, .compareAndSwap(expected: 1, new: 2))
            $0.add(2, 2, nil, .compareAndSwap(expected: 2, new: 3))
            $0.add(3, 10, 11, .read, .value(3))
        }
        expectLinearizable(good)
        expectViolation(good + HandWritten.make { $0.add(3, 20, 21, .read, .value(2)) }, of: [0, 1, 2, 3, 4])
        expectViolation(good.filter { $0.client != 1 }, of: [1, 2])
    }

    @Test("A failed operation never takes effect, and does no harm")
    func failed() {
        expectLinearizable(
            HandWritten.make {
                $0.add(0, 0, 1, .write(1), .ok)
                $0.add(0, 2, 3, .write(2), .failed)
                $0.add(1, 4, 5, .read, .value(1))
            })
    }

    @Test("Unknown writes of one value by several clients may each take effect once")
    func sameValue() {
        let writes = HandWritten.make {
            $0.add(0, 0, nil, .write(1))
            $0.add(1, 0, nil, .write(1))
            $0.add(2, 10, 11, .read, .value(1))
            $0.add(2, 20, 21, .write(2), .ok)
            $0.add(2, 30, 31, .read, .value(1))
        }
        expectLinearizable(writes)
        #expect(
            checker.violation(
                writes
                    + HandWritten.make {
                        $0.add(2, 40, 41, .write(3), .ok)
                        $0.add(2, 50, 51, .read, .value(1))
                    }) != nil)
    }

    // MARK: Several registers, and the report

    @Test("Registers are checked by themselves, and the first violation by name is reported")
    func registers() {
        var history = HandWritten()
        history.add(0, 0, 1, .write(1), .ok, entity: "c")
        history.add(0, 2, 3, .read, .value(1), entity: "c")
        history.add(0, 4, 5, .read, .value(0), entity: "b")
        history.add(0, 6, 7, .read, .value(5), entity: "d")
        #expect(checker.violation(history.operations)?.entity == "d")
        history.add(1, 8, 9, .read, .value(6), entity: "a")
        #expect(checker.violation(history.operations)?.entity == "a")
        #expect(checker.violation(history.operations.shuffled()) == checker.violation(history.operations))
    }

    @Test("A violation is described with its operations and their times")
    func description() throws {
        let violation = try #require(
            checker.violation(
                HandWritten.make {
                    $0.add(0, 10, 12, .write(1), .ok)
                    $0.add(3, 14, nil, .write(2))
                    $0.add(1, 20, 21, .read, .value(2))
                    $0.add(1, 1_022, 1_023, .read, .value(1))
                }))
        #expect(
            violation.description == """
                r: no order of these 4 operations explains their results:
                     0.000 to    2.000 ms  client 0: write 1, ok
                     4.000 to     open ms  client 3: write 2, unknown
                    10.000 to   11.000 ms  client 1: read, found 2
                  1012.000 to 1013.000 ms  client 1: read, found 1
                """)
        #expect(violation.contradictedAt == .milliseconds(1_023))
    }
}
