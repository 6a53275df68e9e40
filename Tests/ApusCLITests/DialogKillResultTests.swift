import ApusBench
import ApusCore
import Testing

/// How `apus-bench dialogs --kills` judges a run.
@Suite("Results of dialogs whose nodes are killed")
struct DialogKillResultTests {
    private static let device = DeviceID(unchecked: "speaker-1")

    /// A round without a kill, with answers after 10 ms, and one with these.
    private static func result(_ milliseconds: [Double]) -> DialogKillResult {
        var result = DialogKillResult()
        result.calm = (0..<3).map { _ in DialogKillSpan(.thinking, device, milliseconds: 10) }
        result.add(
            milliseconds.map { DialogKillSpan(.thinking, device, milliseconds: $0) }, [device: [.owner, .app]])
        result.add(.thinking, [.owner, .app], nil)
        return result
    }

    private static func value(_ key: String, _ result: DialogKillResult) -> Double? {
        result.values.first { $0.1 == key }?.2
    }

    @Test("The added delay is the time of an answer less what it takes without a kill")
    func delay() {
        let result = Self.result([12, 30, 700])
        #expect(Self.value("delay_p50_ms", result) == 20 && Self.value("delay_max_ms", result) == 690)
        #expect(result.isClean)
        #expect(!Self.result([12, 30, 711]).isClean, "p99 of the added delay is over 700 ms")
        // A faster answer than usual has no negative delay.
        #expect(Self.value("delay_p50_ms", Self.result([4])) == 0)
    }

    @Test("Each end but an answer and a polite one is a failure", arguments: DialogKillMiss.Kind.allCases)
    func misses(kind: DialogKillMiss.Kind) {
        var result = Self.result([12])
        result.add(.listening, [.standby], DialogKillMiss(kind: kind, text: "10007 too many"))
        #expect(result.isClean == (kind == .polite))
        #expect(Self.value(kind.rawValue, result) == 1 && Self.value("dialogs", result) == 2)
    }

    @Test("What comes twice at the end of the run is a failure, and so are timers that ring late")
    func late() {
        var twice = Self.result([12])
        twice.lateTwice = 1
        #expect(!twice.isClean)
        var timers = Self.result([12])
        timers.lateness = [80, 500]
        #expect(timers.isClean)
        timers.lateness.append(501)
        #expect(!timers.isClean)
    }
}
