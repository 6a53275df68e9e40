import ApusChannels
import ApusCore
import ApusMedia
import ApusObjectStore
import ApusRecordingLog
import ApusStorage
import CoreMetrics
import NIOCore
import Synchronization

/// Records the channels of a node, with an open log and an open object store.
///
/// Concurrency model: one task, ``run()``, takes frames, writes the log and decides what is sealed; a few others seal.
/// A `Mutex` guards the channels that are being sealed.
final class NodeRecorder: Sendable {
    private let context: RecordingContext
    private let log: RecordingLog
    private let sealer: RecordingSealer
    private let sealing = Mutex<[RecordedChannel: [CheckedContinuation<Void, Never>]]>([:])
    private let seals = WorkQueue<RecordingSeal>(countMax: nil)

    init(_ context: RecordingContext, _ log: RecordingLog, _ objects: any ObjectStore) {
        (self.context, self.log) = (context, log)
        var cuts = RecordingCutter.Limits()
        cuts.duration = context.configuration.segmentDuration
        sealer = RecordingSealer(log: log, objects: objects, index: context.index, limits: cuts)
    }

    /// Records until the task is cancelled.
    func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await self.takeFrames() }
            group.addTask {
                await self.seals.run(atMost: self.context.configuration.sealsMax) { await self.seal($0) }
            }
        }
    }

    // MARK: - Frames

    private func takeFrames() async {
        var turns = RecordingTurns(context, log)
        while !Task.isCancelled {
            let start = MonotonicTime.now()
            await turns.take(now: start)
            do throws(ApusError) {
                try await log.write()
                context.meters.writeTime.recordNanoseconds(Int64((MonotonicTime.now() - start).nanoseconds))
            } catch {
                context.raise(error)
            }
            for seal in turns.due(now: .now()) { request(seal) }
            let rest = context.configuration.writeInterval - (MonotonicTime.now() - start)
            if rest > .zero { try? await Task.sleep(for: rest) }
        }
        turns.close()
        // What came until the end is in the log before it is closed.
        try? await log.write()
    }

    // MARK: - Sealing

    private func request(_ seal: RecordingSeal) {
        let isNew = sealing.withLock { sealing in
            guard sealing[seal.channel] == nil else { return false }
            sealing[seal.channel] = []
            return true
        }
        if isNew { seals.add(seal) }
    }

    private func seal(_ seal: RecordingSeal) async {
        do throws(ApusError) {
            var outcome = RecordingSealer.Outcome()
            if seal.isRelease {
                try await sealer.release(seal.channel, &outcome)
            } else {
                outcome = try await sealer.seal(seal.channel, end: seal.end)
            }
            context.meters.segments.increment(by: Int64(outcome.segmentCount))
            context.meters.bytes.increment(by: Int64(outcome.byteCount))
            if outcome.droppedCount > 0 { context.meters.dropped.increment(by: Int64(outcome.droppedCount)) }
            if outcome.segmentCount > 0 { context.clear() }
        } catch {
            if error.code != .cancelled {
                context.meters.failures.increment()
                context.raise(error)
            }
        }
        let waiting = sealing.withLock { $0.removeValue(forKey: seal.channel) } ?? []
        for one in waiting { one.resume() }
    }

    /// Seals everything of a channel, and waits for it.
    func flush(_ channel: RecordedChannel) async {
        await wait(for: channel)
        request(RecordingSeal(channel: channel, end: .continues))
        await wait(for: channel)
    }

    /// Waits until the channel is not being sealed.
    private func wait(for channel: RecordedChannel) async {
        await withCheckedContinuation { continuation in
            let isDone = sealing.withLock { sealing in
                guard sealing[channel] != nil else { return true }
                sealing[channel]?.append(continuation)
                return false
            }
            if isDone { continuation.resume() }
        }
    }
}
