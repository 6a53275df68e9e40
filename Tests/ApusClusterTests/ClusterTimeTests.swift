import ApusCluster
import Testing

@Suite("The cluster's time at a node")
struct ClusterTimeTests {
    private static let hour: Int64 = 3_600_000

    @Test("A slewed clock is followed at once, whether others confirm it or not")
    func slewed() {
        var time = ClusterTime(wall: 1_000_000, now: 0)
        for second in 1...100 {
            let now = Int64(second) * 1000
            time.judged(wall: 1_000_000 + now + Int64(second) * 5, now: now, isCompared: false)
        }
        #expect(time.base == 1_000_500)
    }

    @Test("A step is not followed before the others' clocks are known, and then not if they contradict it")
    func contradicted() {
        var time = ClusterTime(wall: 1_000_000, now: 0)
        // The samples of before the step are of no use.
        time.judged(wall: 1_001_000 + 2 * Self.hour, now: 1000, isCompared: false)
        #expect(time.base == 1_000_000)
        // The others' median corrects the clock.
        for second in 2...10 {
            time.judged(wall: 1_000_000 + Int64(second) * 1000, now: Int64(second) * 1000, isCompared: true)
        }
        #expect(time.base == 1_000_000)
        // All clocks were set.
        time.judged(wall: 1_011_000 - Self.hour, now: 11_000, isCompared: true)
        #expect(time.base == 1_000_000 - Self.hour)
    }

    @Test("A node that has nobody to ask follows a step that stays for three judgements")
    func alone() {
        var time = ClusterTime(wall: 1_000_000, now: 0)
        for second in 1...3 {
            let now = Int64(second) * 1000
            time.judged(wall: 1_000_000 + now + Self.hour, now: now, isCompared: false)
            #expect(time.base == 1_000_000)
        }
        time.judged(wall: 1_004_000 + Self.hour, now: 4000, isCompared: false)
        #expect(time.base == 1_000_000 + Self.hour)
        // A step that is taken back leaves nothing behind.
        time.judged(wall: 1_005_000, now: 5000, isCompared: false)
        time.judged(wall: 1_006_000 + Self.hour, now: 6000, isCompared: false)
        #expect(time.base == 1_000_000 + Self.hour)
    }
}
