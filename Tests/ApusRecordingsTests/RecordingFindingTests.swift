import ApusContract
import ApusCore
import ApusMedia
import ApusRecordings
import Foundation
import SwiftProtobuf
import Testing

@Suite("What clients find of recordings: days, time line, plan (IV-E2 to IV-E4)")
struct RecordingFindingTests {
    /// The scan, over pages of the hours.
    private func days(
        _ hours: [RecordingHour], zone: Int32, from start: Int64, view: RecordingView = RecordingView()
    ) throws -> (days: [Int64], reads: Int) {
        var scan = try RecordingDayScan(zone: zone, from: start, in: view)
        var reads = 0
        while let next = scan.next {
            let rest = hours.filter { $0.hour >= next }
            scan.add(Array(rest.prefix(RecordingDayScan.pageHours)), isLast: rest.count <= RecordingDayScan.pageHours)
            reads += 1
        }
        return (scan.days, reads)
    }

    @Test("A recording across local midnight gives two days, and another zone other days (IV-E3)")
    func midnight() throws {
        var maker = RecordingMaker(seed: 1)
        // 2026-10-27 15:59:30 to 16:00:30 UTC: across midnight in a zone of 8 hours.
        let midnight: Int64 = 1_793_116_800
        maker.add((midnight - 30) * 1_000_000, 60_000_000)
        #expect(try days(maker.hours, zone: 28_800, from: 0).days == [midnight - 86_400, midnight])
        #expect(try days(maker.hours, zone: 0, from: 0).days == [midnight - 57_600])
        // Half an hour, and a quarter.
        #expect(try days(maker.hours, zone: 19_800, from: 0).days == [midnight - 77_400])
        #expect(throws: ApusError(.badParameter)) { try days([], zone: 64_801, from: 0) }
    }

    @Test(
        "The days are those of every segment, with few reads", arguments: (1...40).map(UInt64.init))
    func allDays(seed: UInt64) throws {
        var maker = RecordingMaker(seed: seed)
        maker.stream(from: aTime, count: 2000)
        let zone = [0, 28_800, -34_200, 20_700, 64_800, -64_800].randomElement(using: &maker.generator) ?? 0
        let day: Int64 = 86_400_000_000
        var expected: Set<Int64> = []
        for segment in maker.all {
            for time in [segment.start, segment.end - 1] {
                expected.insert(((time + Int64(zone) * 1_000_000).floored(by: day) * day) / 1_000_000 - Int64(zone))
            }
        }
        let first = try #require(maker.all.first).start
        let found = try days(maker.hours, zone: Int32(zone), from: first)
        #expect(found.days == expected.sorted())
        #expect(found.reads <= expected.count * 2 + 2)
    }

    @Test(
        "The time line is what is recorded, sorted and merged, and its gaps are those of the segments",
        arguments: (1...60).map(UInt64.init))
    func timeLine(seed: UInt64) throws {
        var maker = RecordingMaker(seed: seed)
        maker.stream(from: aTime, count: 300)
        let start = aTime + Int64.random(in: -100_000_000...3_000_000_000, using: &maker.generator)
        let range = start..<start + Int64.random(in: 1_000_000...86_400_000_000, using: &maker.generator)
        let found = RecordingTimeLine.stretches(maker.all, in: range)
        #expect(zip(found, found.dropFirst()).allSatisfy { $0.end < $1.start || $0.reason != .continues })
        #expect(found.allSatisfy { $0.start < $0.end && range.contains($0.start) && $0.end <= range.upperBound })
        for segment in maker.all where segment.end > range.lowerBound && segment.start < range.upperBound {
            let inner = max(segment.start, range.lowerBound)..<min(segment.end, range.upperBound)
            #expect(found.contains { $0.start <= inner.lowerBound && inner.upperBound <= $0.end })
        }
        // What is shown and not recorded is at most the tolerance of each joint.
        for (stretch, next) in zip(found, found.dropFirst()) {
            let last = try #require(maker.all.last { $0.start < next.start })
            #expect(stretch.end == min(last.end, range.upperBound))
            #expect(stretch.reason == last.reason)
        }
        let clients = found.map(\.client)
        #expect(zip(clients, clients.dropFirst()).allSatisfy { $0.end <= $1.start })
    }

    @Test("A gap keeps its reason, however short, and a deleted part is a gap of its own kind")
    func reasons() {
        var maker = RecordingMaker(seed: 2)
        maker.add(aTime, 10_000_000, .gap)
        maker.add(aTime + 10_040_000, 10_000_000, .continues)
        maker.add(aTime + 20_040_000, 5_000_000, .epoch)
        maker.add(aTime + 25_100_000, 5_000_000, .continues)
        maker.add(aTime + 90_000_000, 5_000_000, .stopped)
        let found = RecordingTimeLine.stretches(maker.all, in: aTime..<aTime + 100_000_000)
        #expect(found.map(\.client.reason) == [.gap, .deleted, .stopped])
        #expect(found.map { $0.start - aTime } == [0, 10_040_000, 90_000_000])
        #expect(found.map { $0.end - aTime } == [10_000_000, 30_100_000, 95_000_000])
        // The range ends it, not the recording.
        let cut = RecordingTimeLine.stretches(maker.all, in: aTime..<aTime + 93_000_000)
        #expect(cut.last?.reason == .continues)
    }

    @Test("The clock across the ends of a plan gives 1, 2 and 3, and nothing is found before its time (IV-E2)")
    func plan() throws {
        let day: Int64 = 86_400_000
        let start: Int64 = 1_700_000_000_000
        let plan = RecordingPlan.with {
            ($0.account, $0.device, $0.mode, $0.days) = ("home", "cam", .event, 7)
            ($0.startsMs, $0.endsMs, $0.sinceMs) = (start, start + 30 * day, start)
        }
        let head = RecordingHead.with {
            ($0.segments, $0.bytes) = (10, 10_000)
            ($0.firstUs, $0.endUs) = ((start + 5 * day) * 1000, (start + 30 * day) * 1000)
        }
        func state(_ days: Int64, _ head: RecordingHead? = head) -> RecordingPlanState {
            RecordingPlanState(plan: plan, head: head, now: start + days * day)
        }
        #expect(state(-1, nil).status == .expired)
        #expect(state(0, nil).status == .inUse && state(0, nil).playbackStart == 0)
        #expect(state(29).status == .inUse && state(29).playbackStart == (start + 22 * day) / 1000)
        #expect(state(30).status == .history && state(36).status == .history)
        #expect(state(37).status == .expired && state(37).playbackStart == 0)
        let channel = RecordingMaker(seed: 0).channel
        let answer = state(30).client(channel)
        #expect(answer.statusNumber == 2 && answer.curOrderPkgType == 2 && answer.playbackDays == 7)
        let json = try answer.jsonString()
        for name in ["playbackDays", "playbackStartTime", "curOrderPkgType", "curOrderStorageDays", "endTime"] {
            #expect(json.contains("\"\(name)\""), "\(json)")
        }
        // A segment is found until its days are over, and longer if it is protected.
        var maker = RecordingMaker(seed: 3)
        maker.add((start - day) * 1000, 10_000_000)
        maker.add((start + day) * 1000, 10_000_000)
        maker.add((start + 2 * day) * 1000, 10_000_000, protectedUntil: start + 50 * day)
        func found(_ days: Int64) -> [String] {
            let view = RecordingView(plan, of: channel, now: start + days * day)
            return RecordedSegment.all(maker.hours, in: view).map(\.record.object)
        }
        #expect(found(3) == ["s2", "s3"] && found(20) == ["s3"] && found(51).isEmpty)
        // A plan of another account hides nothing: what is there is the old account's own.
        let other = RecordedChannel(account: AccountID(unchecked: "old"), device: channel.device, source: 0)
        let view = RecordingView(plan, of: other, now: start + 20 * day)
        #expect(RecordedSegment.all(maker.hours, in: view).count == 3)
    }

    @Test("A damaged hour hides what is damaged, and nothing overflows")
    func damaged() {
        var maker = RecordingMaker(seed: 4)
        maker.add(aTime, 10_000_000)
        var hour = maker.hours[0]
        hour.segments.append(.with { ($0.startUs, $0.durationUs, $0.run) = (aTime, .max, 0) })
        hour.segments.append(.with { ($0.startUs, $0.durationUs, $0.run) = (aTime, 5, 77) })
        hour.segments.append(.with { ($0.startUs, $0.deleted, $0.durationUs) = (aTime, true, 5) })
        let found = RecordedSegment.all([hour], in: RecordingView())
        #expect(found.count == 2 && found.allSatisfy { $0.end - $0.start <= 3_600_000_000 })
    }
}
