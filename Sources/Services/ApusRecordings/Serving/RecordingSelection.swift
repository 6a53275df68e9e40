/// The segments of one play list, and where the next one begins (IV-E5).
///
/// A client asks for a range, and asks again from the returned end on until the end flag is set. Such a chain has each
/// segment of the range once: a play list has the segments that end behind its start, up to its end, and only the last
/// one of the chain has in addition a segment that reaches over the end of the range.
///
/// Pure.
package struct RecordingSelection: Sendable, Hashable {
    /// The longest play list, in seconds.
    package static let secondsMax: Int64 = 86_400

    /// In the order of their times.
    package var segments: [RecordedSegment]
    /// Unix seconds: where the next ask begins.
    package var end: Int64
    /// True: the range has nothing behind ``end``.
    package var isEnd: Bool

    /// - Parameters:
    ///   - known: the segments in the order of their times.
    ///   - range: Unix seconds.
    ///   - countMax: more segments are left for the next ask, unless they end within the same second.
    ///   - knownUntil: Unix seconds: the segments that begin before are all among `known`; nil: there are no others.
    package init(
        _ known: [RecordedSegment], in range: Range<Int64>, countMax: Int, knownUntil: Int64? = nil
    ) {
        let wanted = known.filter {
            $0.end > range.lowerBound * 1_000_000 && $0.start < range.upperBound * 1_000_000
        }
        // What is not known ends behind this time.
        var limit = min(range.upperBound, knownUntil ?? .max)
        if let first = wanted.first {
            let start = max(range.lowerBound, first.start.floored(by: 1_000_000))
            limit = min(limit, start + Self.secondsMax)
        }
        let ends = wanted.map { $0.endSecond }.sorted()
        if ends.count > max(1, countMax) { limit = min(limit, ends[max(1, countMax) - 1]) }
        let isAll = limit >= range.upperBound
        segments = isAll ? wanted : wanted.filter { $0.endSecond <= limit }
        // A segment may be longer than what one play list may have. It is in it all the same.
        if segments.isEmpty, let shortest = ends.first, !isAll, knownUntil.map({ shortest <= $0 }) ?? true {
            limit = shortest
            segments = wanted.filter { $0.endSecond <= limit }
        }
        (end, isEnd) = (limit, isAll || (segments.count == wanted.count && knownUntil == nil))
        if isEnd { end = range.upperBound }
    }
}

extension RecordedSegment {
    /// The first whole second at which it has ended.
    fileprivate var endSecond: Int64 { -(-end).floored(by: 1_000_000) }
}
