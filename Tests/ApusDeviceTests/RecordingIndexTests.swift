import ApusClient
import ApusCore
import ApusDevice
import Testing

@Suite("The files of recordings by their times, and the list of them (IV-C5)")
struct RecordingIndexTests {
    private func index(_ times: [ClosedRange<Int64>]) -> RecordingIndex {
        var index = RecordingIndex()
        for range in times { index.put(.init(start: range.lowerBound, end: range.upperBound, byteCount: 10), of: 0) }
        return index
    }

    @Test("Files that follow each other are one recording; a gap of more than two seconds parts two")
    func merged() {
        let index = index([0...60_000, 60_010...120_000, 122_000...180_000, 182_001...200_000])
        #expect(index.recordings(of: 0, 0...1_000_000, limit: 9) == [0...180_000, 182_001...200_000])
        #expect(index.recordings(of: 0, 180_000...182_000, limit: 9) == [0...180_000])
        #expect(index.recordings(of: 0, 180_001...182_000, limit: 9).isEmpty)
        #expect(index.recordings(of: 0, 0...1_000_000, limit: 1) == [0...180_000])
        #expect(index.recordings(of: 1, 0...1_000_000, limit: 9).isEmpty)
        #expect(index.byteCount == 40)
    }

    @Test("A time is in the file that has it, and in a short time without a file in the next one")
    func places() throws {
        let index = index([0...60_000, 61_000...120_000, 300_000...310_000])
        #expect(index.file(of: 0, at: 0)?.start == 0)
        #expect(index.file(of: 0, at: 60_000)?.start == 0)
        #expect(index.file(of: 0, at: 60_500)?.start == 61_000)
        #expect(index.file(of: 0, at: 200_000) == nil)
        let first = try #require(index.file(of: 0, at: 5))
        let second = try #require(index.file(of: 0, after: first))
        #expect(second.start == 61_000 && index.file(of: 0, after: second) == nil)
    }

    @Test("Where the clock was set back, a time is in the file that began last, and playing goes forward in time")
    func overlapping() throws {
        let index = index([0...60_000, 30_000...90_000, 60_005...120_000, 90_010...150_000])
        #expect(index.file(of: 0, at: 40_000)?.start == 30_000)
        #expect(index.recordings(of: 0, 0...1_000_000, limit: 9) == [0...150_000])
        var file = try #require(index.file(of: 0, at: 0))
        var starts = [file.start]
        while let next = index.file(of: 0, after: file) {
            starts.append(next.start)
            file = next
        }
        #expect(starts == [0, 60_005])
    }

    @Test("The oldest file of all sources is removed first, and never one that is written")
    func oldest() {
        var index = RecordingIndex()
        index.put(.init(start: 10, end: 10, byteCount: 5, isOpen: true), of: 0)
        index.put(.init(start: 30, end: 40, byteCount: 5), of: 0)
        index.put(.init(start: 20, end: 25, byteCount: 5), of: 7)
        #expect(index.oldest?.source == 7)
        index.remove(start: 20, of: 7)
        #expect(index.oldest?.file.start == 30 && index.byteCount == 10)
        index.remove(start: 30, of: 0)
        #expect(index.oldest == nil && index.byteCount == 5)
        // The same file again, now complete.
        index.put(.init(start: 10, end: 90, byteCount: 50), of: 0)
        #expect(index.byteCount == 50 && index.oldest?.file.end == 90)
    }

    @Test("A list of a later version is refused with 21037, and one that is none, or not in order, with 21033")
    func lists() throws {
        func code(_ json: String) -> ErrorCode? {
            do throws(ApusError) {
                _ = try PlaybackMessages.List(json: json)
                return nil
            } catch {
                return error.code
            }
        }
        let list = PlaybackMessages.List([1...2, 2...3], more: false)
        #expect(try PlaybackMessages.List(json: try PlaybackMessages.json(list)) == list)
        #expect(code(#"{"version":2,"list":"of another kind"}"#) == .recordingListVersion)
        for bad in [
            "", "[]", "{}", #"{"version":1}"#, #"{"version":1,"list":[[1]],"more":false}"#,
            #"{"version":1,"list":[[2,1]],"more":false}"#, #"{"version":1,"list":[[5,6],[1,2]],"more":false}"#,
            #"{"version":1,"list":[[-1,2]],"more":false}"#, #"{"version":1,"list":[[1,9e18]],"more":false}"#,
            #"{"version":1,"list":[[1,2.5]],"more":false}"#, #"{"version":"1","list":[],"more":false}"#,
        ] {
            #expect(code(bad) == .recordingListInvalid, "\(bad)")
        }
    }
}
