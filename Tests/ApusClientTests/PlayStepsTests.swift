import ApusClient
import ApusContract
import ApusCore
import ApusDiagnosis
import ApusMedia
import Testing

/// Makes the steps of sessions at given milliseconds.
private struct Script {
    var steps = PlaySteps(session: String(repeating: "a", count: 32), device: "cam", source: 0, now: .zero)
    var lines: [String] = []

    static func time(_ milliseconds: Int64) -> MonotonicTime { .zero + .milliseconds(milliseconds) }

    mutating func reach(_ step: PlaySteps.Step, _ at: Int64) {
        lines += steps.reached(step, now: Self.time(at)).map(\.text)
    }

    mutating func receive(
        _ pts: Int64, track: UInt8 = 0, _ at: Int64, isTracing: Bool = false
    ) -> [PlaySteps.Line] {
        let header = MediaHeader(
            position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: pts, flags: .key, track: track)
        let new = steps.received(header, byteCount: 100, isTracing: isTracing, now: Self.time(at))
        lines += new.map(\.text)
        return new
    }

    mutating func render(_ pts: Int64, _ at: Int64) {
        lines += steps.decoded(pts: pts, isPicture: true, isTracing: false, now: Self.time(at)).map(\.text)
        lines += steps.rendered(pts: pts, isPicture: true, isTracing: false, now: Self.time(at)).map(\.text)
    }

    mutating func configure(_ at: Int64, hasSound: Bool = false) {
        lines += steps.configured(0, Self.picture, now: Self.time(at)).map(\.text)
        if hasSound { lines += steps.configured(1, Self.sound, now: Self.time(at)).map(\.text) }
    }

    /// 25 pictures in a second, and 8 packets of sound.
    static let picture = TrackConfiguration(
        codec: .h264, trackCount: 2, first: 160, second: 120, third: 25_000, extraData: [])
    static let sound = TrackConfiguration(
        codec: .aac, trackCount: 2, first: 8000, second: 1, third: 1000, extraData: [])

    /// The numbers of the steps that have a line.
    var numbers: [Int] {
        let digits = Array("①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬")
        return lines.compactMap { line in line.first.flatMap { digits.firstIndex(of: $0) }.map { $0 + 1 } }
    }
}

@Suite("The steps of a play session (IV-G1, IV-G3 to IV-G7)")
struct PlayStepsTests {
    @Test("One session has the 13 steps in order, once each, although a decoder is made after the first packet")
    func order() {
        var script = Script()
        script.steps.renders(pictures: true, sound: false)
        script.reach(.create, 0)
        script.reach(.connecting, 0)
        script.reach(.connected, 20)
        script.configure(30)
        for frame in 0..<5 { _ = script.receive(Int64(frame) * 40_000, 40 + Int64(frame) * 40) }
        #expect(script.numbers == [1, 2, 3, 4])
        script.reach(.codecs, 250)
        script.reach(.renderers, 251)
        script.render(0, 260)
        script.render(40_000, 270)
        #expect(script.numbers == Array(1...9))
        script.lines += script.steps.released(now: Script.time(900)).map(\.text)
        #expect(script.numbers == Array(1...13))
        let report = script.steps.report(now: Script.time(1000))
        #expect(report.connectMs == 20 && report.dataMs == 20 && report.renderMs == 220)
        #expect(report.received == 5 && report.rendered == 2 && report.codecs == ["h264"])
    }

    @Test(
        "The stop is always followed by the release, each step has at most one line, and lines are in order (random)",
        arguments: 0..<50)
    func walk(_ seed: UInt64) {
        var state = seed &* 0x9E37_79B9_7F4A_7C15 | 1
        func random(_ bound: UInt64) -> UInt64 {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return (state >> 33) % bound
        }
        for _ in 0..<20 {
            var script = Script()
            var now: Int64 = 0
            for _ in 0..<random(40) {
                now += Int64(random(400))
                switch random(9) {
                case 0: script.steps.renders(pictures: true, sound: random(2) == 0)
                case 1: script.configure(now, hasSound: random(2) == 0)
                case 2: _ = script.receive(Int64(random(1_000_000_000)), track: UInt8(random(3)), now)
                case 3: script.render(Int64(random(1_000_000_000)), now)
                case 4: script.lines += script.steps.decoderMissing(.h265).map(\.text)
                case 5:
                    let part: PlaySteps.Part = [.stream, .decoder, .renderer][Int(random(3))]
                    script.lines += script.steps.failed(part, ApusError(.mediaUnreadable)).map(\.text)
                default:
                    let step = PlaySteps.Step.allCases[Int(random(9))]
                    script.reach(step, now)
                }
            }
            if random(2) == 0 { script.reach(.stop, now) }
            script.lines += script.steps.released(now: Script.time(now + 5)).map(\.text)
            script.lines += script.steps.released(now: Script.time(now + 9)).map(\.text)
            let numbers = script.numbers
            #expect(Set(numbers).count == numbers.count, "\(numbers)")
            #expect(numbers.last == 13 && numbers.contains(10), "\(numbers)")
            let report = script.steps.report(now: Script.time(now + 10))
            #expect(report.stepsMs[9] > 0 && report.stepsMs[12] >= report.stepsMs[9])
            #expect(report.isWithinBounds)
        }
    }

    @Test("Frames that are missing are counted by the times of the others (IV-G6), and a stall has a line")
    func gaps() {
        var script = Script()
        script.configure(0, hasSound: true)
        // 2 of 100 pictures are missing.
        for frame in 0..<100 where frame != 30 && frame != 71 {
            _ = script.receive(Int64(frame) * 40_000, Int64(frame) * 40)
        }
        #expect(script.steps.report(now: Script.time(5000)).gaps == 2)
        let lines = script.receive(100 * 40_000, 4900)
        let facts = lines.first { $0.text.hasPrefix("Jitter") }?.facts ?? []
        #expect(facts.map(\.key) == ["apus.tolerance_ms", "apus.delay_ms"] && facts.last?.value == "940", "\(lines)")
    }

    @Test("Sound that is 1.2 s from the pictures of the same moment is warned of once; 0.9 s is not (IV-G5)")
    func skew() {
        for (apart, count) in [(900_000 as Int64, 0), (1_200_000, 1), (-1_200_000, 1)] {
            var script = Script()
            script.configure(0, hasSound: true)
            for frame in 0..<20 {
                let time = Int64(frame) * 125
                _ = script.receive(time * 1000, time)
                _ = script.receive(time * 1000 + apart, track: 1, time)
            }
            #expect(script.lines.count { $0.hasPrefix("Sound and pictures") } == count, "\(apart)")
            #expect(Int64(script.steps.report(now: Script.time(5000)).skewMs) == apart / 1000)
        }
    }

    @Test("The time until frames are rendered has a median and a spread (IV-G7)")
    func renderTime() {
        var script = Script()
        script.steps.renders(pictures: true, sound: false)
        script.configure(0)
        // 84 ms, and a tenth of the frames 200 ms.
        for frame in 0..<100 {
            let (pts, at) = (Int64(frame) * 40_000, Int64(frame) * 1000)
            _ = script.receive(pts, at)
            script.render(pts, at + (frame % 8 == 0 ? 200 : 84))
        }
        let report = script.steps.report(now: Script.time(100_000))
        #expect(report.renderMedianMs == 84 && report.renderSpreadMs == 116)
    }

    @Test("Reports come when something has changed, at most one a second, and always at the end (IV-G4)")
    func reports() {
        var script = Script()
        script.steps.linkChanged(isConnected: true)
        script.reach(.create, 0)
        script.reach(.connecting, 0)
        #expect(script.steps.nextReport(now: Script.time(10)) != nil)
        script.reach(.connected, 20)
        #expect(script.steps.nextReport(now: Script.time(30)) == nil)
        var numbers: [UInt32] = []
        script.configure(40)
        for time in stride(from: 50 as Int64, to: 60_000, by: 40) {
            _ = script.receive(time * 1000, time)
            if let report = script.steps.nextReport(now: Script.time(time)) { numbers.append(report.number) }
        }
        #expect(numbers == [2], "a stream that flows is reported once: \(numbers)")
        // It stalls: that is news.
        var stalled = 0
        for time in stride(from: 60_000 as Int64, to: 120_000, by: 100) {
            if script.steps.nextReport(now: Script.time(time)) != nil { stalled += 1 }
        }
        #expect(stalled == 1)
        script.reach(.stop, 120_001)
        #expect(script.steps.nextReport(now: Script.time(120_001))?.time(of: .stop) == 120_001)
    }

    @Test("17 lines of audio packets are one line with the data of the last one (IV-G1)")
    func folding() {
        var folding = LogFolding()
        var written: [String] = []
        for packet in 1...17 {
            written += folding.add("audio \(packet)", kind: "audio", now: Script.time(Int64(packet) * 20))
        }
        #expect(written.isEmpty)
        written += folding.add("④ The header has come", kind: nil, now: Script.time(400))
        #expect(written == ["audio 17 {…17}", "④ The header has come"])
        // A run ends after a second, and with a line of another kind.
        written = (0..<100).flatMap { folding.add("video \($0)", kind: "video", now: Script.time(1000 + $0 * 40)) }
        #expect(written.first == "video 25 {…26}" && written.count == 3)
        #expect(folding.add("audio 1", kind: "audio", now: Script.time(6000)).count == 1)
        #expect(folding.flush() == ["audio 1"] && folding.flush().isEmpty)
    }
}
