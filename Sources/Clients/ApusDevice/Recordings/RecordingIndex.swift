import ApusClient
import DequeModule

/// The files of recordings, by their times (docs/recordings.md).
///
/// Files that follow each other within ``gapMax`` are one recording. Pure value. A lookup takes logarithmic time, a
/// list time in proportion to all files of the source.
package struct RecordingIndex: Sendable {
    /// One file. Times are Unix milliseconds.
    package struct File: Sendable, Hashable {
        package var start: Int64
        package var end: Int64
        package var byteCount: Int64
        /// It is still being written.
        package var isOpen: Bool

        package init(start: Int64, end: Int64, byteCount: Int64, isOpen: Bool = false) {
            (self.start, self.end, self.byteCount, self.isOpen) = (start, end, byteCount, isOpen)
        }
    }

    /// A shorter time without a file is no gap.
    package static let gapMax: Int64 = 2000

    /// By source, in the order of their starts.
    private var files: [UInt16: Deque<File>] = [:]
    /// The size of all files.
    package private(set) var byteCount: Int64 = 0

    package init() {}

    /// Adds a file, or replaces the one with the same start.
    package mutating func put(_ file: File, of source: UInt16) {
        var list = files[source] ?? []
        let index = Self.firstIndex(in: list) { $0.start >= file.start }
        if index < list.count, list[index].start == file.start {
            byteCount -= list[index].byteCount
            list[index] = file
        } else {
            list.insert(file, at: index)
        }
        byteCount += file.byteCount
        files[source] = list
    }

    package mutating func remove(start: Int64, of source: UInt16) {
        guard var list = files[source] else { return }
        let index = Self.firstIndex(in: list) { $0.start >= start }
        guard index < list.count, list[index].start == start else { return }
        byteCount -= list.remove(at: index).byteCount
        files[source] = list
    }

    package func hasFile(of source: UInt16, startingAt start: Int64) -> Bool {
        guard let list = files[source] else { return false }
        let index = Self.firstIndex(in: list) { $0.start >= start }
        return index < list.count && list[index].start == start
    }

    /// The oldest file of all sources that is not being written.
    package var oldest: (source: UInt16, file: File)? {
        files.compactMap { source, list in list.first { !$0.isOpen }.map { (source: source, file: $0) } }
            .min { ($0.file.start, $0.source) < ($1.file.start, $1.source) }
    }

    /// The recordings that have a part between two times, oldest first, as their starts and ends.
    package func recordings(of source: UInt16, _ times: ClosedRange<Int64>, limit: Int) -> [ClosedRange<Int64>] {
        guard let list = files[source], limit > 0 else { return [] }
        var found: [ClosedRange<Int64>] = []
        var index = 0
        while index < list.count {
            let run = run(in: list, from: index)
            if run.times.lowerBound > times.upperBound { break }
            if run.times.upperBound >= times.lowerBound { found.append(run.times) }
            if found.count == limit { break }
            index = run.next
        }
        return found
    }

    /// The file that has this time; if several do, the one that began last.
    package func file(of source: UInt16, at time: Int64) -> File? {
        guard let list = files[source] else { return nil }
        let after = Self.firstIndex(in: list) { $0.start > time }
        // Files overlap where the clock was set back; few do.
        for index in stride(from: after - 1, through: max(0, after - Self.overlapMax), by: -1)
        where list[index].end >= time { return list[index] }
        // In a short time without a file, the next one.
        return after < list.count && list[after].start - time <= Self.gapMax ? list[after] : nil
    }
    private static let overlapMax = 128

    /// The file that goes on where this one ends.
    package func file(of source: UInt16, after file: File) -> File? {
        guard let list = files[source] else { return nil }
        let index = Self.firstIndex(in: list) { $0.start > file.start && $0.start >= file.end - Self.gapMax }
        return index < list.count && list[index].start <= file.end + Self.gapMax ? list[index] : nil
    }

    private func run(in list: Deque<File>, from first: Int) -> (times: ClosedRange<Int64>, next: Int) {
        var end = list[first].end
        var index = first + 1
        while index < list.count, list[index].start <= end + Self.gapMax {
            end = max(end, list[index].end)
            index += 1
        }
        return (list[first].start...end, index)
    }

    /// - Parameter isAtLeast: false for the files before, true for those behind.
    private static func firstIndex(in list: Deque<File>, where isAtLeast: (File) -> Bool) -> Int {
        var (low, high) = (0, list.count)
        while low < high {
            let middle = (low + high) / 2
            if isAtLeast(list[middle]) { high = middle } else { low = middle + 1 }
        }
        return low
    }
}
