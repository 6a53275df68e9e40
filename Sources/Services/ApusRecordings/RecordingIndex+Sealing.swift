import ApusCore
package import ApusMedia
import ApusStorage
import Foundation
import SwiftProtobuf

/// A segment whose object is stored.
package struct SealedSegment: Sendable {
    package var cut: CutSegment
    package var footer: SegmentFooter
    /// The last part of the object's name.
    package var object: String
    package var byteCount: Int
    package var place: SealPlace
    /// For how long it is kept, by the plan of now; 0 without one.
    package var days: UInt32

    package init(
        cut: CutSegment, footer: SegmentFooter, object: String, byteCount: Int, place: SealPlace, days: UInt32
    ) {
        (self.cut, self.footer, self.object) = (cut, footer, object)
        (self.byteCount, self.place, self.days) = (byteCount, place, days)
    }
}

/// Where the frames of a sealed segment belong.
package enum SealPlace: Sendable, Equatable {
    /// Behind the head that the cutter began with: at this position, nil if there was none.
    case behind(FramePosition?)
    /// In frames that were missing.
    case gap
}

extension RecordingIndex {
    /// The most ranges of missing frames that a head keeps; the oldest ones are dropped.
    static let gapsMax = 64
    /// The most segments of an hour. There are more only if runs end all the time, such as those of a camera whose
    /// configuration changes with every picture; they are not kept.
    static let hourSegmentsMax = 2_000
    /// The largest record of an hour, in bytes. What would make it larger is not kept, as above.
    static let hourByteCountMax = 200 << 10
    private static let attempts = 8

    /// UTC of a segment's first picture or sound, in microseconds.
    static func start(of footer: SegmentFooter) -> Int64 {
        footer.description.anchorMicroseconds &+ footer.startMicroseconds
    }

    /// Adds a stored segment to the index, in one step with the channel's head.
    ///
    /// The segment continues the recording after the head, or fills frames that were missing.
    ///
    /// - Returns: the new head, and whether the segment is kept (``hourSegmentsMax``); nil if the frames are in the
    ///   index already, or another node has sealed others.
    /// - Throws: 10021; 10030 if others change the records all the time.
    func add(
        _ segment: SealedSegment, of channel: RecordedChannel
    ) async throws(ApusError) -> (head: RecordingHead, isKept: Bool)? {
        let start = Self.start(of: segment.footer)
        let hourKey = RecordingRecords.hourKey(channel, Self.hour(of: start))
        return try await store.change(
            attempts: Self.attempts,
            otherwise: ApusError(.versionConflict, "the recordings of \(channel) are being changed by others")
        ) { () async throws(ApusError) -> ((head: RecordingHead, isKept: Bool)?, RecordStep?) in
            let known = try await head(of: channel)
            let found = try await store.record(RecordingRecords.hours, hourKey)
            var hour = found?.body ?? RecordingHour(channel, hour: Self.hour(of: start))
            hour.add(segment)
            let isKept = hour.hasRoom
            guard let new = Self.head(known?.body, with: segment, of: channel, isKept: isKept) else {
                return (nil, nil)
            }
            var writes = [
                try RecordingRecords.heads.put(
                    new, fence: .none, if: known.map { .version($0.version) } ?? .absent)
            ]
            if isKept {
                writes.append(
                    try RecordingRecords.hours.put(
                        hour, fence: .none, if: found.map { .version($0.version) } ?? .absent))
            }
            return ((new, isKept), RecordStep(writes))
        }.value
    }

    /// Moves a head over positions that need no segment.
    ///
    /// - Returns: the new head; nil if it is further.
    func advance(
        _ channel: RecordedChannel, over range: RecordedRange, isEnded: Bool
    ) async throws(ApusError) -> RecordingHead? {
        try await store.change(
            attempts: Self.attempts,
            otherwise: ApusError(.versionConflict, "the recordings of \(channel) are being changed by others")
        ) { () async throws(ApusError) -> (RecordingHead?, RecordStep?) in
            let known = try await head(of: channel)
            var head = known?.body ?? RecordingHead(channel)
            guard head.continues(at: range) else { return (nil, nil) }
            (head.epoch, head.sequence, head.ended) = (range.epoch, range.last, isEnded)
            let write = try RecordingRecords.heads.put(
                head, fence: .none, if: known.map { .version($0.version) } ?? .absent)
            return (head, RecordStep(write))
        }.value
    }

    /// The head after a segment; nil if it has these frames.
    package static func head(
        _ known: RecordingHead?, with segment: SealedSegment, of channel: RecordedChannel, isKept: Bool = true
    ) -> RecordingHead? {
        var head = known ?? RecordingHead(channel)
        let (cut, footer) = (segment.cut, segment.footer)
        switch segment.place {
        case .behind(let position):
            guard known?.position == position, position.map({ cut.range.isBehind($0) }) ?? true else { return nil }
            head.gaps += cut.gaps.map { RecordingGap($0) }
            head.gaps = head.gaps.suffix(gapsMax)
            (head.epoch, head.sequence) = (cut.range.epoch, cut.range.last)
            head.run = RecordingRun(footer.description)
            (head.clockUs, head.runBaseUs) = (cut.clockMicroseconds, cut.baseMicroseconds)
            (head.ended, head.fragment) = (cut.isEnded, cut.nextFragment)
            head.runEnded = cut.end != .continues
            head.clockEnded = [.clock, .epoch, .stopped].contains(cut.end)
        case .gap:
            guard let index = head.gaps.firstIndex(where: { $0.has(cut.range) }) else { return nil }
            head.gaps.replaceSubrange(index...index, with: head.gaps[index].without(cut.range))
        }
        guard isKept else { return head }
        let start = start(of: footer)
        head.firstUs = head.segments == 0 ? start : min(head.firstUs, start)
        head.endUs = max(head.endUs, start + footer.durationMicroseconds)
        if segment.days > 0 { head.days = segment.days }
        head.bytes += UInt64(segment.byteCount)
        head.segments += 1
        return head
    }
}

extension RecordedRange {
    /// True if the whole range is behind a position.
    fileprivate func isBehind(_ position: FramePosition) -> Bool {
        FramePosition(epoch: epoch, sequence: first) > position
    }
}

extension RecordingHead {
    init(_ channel: RecordedChannel) {
        self.init()
        (account, device, source) = (channel.account.rawValue, channel.device.rawValue, UInt32(channel.source))
    }

    package var position: FramePosition { FramePosition(epoch: epoch, sequence: sequence) }

    /// True if the range follows the sealed frames.
    fileprivate func continues(at range: RecordedRange) -> Bool {
        epoch == range.epoch && sequence < range.last && range.first <= sequence + 1
    }
}

extension RecordingGap {
    init(_ range: RecordedRange) {
        self.init()
        (epoch, first, last) = (range.epoch, range.first, range.last)
    }

    fileprivate func has(_ range: RecordedRange) -> Bool {
        epoch == range.epoch && first <= range.first && range.last <= last
    }

    /// What is missing after a part of it was filled.
    fileprivate func without(_ range: RecordedRange) -> [RecordingGap] {
        var rest: [RecordingGap] = []
        if first < range.first {
            rest.append(RecordingGap(RecordedRange(epoch: epoch, first: first, last: range.first - 1)))
        }
        if range.last < last {
            rest.append(RecordingGap(RecordedRange(epoch: epoch, first: range.last + 1, last: last)))
        }
        return rest
    }
}

extension RecordingRun {
    init(_ description: SegmentDescription) {
        self.init()
        id = Data(description.run.bytes)
        tracks = description.tracks.map { RecordingTrack($0) }
    }
}

extension RecordingHour {
    init(_ channel: RecordedChannel, hour: Int64) {
        self.init()
        (account, device, source) = (channel.account.rawValue, channel.device.rawValue, UInt32(channel.source))
        self.hour = hour
    }

    /// True if the record may be as large as it is.
    fileprivate var hasRoom: Bool {
        guard segments.count <= RecordingIndex.hourSegmentsMax, let bytes: [UInt8] = try? serializedBytes() else {
            return false
        }
        return bytes.count <= RecordingIndex.hourByteCountMax
    }

    /// Adds a segment in the order of the times.
    mutating func add(_ sealed: SealedSegment) {
        let (cut, footer) = (sealed.cut, sealed.footer)
        let run = RecordingRun(footer.description)
        let index = runs.firstIndex { $0.id == run.id } ?? runs.count
        if index == runs.count { runs.append(run) }
        let segment = RecordingSegment.with {
            $0.startUs = RecordingIndex.start(of: footer)
            $0.durationUs = UInt64(max(0, footer.durationMicroseconds))
            ($0.object, $0.bytes) = (sealed.object, UInt64(sealed.byteCount))
            ($0.epoch, $0.first, $0.last) = (cut.range.epoch, cut.range.first, cut.range.last)
            ($0.run, $0.initBytes) = (UInt32(index), UInt32(footer.initByteCount))
            ($0.mediaEnd, $0.mediaStartUs) = (UInt64(footer.mediaRange.upperBound), footer.startMicroseconds)
            $0.end = UInt32(cut.end.rawValue)
            $0.startsWithKey = footer.fragments.first.map { footer.startsWithKey($0) } ?? false
        }
        let place = segments.lastIndex { $0.startUs <= segment.startUs } ?? -1
        segments.insert(segment, at: place + 1)
    }
}
