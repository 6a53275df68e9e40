import ApusCore
import ApusMedia
import ApusRecordings
import Foundation
import SwiftProtobuf
import Testing

@Suite("Play lists of recordings (IV-E5)")
struct RecordingPlayListTests {
    @Test(
        "A chain of asks has each segment of the range exactly once, whatever the bounds",
        arguments: (1...200).map(UInt64.init))
    func chain(seed: UInt64) throws {
        var maker = RecordingMaker(seed: seed)
        maker.stream(from: aTime, count: 400, longest: seed % 3 == 0 ? 900_000 : 60_000_000)
        let all = maker.all
        let first = aTime / 1_000_000 + Int64.random(in: -50...4000, using: &maker.generator)
        let range = first..<first + Int64.random(in: 1...400_000, using: &maker.generator)
        let wanted = all.filter {
            $0.end > range.lowerBound * 1_000_000 && $0.start < range.upperBound * 1_000_000
        }
        let countMax = Int.random(in: 1...60, using: &maker.generator)
        let pageHours = Int.random(in: 2...RecordingIndex.hoursMax, using: &maker.generator)
        var (start, found, asks) = (range.lowerBound, [RecordedSegment](), 0)
        while asks < 2000 {
            // A page of the index, as the reader has it.
            let known = all.filter { $0.hour >= RecordingIndex.hour(of: start * 1_000_000) - 1 }
            let last = Set(known.map(\.hour)).sorted().prefix(pageHours).last ?? 0
            let page = known.filter { $0.hour <= last }
            let until = page.count == known.count ? nil : (last + 1) * 3600
            let ask = RecordingSelection(page, in: start..<range.upperBound, countMax: countMax, knownUntil: until)
            found += ask.segments
            asks += 1
            // What a file of this address has is what the answer said.
            let place = RecordingAddress(
                account: maker.channel.account, source: 0, start: start, end: ask.end, isGrowing: false,
                isEnd: ask.isEnd)
            #expect(all.filter(place.has) == ask.segments)
            if ask.isEnd {
                #expect(ask.end == range.upperBound)
                break
            }
            try #require(ask.end > start, "the chain must go on")
            start = ask.end
        }
        #expect(found.map(\.record.object).sorted() == wanted.map(\.record.object).sorted())
        #expect(Set(found.map(\.record.object)).count == found.count)
    }

    @Test("One play list has at most a day, from its first segment on")
    func day() {
        var maker = RecordingMaker(seed: 5)
        for hour in 0..<60 { maker.add(aTime + Int64(hour) * 3_600_000_000, 10_000_000) }
        let start = aTime / 1_000_000 - 1000
        let ask = RecordingSelection(maker.all, in: start..<start + 400_000, countMax: 1000)
        #expect(ask.segments.count == 24 && !ask.isEnd)
        let empty = RecordingSelection([], in: start..<start + 400_000, countMax: 1000)
        #expect(empty.segments.isEmpty && empty.isEnd && empty.end == start + 400_000)
    }

    @Test("The text follows RFC 8216: heads, discontinuities and dates where a run begins, and after a gap")
    func text() {
        var maker = RecordingMaker(seed: 6)
        maker.newRun()
        maker.add(aTime, 10_040_000)
        maker.add(aTime + 10_040_000, 6_000_000, .epoch)
        maker.newRun()
        maker.add(aTime + 16_100_000, 4_000_000)
        // Something of the run was deleted.
        maker.add(aTime + 40_000_000, 4_000_000, .stopped)
        let hour = RecordingIndex.hour(of: aTime)
        let list = HLSPlayList(maker.all, .complete, start: aTime + 2_500_000)
        #expect(
            list.text == """
                #EXTM3U
                #EXT-X-VERSION:7
                #EXT-X-TARGETDURATION:11
                #EXT-X-MEDIA-SEQUENCE:0
                #EXT-X-PLAYLIST-TYPE:VOD
                #EXT-X-INDEPENDENT-SEGMENTS
                #EXT-X-START:TIME-OFFSET=2.500000,PRECISE=YES
                #EXT-X-MAP:URI="\(hour)-s1.mp4",BYTERANGE="100@0"
                #EXT-X-PROGRAM-DATE-TIME:2026-10-27T22:13:20.000Z
                #EXTINF:10.040000,
                #EXT-X-BYTERANGE:800@100
                \(hour)-s1.mp4
                #EXTINF:6.000000,
                #EXT-X-BYTERANGE:800@100
                \(hour)-s2.mp4
                #EXT-X-DISCONTINUITY
                #EXT-X-MAP:URI="\(hour)-s3.mp4",BYTERANGE="100@0"
                #EXT-X-PROGRAM-DATE-TIME:2026-10-27T22:13:36.100Z
                #EXTINF:4.000000,
                #EXT-X-BYTERANGE:800@100
                \(hour)-s3.mp4
                #EXT-X-DISCONTINUITY
                #EXT-X-PROGRAM-DATE-TIME:2026-10-27T22:14:00.000Z
                #EXTINF:4.000000,
                #EXT-X-BYTERANGE:800@100
                \(hour)-s4.mp4
                #EXT-X-ENDLIST

                """)
        var segments = maker.all
        segments[1].record.startsWithKey = false
        let growing = HLSPlayList(segments, .growing(isEnded: false), start: aTime).text
        #expect(!growing.contains("INDEPENDENT") && !growing.contains("ENDLIST") && !growing.contains("EXT-X-START"))
        #expect(growing.contains("PLAYLIST-TYPE:EVENT") && growing.contains("TARGETDURATION:60\n"))
        #expect(HLSPlayList(segments, .growing(isEnded: true), start: aTime).text.hasSuffix("#EXT-X-ENDLIST\n"))
    }

    @Test("The name of a segment gives its hour and its object, and other names give nothing")
    func names() {
        for (hour, object) in [(498_094, "s1"), (-3, "a-b=2F.x"), (0, "1.mp4")] as [(Int64, String)] {
            let place = HLSPlayList.place(named: HLSPlayList.name(hour: hour, object: object))
            #expect(place?.hour == hour && place?.object == object)
        }
        for name in ["", ".mp4", "1.mp4", "-.mp4", "1-.mp4", "x-s.mp4", "1-s", "99999999999-s.mp4", "1-s.mp4x"] {
            #expect(HLSPlayList.place(named: name) == nil, "\(name)")
        }
    }

    @Test("A date is the one that Foundation computes", arguments: (1...50).map(UInt64.init))
    func dates(seed: UInt64) throws {
        var generator = SeededRandom(seed: seed)
        let formatter = DateFormatter()
        formatter.locale = Locale(identifier: "en_US_POSIX")
        formatter.timeZone = TimeZone(secondsFromGMT: 0)
        formatter.dateFormat = "yyyyMMddHHmmss"
        for _ in 0..<50 {
            let seconds = Int64.random(in: -2_000_000_000...90_000_000_000, using: &generator)
            let date = Date(timeIntervalSince1970: Double(seconds))
            #expect(CivilTime(seconds: seconds).digits == formatter.string(from: date))
        }
        #expect(CivilTime.utc(microseconds: 951_782_399_999_999) == "2000-02-28T23:59:59.999Z")
    }

    @Test("An address is read as it was written, and nothing else is one")
    func address() {
        let place = RecordingAddress(
            account: AccountID(unchecked: "home"), source: 700, start: 1_700_000_000, end: 0, isGrowing: true,
            isEnd: false)
        #expect(RecordingAddress(bytes: place.bytes) == place)
        for count in 0..<21 { #expect(RecordingAddress(bytes: Array(place.bytes.prefix(count))) == nil) }
        var other = place.bytes
        other[0] = 2
        #expect(RecordingAddress(bytes: other) == nil)
        #expect(RecordingAddress(bytes: place.bytes + [0xff]) == nil)
    }
}
