import ApusCore
import Testing

@Suite("Descriptors: the budget, the pressure, the pause")
struct DescriptorBudgetTests {
    private let shares = [
        DescriptorShare("small", wanted: 20, minimum: 4, weight: 1),
        DescriptorShare("large", wanted: 10_000, minimum: 10, weight: 3),
        DescriptorShare("other", wanted: 10_000, minimum: 10, weight: 1),
    ]

    @Test("Bounds that fit stay as they are")
    func fits() throws {
        #expect(try DescriptorBudget.split(limit: 30_000, fixed: 100, shares: shares) == [20, 10_000, 10_000])
    }

    @Test("Bounds that do not fit share what is left by weight, and a small one is not cut for a large one")
    func split() throws {
        let granted = try DescriptorBudget.split(limit: 1_000, fixed: 100, shares: shares)
        #expect(granted[0] == 20)
        #expect(granted[1] > 590 && granted[2] > 200 && granted[1] > 2 * granted[2])
    }

    @Test(
        "Whatever the limit, the sum stays below it with the margin, each share is between its minimum and its wish",
        arguments: [140, 150, 200, 256, 512, 1_024, 4_096, 20_000, 20_200, 1_048_576])
    func sum(limit: Int) throws {
        let granted = try DescriptorBudget.split(limit: limit, fixed: 100, shares: shares)
        #expect(granted.reduce(0, +) + 100 + DescriptorBudget.margin(of: limit) <= limit)
        for (share, count) in zip(shares, granted) { #expect((share.minimum...share.wanted).contains(count)) }
    }

    @Test("A limit below the minimums is refused with 10022 and the number that is needed")
    func refused() {
        #expect(throws: ApusError(.configurationInvalid)) {
            try DescriptorBudget.split(limit: 139, fixed: 100, shares: shares)
        }
        do throws(ApusError) {
            _ = try DescriptorBudget.split(limit: 100, fixed: 100, shares: shares)
        } catch {
            #expect(error.message.contains("is 100") && error.message.contains("needs at least 140"), "\(error)")
        }
    }

    @Test("A wish below the minimum is granted")
    func modest() throws {
        let one = [DescriptorShare("one", wanted: 2, minimum: 10, weight: 1)]
        #expect(try DescriptorBudget.split(limit: 200, fixed: 100, shares: one) == [2])
    }

    @Test("Pressure begins at 85 % and ends below 75 %")
    func pressure() {
        var pressure = DescriptorPressure()
        let steps: [(Int, Bool)] = [
            (80, false), (84, false), (85, true), (80, true), (75, true), (74, false), (84, false),
        ]
        for (inUse, isHigh) in steps { #expect(pressure.update(inUse: inUse, limit: 100) == isHigh, "\(inUse)") }
    }

    @Test(
        "Pauses grow from 50 to 500 ms while there is no descriptor, and begin anew after half a second without trouble"
    )
    func backoff() {
        var backoff = AcceptBackoff()
        var now = MonotonicTime(nanoseconds: 1_000_000_000)
        for expected in [50, 100, 200, 400, 500, 500] {
            let next = backoff.exhausted(at: now)
            #expect(next - now == .milliseconds(expected))
            now = next
        }
        now = now + .milliseconds(499)
        #expect(backoff.exhausted(at: now) - now == .milliseconds(500))
        now = now + .milliseconds(1_000)
        #expect(backoff.exhausted(at: now) - now == .milliseconds(50))
    }
}
