import ApusCore
import ApusDevice
import ApusMedia
import Testing

@Suite("One line of time over loops, jumps and breaks (D10)")
struct TimelineTests {
    private let step: Int64 = 40_000

    @Test("The line starts at 0, wherever the input starts")
    func start() {
        var line = MediaTimeline(trackCount: 1)
        #expect(line.place(track: 0, pts: 9_000_000, dts: 8_920_000, duration: step) == .init(pts: 0, dts: -80_000))
        #expect(line.place(track: 0, pts: 9_040_000, dts: 8_960_000, duration: step) == .init(pts: step, dts: -step))
    }

    @Test("A second pass follows the longest track of the first")
    func pass() {
        var line = MediaTimeline(trackCount: 2)
        _ = line.place(track: 0, pts: 0, dts: 0, duration: step)
        _ = line.place(track: 1, pts: 0, dts: 0, duration: 50_000)
        line.beginPass(firstPts: 0)
        #expect(line.place(track: 0, pts: 0, dts: 0, duration: step).pts == 50_000)
        #expect(line.place(track: 1, pts: 0, dts: 0, duration: 50_000).pts == 50_000)
    }

    @Test("A clock that jumps goes on with the usual step", arguments: [Int64(-3_600_000_000), 95_443_717_688])
    func jump(by: Int64) {
        var line = MediaTimeline(trackCount: 1)
        for index in 0..<Int64(3) { _ = line.place(track: 0, pts: index * step, dts: index * step, duration: step) }
        let place = line.place(track: 0, pts: 3 * step + by, dts: 3 * step + by, duration: step)
        #expect(place.dts == 3 * step)
    }

    private static let extremes: [Int64] = [
        Int64.min, Int64.min + 1, -MediaHeader.ptsMicrosecondsMax - 1, -MediaHeader.ptsMicrosecondsMax, -1, 0, 40_000,
        MediaHeader.ptsMicrosecondsMax, MediaHeader.ptsMicrosecondsMax + 1, Int64.max - 1, Int64.max,
    ]

    @Test("Times of a damaged file never overflow, and never take the line back", arguments: 0..<UInt64(200))
    func anyTimes(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var line = MediaTimeline(trackCount: 2)
        var last: [Int64] = [.min, .min]
        func extreme() -> Int64 { Self.extremes[Int.random(in: 0..<Self.extremes.count, using: &random)] }
        func time() -> Int64? { Int.random(in: 0..<8, using: &random) == 0 ? nil : extreme() }
        for _ in 0..<300 {
            switch Int.random(in: 0..<20, using: &random) {
            case 0: line.beginPass(firstPts: extreme())
            case 1: line.resume(after: extreme())
            default: break
            }
            let track = Int.random(in: 0..<2, using: &random)
            let place = line.place(track: track, pts: time(), dts: time(), duration: extreme())
            #expect(place.dts > last[track] && place.pts >= place.dts, "seed \(seed)")
            #expect(place.pts.magnitude <= UInt64(MediaHeader.ptsMicrosecondsMax), "seed \(seed)")
            last[track] = place.dts
        }
        #expect(line.end <= MediaTimeline.lineMax)
    }

    @Test("A frame with times that no input can have goes on with the usual step", arguments: [Int64.min, .max])
    func damagedTimes(time: Int64) {
        var line = MediaTimeline(trackCount: 1)
        for index in 0..<Int64(3) { _ = line.place(track: 0, pts: index * step, dts: index * step, duration: step) }
        #expect(
            line.place(track: 0, pts: time, dts: time, duration: .max) == .init(pts: 3 * step, dts: 3 * step))
        let next = line.place(track: 0, pts: 4 * step, dts: 4 * step, duration: step)
        #expect(next == .init(pts: 4 * step, dts: 4 * step))
        // A presentation time alone that is centuries ahead is not believed either.
        let alone = line.place(track: 0, pts: MediaHeader.ptsMicrosecondsMax, dts: 5 * step, duration: step)
        #expect(alone == .init(pts: 5 * step, dts: 5 * step) && line.end == 6 * step)
    }

    @Test("A clock that steps back a little never takes the line back")
    func back() {
        var line = MediaTimeline(trackCount: 1)
        _ = line.place(track: 0, pts: 100_000, dts: 100_000, duration: step)
        let place = line.place(track: 0, pts: 90_000, dts: 90_000, duration: step)
        #expect(place == .init(pts: 1, dts: 1))
    }

    @Test("A break leaves its length on the line")
    func resume() {
        var line = MediaTimeline(trackCount: 1)
        _ = line.place(track: 0, pts: 0, dts: 0, duration: step)
        line.resume(after: 2_000_000)
        #expect(line.place(track: 0, pts: 77, dts: 77, duration: step).dts == 2_000_000 + step)
    }

    @Test("A track that an input has again, after one without it, never goes back")
    func trackCount() {
        var line = MediaTimeline(trackCount: 0)
        line.resume(after: 0, trackCount: 2)
        _ = line.place(track: 0, pts: 0, dts: 0, duration: step)
        #expect(line.place(track: 1, pts: 60_000, dts: 60_000, duration: step) == .init(pts: 60_000, dts: 60_000))
        line.resume(after: 0, trackCount: 1)
        #expect(line.place(track: 0, pts: 7, dts: 7, duration: step).dts == 100_000)
        line.resume(after: 0, trackCount: 2)
        #expect(line.place(track: 0, pts: 9_000_000, dts: 9_000_000, duration: step).dts == 140_000)
        // Sound that is earlier than the picture.
        #expect(line.place(track: 1, pts: 8_900_000, dts: 8_900_000, duration: step).dts == 60_001)
    }

    @Test(
        "Random times never take the line back, and never show a frame before it is decoded", arguments: 0..<UInt64(200)
    )
    func random(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var line = MediaTimeline(trackCount: 2)
        var last: [Int64] = [.min, .min]
        for _ in 0..<300 {
            if random.nextUnit() < 0.02 { line.beginPass(firstPts: Int64(random.nextUnit() * 1e9)) }
            if random.nextUnit() < 0.02 { line.resume(after: Int64(random.nextUnit() * 1e7) - 1_000_000) }
            let track = random.nextUnit() < 0.5 ? 0 : 1
            let time = Int64(random.nextUnit() * 2e9) - 1_000_000_000
            let pts = random.nextUnit() < 0.1 ? nil : time + Int64(random.nextUnit() * 1e5)
            let dts = random.nextUnit() < 0.1 ? nil : time
            let place = line.place(track: track, pts: pts, dts: dts, duration: step)
            #expect(place.dts > last[track] && place.pts >= place.dts, "seed \(seed)")
            last[track] = place.dts
        }
    }

    @Test("Waits double to 15 s, with jitter, and are short again after a good connection")
    func reconnect() {
        var reconnect = Reconnect()
        let waits = (0..<8).map { _ in reconnect.nextWait(lasted: .zero, unit: 0.5).milliseconds }
        #expect(waits == [500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000])
        #expect(reconnect.nextWait(lasted: .seconds(60), unit: 0) == .milliseconds(375))
    }
}
