package import ApusCore
package import ApusMedia
package import ApusObjectStore
package import ApusRecordingLog
import ApusStorage
import NIOCore

/// Turns the frames of the log into segments: objects of the store, and entries of the index.
///
/// It keeps nothing between two calls: what is sealed is what the head of the channel says. So a node that becomes the
/// owner of a channel, or starts again, goes on where the head ends, with the frames of its own log. The object is
/// stored first, then the index changes, then the log may forget the frames. Whichever step is the last one, the next
/// call goes on, and of two nodes that seal the same frames one succeeds, because the head changes under its version.
///
/// Isolation: immutable; one call for a channel at a time.
package struct RecordingSealer: Sendable {
    /// What a call has done.
    package struct Outcome: Sendable {
        package var segmentCount = 0
        package var byteCount = 0
        /// Frames that are not kept, because the hour has too many segments.
        package var droppedCount = 0
        /// Everything up to this position is in the index; nil if nothing is.
        package var sealed: FramePosition?

        package init() {}
    }

    private let log: RecordingLog
    private let objects: any ObjectStore
    private let index: RecordingIndex
    private let limits: RecordingCutter.Limits

    package init(
        log: RecordingLog, objects: any ObjectStore, index: RecordingIndex, limits: RecordingCutter.Limits
    ) {
        (self.log, self.objects, self.index, self.limits) = (log, objects, index, limits)
    }

    /// The bytes that are read from the log at once.
    static let readByteCount = 8 << 20
    /// The frames before a gap of which the configurations are read. A node logs some each time with the first of the
    /// frames of a turn.
    private static let preparationCount: UInt64 = 512
    /// How often a call begins again because another node has sealed the same frames.
    private static let restartsMax = 4

    /// Seals the frames of a channel behind its head.
    ///
    /// - Parameter end: nil: only whole segments. Otherwise all frames, and why the last segment ends.
    /// - Throws: the errors of the log, the object store and the records. What was sealed before stays.
    package func seal(_ channel: RecordedChannel, end: SegmentEnd?) async throws(ApusError) -> Outcome {
        var outcome = Outcome()
        for _ in 0..<Self.restartsMax {
            if try await sealOnce(channel, end, &outcome) { break }
        }
        try await release(channel, &outcome)
        return outcome
    }

    /// Fills what is missing with the frames of this node, and lets the log forget what is in the index.
    package func release(_ channel: RecordedChannel, _ outcome: inout Outcome) async throws(ApusError) {
        guard let head = try await index.head(of: channel)?.body else { return }
        for gap in head.gaps { try await fill(gap, of: channel, &outcome) }
        log.release(channel.description, through: head.position)
    }

    /// Seals the frames of a gap that this node's log has.
    private func fill(
        _ gap: RecordingGap, of channel: RecordedChannel, _ outcome: inout Outcome
    ) async throws(ApusError) {
        let name = channel.description
        let logged = log.channels.first { $0.name == name }
        guard let first = logged?.first, first.epoch <= gap.epoch else { return }
        var cutter = RecordingCutter(label: name, from: nil, limits: limits)
        // Some frames before the gap say how to decode it.
        let start = FramePosition(epoch: gap.epoch, sequence: gap.first)
        var read = FramePosition(
            epoch: gap.epoch, sequence: gap.first - min(gap.first, Self.preparationCount)
        ).predecessor
        let end = FramePosition(epoch: gap.epoch, sequence: gap.last)
        while true {
            let frames = try await log.read(name, after: read, byteCountMax: Self.readByteCount)
            for frame in frames where frame.position.epoch == gap.epoch && frame.position <= end {
                let recorded = try RecordedFrame(
                    decoding: frame.content, receivedMicroseconds: frame.receivedMicroseconds)
                if frame.position < start { cutter.prepare(recorded) } else { cutter.add(recorded) }
            }
            guard let last = frames.last?.position, last < end else { break }
            read = last
        }
        _ = cutter.finish(.gap)
        for cut in cutter.takeFinished() {
            guard try await store(cut, of: channel, .gap, &outcome) else { return }
        }
    }

    /// Returns false if the head was changed by another node, so the frames must be cut again.
    private func sealOnce(
        _ channel: RecordedChannel, _ end: SegmentEnd?, _ outcome: inout Outcome
    ) async throws(ApusError) -> Bool {
        let head = try await index.head(of: channel)?.body
        var position = head?.position
        outcome.sealed = position
        var cutter = RecordingCutter(label: channel.description, from: head, limits: limits)
        var read = position
        while true {
            let frames = try await log.read(channel.description, after: read, byteCountMax: Self.readByteCount)
            guard let last = frames.last?.position else { break }
            read = last
            for frame in frames {
                cutter.add(
                    try RecordedFrame(decoding: frame.content, receivedMicroseconds: frame.receivedMicroseconds))
            }
            for cut in cutter.takeFinished() {
                guard try await store(cut, of: channel, .behind(position), &outcome) else { return false }
                position = outcome.sealed
            }
        }
        guard let end, let last = cutter.position, position.map({ last > $0 }) ?? true else { return true }
        let rest = cutter.finish(end)
        for cut in cutter.takeFinished() {
            guard try await store(cut, of: channel, .behind(position), &outcome) else { return false }
            position = outcome.sealed
        }
        if let rest, let head = try await index.advance(channel, over: rest, isEnded: cutter.isEnded) {
            outcome.sealed = head.position
        }
        return true
    }

    /// Stores a segment and adds it to the index. Returns false if the head has changed meanwhile.
    private func store(
        _ cut: CutSegment, of channel: RecordedChannel, _ place: SealPlace, _ outcome: inout Outcome
    ) async throws(ApusError) -> Bool {
        var writer = try SegmentWriter(cut.description)
        for frame in cut.frames { try writer.add(frame) }
        let segment = try writer.finish(until: cut.next, end: cut.end)
        let start = RecordingIndex.start(of: segment.footer)
        let object = try await put(segment.bytes, cut, of: channel, hour: RecordingIndex.hour(of: start))
        let plan = try await index.plan(of: channel.device, channel.source)?.body
        let days = plan?.account == channel.account.rawValue ? plan?.days ?? 0 : 0
        let sealed = SealedSegment(
            cut: cut, footer: segment.footer, object: object, byteCount: segment.bytes.readableBytes, place: place,
            days: days)
        guard let (head, isKept) = try await index.add(sealed, of: channel) else { return false }
        if place != .gap { outcome.sealed = head.position }
        guard isKept else {
            outcome.droppedCount += cut.frames.count
            try await objects.delete(
                try RecordingIndex.objectName(channel, hour: RecordingIndex.hour(of: start), object: object))
            return true
        }
        outcome.segmentCount += 1
        outcome.byteCount += segment.bytes.readableBytes
        return true
    }

    /// Stores the object. Another one of its name is left by a node that died before it changed the index, and may have
    /// ended elsewhere: this one then gets another name.
    ///
    /// - Returns: the last part of the object's name.
    private func put(
        _ bytes: ByteBuffer, _ cut: CutSegment, of channel: RecordedChannel, hour: Int64
    ) async throws(ApusError) -> String {
        let base = "\(cut.range.epoch)-\(cut.range.first)"
        for attempt in 0..<Self.namesMax {
            let object = attempt == 0 ? base : "\(base)-\(cut.range.last)-\(attempt)"
            let name = try RecordingIndex.objectName(channel, hour: hour, object: object)
            switch try await objects.put(name, ObjectContent(bytes)) {
            case .stored, .exists(_, isSame: true): return object
            case .exists(_, isSame: false): continue
            }
        }
        throw ApusError(.versionConflict, "other objects have the names of a segment of \(channel)")
    }
    /// The names that are tried.
    private static let namesMax = 8
}
