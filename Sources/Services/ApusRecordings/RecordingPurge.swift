import ApusCluster
import ApusCore
import ApusStorage
import CoreMetrics

/// Deletes what a plan keeps no longer: by age, and the oldest first where it has more bytes than it may.
///
/// It deletes in two steps, as clients do: a segment is marked, so that nobody finds it, and then its object and its
/// entry go. If the node dies in between, another one goes on. An object without an entry is never deleted.
///
/// Isolation: one task, ``run()``.
struct RecordingPurge: Sendable {
    private let reader: RecordingReader
    private let context: RecordingContext
    private static let pageCount = 100

    init(_ context: RecordingContext) { (self.context, reader) = (context, context.reader) }

    func run() async {
        // Nodes that start together begin at different times.
        var pause = RecordingConfiguration.purgeInterval * Double.random(in: 0.1...1)
        while (try? await Task.sleep(for: pause)) != nil {
            pause = RecordingConfiguration.purgeInterval
            do throws(ApusError) {
                try await mark()
                var isDone = false
                while !isDone {
                    let swept = try await reader.sweep(countMax: Self.pageCount)
                    context.meters.purged.increment(by: Int64(clamping: swept.bytes))
                    isDone = swept.isDone || swept.count == 0
                }
            } catch {
                context.raise(error)
            }
        }
    }

    /// Marks what is due, of the channels of this node's shards.
    private func mark() async throws(ApusError) {
        var token: RecordToken?
        repeat {
            let page = try await reader.index.store.page(RecordingRecords.heads, after: token, limit: Self.pageCount)
            for head in page.records { try await mark(head.body) }
            token = page.next
        } while token != nil
    }

    private func mark(_ head: RecordingHead) async throws(ApusError) {
        guard let channel = RecordedChannel(head), context.view.isLocal(channel.channel.shard) else { return }
        let plan = try await reader.index.plan(of: channel.device, channel.source)?.body
        // Without a plan of its account, what there is stays as long as the last plan said.
        let own = plan?.account == head.account ? plan : nil
        let (days, most) = (own?.days ?? head.days, own?.bytesMax ?? 0)
        let now = context.nowMs
        var bytes = head.bytes
        var from = RecordingIndex.hour(of: head.firstUs)
        let newest = RecordingIndex.hour(of: head.endUs)
        while from <= newest {
            let hours = try await reader.index.hours(of: channel, from...newest)
            guard let last = hours.last?.body.hour else { return }
            for hour in hours {
                let isOld = days > 0 && (hour.body.hour + 1) * 3_600_000 <= now - Int64(days) * 86_400_000
                guard isOld || (most > 0 && bytes > most && hour.body.hour < newest) else { return }
                let marked = try await reader.change(hour.key, of: channel) { segment, _ in
                    guard !segment.deleted, segment.protectedUntilMs <= now else { return nil }
                    var marked = segment
                    marked.deleted = true
                    return marked
                }
                bytes -= min(bytes, marked.bytes)
            }
            from = last + 1
        }
    }
}

extension RecordedChannel {
    init?(_ head: RecordingHead) {
        guard let account = AccountID(rawValue: head.account), let device = DeviceID(rawValue: head.device),
            let source = UInt16(exactly: head.source)
        else { return nil }
        self.init(account: account, device: device, source: source)
    }
}
