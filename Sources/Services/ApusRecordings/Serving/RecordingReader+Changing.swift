package import ApusCore
import ApusObjectStore
import ApusStorage

/// What a change of the recordings of a range has done.
package struct RecordingChange: Sendable, Hashable {
    package var count: UInt32 = 0
    package var bytes: UInt64 = 0
    /// Segments that stay because they are protected.
    package var protectedCount: UInt32 = 0
    /// Unix seconds: the range is done up to here.
    package var end: Int64
    /// The whole range is done.
    package var isDone: Bool
}

// What clients delete and protect. An hour changes together with the head of its channel, under the versions of both,
// so that its counts are exact while segments are sealed.
extension RecordingReader {
    /// Deletes the segments of a range that are not protected, also those that reach into it.
    ///
    /// They are marked, and nobody finds them any more when this returns. ``sweep(countMax:)`` deletes their objects.
    ///
    /// - Parameter range: Unix seconds. At most ``RecordingIndex/hoursMax`` hours with recordings are done at once.
    /// - Throws: 10030 if others change the hours all the time.
    package func delete(_ channel: RecordedChannel, _ range: Range<Int64>) async throws(ApusError) -> RecordingChange {
        let now = now()
        return try await change(channel, range) { segment, change in
            guard segment.protectedUntilMs <= now else {
                change.protectedCount += 1
                return nil
            }
            var deleted = segment
            deleted.deleted = true
            return deleted
        }
    }

    /// Keeps the segments of a range until a time, in Unix milliseconds; 0 ends their protection.
    ///
    /// - Throws: 10030 if others change the hours all the time.
    package func protect(
        _ channel: RecordedChannel, _ range: Range<Int64>, until: Int64
    ) async throws(ApusError) -> RecordingChange {
        try await change(channel, range) { segment, _ in
            var kept = segment
            kept.protectedUntilMs = until
            return kept
        }
    }

    /// - Parameter apply: the new segment; nil: it stays.
    private func change(
        _ channel: RecordedChannel, _ range: Range<Int64>,
        _ apply: (RecordingSegment, inout RecordingChange) -> RecordingSegment?
    ) async throws(ApusError) -> RecordingChange {
        let micro = range.microseconds
        let view = try await view(of: channel)
        let hours = try await index.hours(
            of: channel, RecordingIndex.hour(of: micro.lowerBound) - 1...RecordingIndex.hour(of: micro.upperBound))
        var done = RecordingChange(end: range.upperBound, isDone: hours.count < RecordingIndex.hoursMax)
        if !done.isDone, let last = hours.last { done.end = min(range.upperBound, (last.body.hour + 1) * 3600) }
        for hour in hours {
            let changed = try await change(hour.key, of: channel) { segment, change in
                guard view.shows(segment), segment.endUs > micro.lowerBound, segment.startUs < micro.upperBound else {
                    return nil
                }
                return apply(segment, &change)
            }
            done.count += changed.count
            done.bytes += changed.bytes
            done.protectedCount += changed.protectedCount
        }
        return done
    }

    /// Changes the segments of one hour.
    ///
    /// - Parameter apply: the new segment; nil: it stays.
    func change(
        _ key: OrderedKey, of channel: RecordedChannel,
        _ apply: (RecordingSegment, inout RecordingChange) -> RecordingSegment?
    ) async throws(ApusError) -> RecordingChange {
        try await change { () async throws(ApusError) -> (RecordingChange, RecordStep?) in
            var change = RecordingChange(end: 0, isDone: true)
            guard let record = try await index.store.record(RecordingRecords.hours, key) else {
                return (change, nil)
            }
            var (hour, gone) = (record.body, [RecordingSegment]())
            for place in hour.segments.indices {
                guard let new = apply(hour.segments[place], &change), new != hour.segments[place] else { continue }
                change.count += 1
                change.bytes += new.bytes
                if new.deleted { gone.append(new) }
                hour.segments[place] = new
            }
            guard change.count > 0 else { return (change, nil) }
            var writes = [try RecordingRecords.hours.put(hour, fence: record.fence, if: .version(record.version))]
            if !gone.isEmpty, let head = try await headWrite(of: channel, without: gone, hour) { writes.append(head) }
            return (change, RecordStep(writes))
        }
    }

    /// The head without these segments.
    private func headWrite(
        of channel: RecordedChannel, without gone: [RecordingSegment], _ hour: RecordingHour
    ) async throws(ApusError) -> RecordWrite? {
        guard let record = try await index.head(of: channel) else { return nil }
        var head = record.body
        head.segments -= min(head.segments, UInt64(gone.count))
        head.bytes -= min(head.bytes, gone.reduce(0) { $0 + $1.bytes })
        if gone.contains(where: { $0.startUs <= head.firstUs }) {
            head.firstUs = try await firstStart(of: channel, from: hour) ?? head.endUs
        }
        return try RecordingRecords.heads.put(head, fence: record.fence, if: .version(record.version))
    }

    /// The start of the oldest segment of an hour, as it will be, or of a later one.
    private func firstStart(of channel: RecordedChannel, from hour: RecordingHour) async throws(ApusError) -> Int64? {
        if let first = hour.segments.filter({ !$0.deleted }).map(\.startUs).min() { return first }
        var token: RecordToken?
        repeat {
            let page = try await index.store.page(
                RecordScan(
                    RecordingRecords.hours.name, from: RecordingRecords.hourKey(channel, hour.hour + 1),
                    below: channel.key.end, token: token, limit: 2))
            for stored in page.records {
                let later = try RecordingRecords.hours.record(stored).body
                if let first = later.segments.filter({ !$0.deleted }).map(\.startUs).min() { return first }
            }
            token = page.next
        } while token != nil
        return nil
    }

    // MARK: - Objects of deleted segments

    /// Deletes objects whose segments are marked as deleted, and then their entries in the index. A repetition goes on
    /// where an earlier call was interrupted.
    ///
    /// - Parameter countMax: the most hours.
    /// - Returns: the bytes that became free, and the number of objects. If there may be more, it is not done.
    /// - Throws: what the object store throws; entries whose objects are not deleted stay.
    package func sweep(countMax: Int = 100) async throws(ApusError) -> RecordingChange {
        let page = try await index.store.page(
            RecordScan(RecordingRecords.hours.name, index: "deleted", limit: countMax))
        var done = RecordingChange(end: 0, isDone: page.next == nil)
        for stored in page.records {
            let hour = try RecordingRecords.hours.record(stored).body
            let gone = hour.segments.filter(\.deleted)
            let channel = RecordedChannel(
                account: AccountID(unchecked: hour.account), device: DeviceID(unchecked: hour.device),
                source: UInt16(truncatingIfNeeded: hour.source))
            for segment in gone {
                try await objects.delete(
                    try RecordingIndex.objectName(channel, hour: hour.hour, object: segment.object))
            }
            try await forget(Set(gone.map { ExactText($0.object) }), stored.key)
            done.count += UInt32(gone.count)
            done.bytes += gone.reduce(0) { $0 + $1.bytes }
        }
        return done
    }

    /// Removes the entries of objects that are deleted.
    private func forget(_ objects: Set<ExactText>, _ key: OrderedKey) async throws(ApusError) {
        try await change { () async throws(ApusError) -> (Void, RecordStep?) in
            guard let record = try await index.store.record(RecordingRecords.hours, key) else { return ((), nil) }
            var hour = record.body
            hour.segments.removeAll { $0.deleted && objects.contains(ExactText($0.object)) }
            guard !hour.segments.isEmpty else {
                let removal = RecordingRecords.hours.remove(key, fence: record.fence, if: .version(record.version))
                return ((), RecordStep(removal))
            }
            let write = try RecordingRecords.hours.put(hour, fence: record.fence, if: .version(record.version))
            return ((), RecordStep(write))
        }
    }
}
