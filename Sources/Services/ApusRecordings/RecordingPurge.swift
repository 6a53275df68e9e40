import ApusCluster
import ApusCore
import ApusObjectStore
import ApusStorage
import CoreMetrics

/// Deletes what a plan keeps no longer: by age, and the oldest first where it has more bytes than it may.
///
/// It deletes in two steps. First the hour is marked, so that nobody finds it; then its objects go, and then its record.
/// If the node dies in between, another one goes on. A segment without an entry is never deleted.
///
/// Isolation: one task, ``run()``.
struct RecordingPurge: Sendable {
    private let index: RecordingIndex
    private let objects: any ObjectStore
    private let service: RecordingService
    private static let pageCount = 100
    private static let attempts = 8

    init(_ index: RecordingIndex, _ objects: any ObjectStore, _ service: RecordingService) {
        (self.index, self.objects, self.service) = (index, objects, service)
    }

    func run() async {
        // Nodes that start together begin at different times.
        var pause = RecordingConfiguration.purgeInterval * Double.random(in: 0.1...1)
        while (try? await Task.sleep(for: pause)) != nil {
            pause = RecordingConfiguration.purgeInterval
            do throws(ApusError) {
                try await purge()
            } catch {
                service.raise(error)
            }
        }
    }

    /// Deletes what is due, of the channels of this node's shards.
    func purge() async throws(ApusError) {
        try await finishDeletions()
        var token: RecordToken?
        repeat {
            let page = try await index.store.page(RecordingRecords.heads, after: token, limit: Self.pageCount)
            for head in page.records { try await purge(head.body) }
            token = page.next
        } while token != nil
    }

    private func purge(_ head: RecordingHead) async throws(ApusError) {
        guard let channel = RecordedChannel(head), service.view.isLocal(channel.channel.shard) else { return }
        let plan = try await index.plan(of: channel.device, channel.source)?.body
        // Without a plan of its account, what there is stays as long as the last plan said.
        let isOwn = plan?.account == head.account
        let days = isOwn ? plan?.days ?? head.days : head.days
        guard days > 0 else { return }
        let now = service.nowMs
        var bytes = head.bytes
        let most = isOwn ? plan?.bytesMax ?? 0 : 0
        var from = RecordingIndex.hour(of: head.firstUs)
        let newest = RecordingIndex.hour(of: head.endUs)
        while from <= newest {
            let hours = try await index.hours(of: channel, from...newest)
            guard let last = hours.last?.body.hour else { return }
            for hour in hours {
                let isOld = (hour.body.hour + 1) * 3_600_000 <= now - Int64(days) * 86_400_000
                guard isOld || (most > 0 && bytes > most && hour.body.hour < newest) else { return }
                bytes -= min(bytes, try await delete(hour, of: channel, at: now))
            }
            from = last + 1
        }
    }

    /// Deletes an hour but for what is protected. Returns the bytes that were deleted.
    private func delete(
        _ hour: Record<RecordingHour>, of channel: RecordedChannel, at now: Int64
    ) async throws(ApusError) -> UInt64 {
        let kept = hour.body.segments.filter { $0.protectedUntilMs > now }
        guard kept.isEmpty else { return 0 }
        var marked = hour.body
        marked.deleted = true
        do throws(ApusError) {
            try await index.store.commit(
                RecordStep(RecordingRecords.hours.put(marked, fence: .none, if: .version(hour.version))))
        } catch {
            // It got another segment meanwhile, or another node deletes it. The next run looks again.
            guard error.code == .versionConflict else { throw error }
            return 0
        }
        return try await remove(marked, of: channel)
    }

    /// Goes on with deletions that another run, or another node, has begun.
    private func finishDeletions() async throws(ApusError) {
        let page = try await index.store.page(RecordingRecords.hours, by: "deleted", limit: Self.pageCount)
        for hour in page.records {
            guard let channel = RecordedChannel(hour.body), service.view.isLocal(channel.channel.shard) else { continue }
            _ = try await remove(hour.body, of: channel)
        }
    }

    /// Deletes the objects of an hour that is marked, then its record.
    private func remove(_ hour: RecordingHour, of channel: RecordedChannel) async throws(ApusError) -> UInt64 {
        for segment in hour.segments {
            try await objects.delete(
                try RecordingIndex.objectName(channel, hour: hour.hour, object: segment.object))
        }
        let (bytes, count) = (hour.segments.reduce(0) { $0 + $1.bytes }, UInt64(hour.segments.count))
        let hourKey = RecordingRecords.hourKey(channel, hour.hour)
        let removed = try await index.store.change(
            attempts: Self.attempts,
            otherwise: ApusError(.versionConflict, "the recordings of \(channel) are being changed by others")
        ) { () async throws(ApusError) -> (UInt64, RecordStep?) in
            guard let found = try await index.store.record(RecordingRecords.hours, hourKey), found.body.deleted else {
                return (0, nil)
            }
            var writes = [RecordingRecords.hours.erase(hourKey, fence: .none, if: .version(found.version))]
            if let head = try await index.head(of: channel) {
                var body = head.body
                body.bytes -= min(body.bytes, bytes)
                body.segments -= min(body.segments, count)
                body.firstUs = max(body.firstUs, (hour.hour + 1) * RecordingIndex.hourMicroseconds)
                writes.append(try RecordingRecords.heads.put(body, fence: .none, if: .version(head.version)))
            }
            return (bytes, RecordStep(writes))
        }.value
        service.meters.purged.increment(by: Int64(clamping: removed))
        return removed
    }
}

extension RecordedChannel {
    init?(_ head: RecordingHead) { self.init(head.account, head.device, head.source) }
    init?(_ hour: RecordingHour) { self.init(hour.account, hour.device, hour.source) }

    private init?(_ account: String, _ device: String, _ source: UInt32) {
        guard let account = AccountID(rawValue: account), let device = DeviceID(rawValue: device),
            let source = UInt16(exactly: source)
        else { return nil }
        self.init(account: account, device: device, source: source)
    }
}
