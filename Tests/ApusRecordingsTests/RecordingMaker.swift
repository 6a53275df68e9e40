import ApusCore
import ApusMedia
import ApusRecordings
import Foundation
import SwiftProtobuf

/// Makes hours of an index with made-up segments.
struct RecordingMaker {
    var generator: SeededRandom
    let channel = RecordedChannel(
        account: AccountID(unchecked: "home"), device: DeviceID(unchecked: "cam"), source: 0)
    private(set) var segments: [(segment: RecordingSegment, run: Data)] = []
    private var count = 0
    private var run = Data(repeating: 0, count: 16)

    init(seed: UInt64) { generator = SeededRandom(seed: seed) }

    mutating func newRun() { run = Data((0..<16).map { _ in UInt8.random(in: 0...255, using: &generator) }) }

    mutating func add(
        _ start: Int64, _ duration: Int64, _ end: SegmentEnd = .continues, protectedUntil: Int64 = 0
    ) {
        count += 1
        let segment = RecordingSegment.with {
            ($0.startUs, $0.durationUs, $0.object) = (start, UInt64(duration), "s\(count)")
            ($0.bytes, $0.initBytes, $0.mediaEnd) = (1000, 100, 900)
            ($0.end, $0.startsWithKey, $0.protectedUntilMs) = (UInt32(end.rawValue), true, protectedUntil)
        }
        segments.append((segment, run))
    }

    /// A stream with gaps, short and long segments, and reasons, from a time on.
    mutating func stream(from start: Int64, count: Int, longest: Int64 = 60_000_000) {
        var time = start
        newRun()
        for _ in 0..<count {
            let duration =
                Int64.random(in: 1...8, using: &generator) == 1
                ? Int64.random(in: 40_000...900_000, using: &generator)
                : Int64.random(in: min(1_000_000, longest)...longest, using: &generator)
            let end =
                Int.random(in: 0..<4, using: &generator) == 0
                ? SegmentEnd.allCases.randomElement(using: &generator) ?? .gap : .continues
            add(time, duration, end)
            time += duration
            if end != .continues {
                newRun()
                time += [0, 30_000, 700_000, 90_000_000, 7_200_000_000].randomElement(using: &generator) ?? 0
            }
        }
    }

    /// The hours of all segments, in their order.
    var hours: [RecordingHour] {
        var found: [Int64: RecordingHour] = [:]
        for (segment, run) in segments {
            let number = RecordingIndex.hour(of: segment.startUs)
            var hour =
                found[number]
                ?? .with {
                    ($0.account, $0.device) = (channel.account.rawValue, channel.device.rawValue)
                    $0.hour = number
                }
            let place = hour.runs.firstIndex { $0.id == run } ?? hour.runs.count
            if place == hour.runs.count { hour.runs.append(.with { $0.id = run }) }
            var own = segment
            own.run = UInt32(place)
            hour.segments.append(own)
            found[number] = hour
        }
        return found.values.sorted { $0.hour < $1.hour }
    }

    var all: [RecordedSegment] { RecordedSegment.all(hours, in: RecordingView()) }
}

/// 27 October 2026, 22:13:20 UTC.
let aTime: Int64 = 1_793_139_200_000_000
