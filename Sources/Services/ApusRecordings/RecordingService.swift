import ApusChannels
package import ApusClientAPI
import ApusCluster
package import ApusCore
import ApusObjectStore
import ApusMedia
import ApusRecordingLog
import ApusSessions
package import ApusStorage
import CoreMetrics
import Logging
import NIOCore
package import ServiceLifecycle
import Synchronization

/// Records the channels of devices that have a plan (IV-E2, docs/cluster-recordings.md).
///
/// The primary and the standby of a channel both log its frames (``RecordingLog``), each in one file for all channels,
/// which is synced once for all of them. The owner of the shard seals the frames of its log into segments
/// (``RecordingSealer``), and both forget what is sealed. A publisher never waits for a disk.
///
/// Concurrency model: any thread. A `Mutex` guards the recorder.
package final class RecordingService: NodeService, Service, MediaDownloads {
    package static let name = "Recordings"
    package static let records = RecordingRecords.catalogue

    private let context: RecordingContext
    /// With which the log is sealed.
    private let keys: ClusterKeys
    /// The objects, while the store is open.
    private let lateObjects: LateObjects
    /// What records, while the log and the object store are open.
    private let recorder = Mutex<NodeRecorder?>(nil)

    package init(_ configuration: RecordingConfiguration, of node: NodeContext) throws(ApusError) {
        keys = try node.ports.one(ClusterKeys.self)
        lateObjects = LateObjects(configuration.objects.limits)
        let refresh = RecordingRefresh(view: node.view, entities: node.entities)
        context = try RecordingContext(configuration, of: node, lateObjects, refresh)
        node.ports.provide(self, as: (any MediaDownloads).self)
        refresh.setOwner { [weak self] in await self?.flush($0) }
        node.dispatcher.on(RecordingSealNow.self) { [weak self] _, message throws(ApusError) in
            guard let channel = RecordedChannel(message) else { throw ApusError(.malformed) }
            await self?.flush(channel)
            return RecordingSealedNow()
        }
    }

    package func add(to api: inout ClientAPI) { context.reader.addRequests(to: &api) }

    package func download(_ file: String, at address: String) async throws(ApusError) -> MediaDownload {
        try await context.reader.download(file, at: address)
    }

    package var work: [any Service] { [self] }

    /// Records until the node stops. While the log or the object store cannot be opened, it tries again.
    package func run() async throws {
        await cancelWhenGracefulShutdown { [self] in
            while !Task.isCancelled {
                do throws(ApusError) {
                    try await record()
                } catch {
                    context.raise(error)
                }
                try? await Task.sleep(for: .seconds(5))
            }
        }
    }

    private func record() async throws(ApusError) {
        // The first plan of the cluster opens the store and the log, whose files take some room. Records that cannot be
        // read have no plan.
        while await (try? context.index.hasPlans()) != true {
            guard (try? await Task.sleep(for: RecordingConfiguration.planInterval)) != nil else { return }
        }
        let objects = try await context.configuration.objects.open(
            defaultDirectory: context.configuration.objectDirectory)
        lateObjects.set(objects)
        await withDiscardingTaskGroup { group in
            group.addTask { await RecordingPurge(self.context).run() }
            do throws(ApusError) {
                try await self.record(with: objects)
            } catch {
                context.raise(error)
            }
            group.cancelAll()
        }
        lateObjects.set(nil)
        await objects.shutdown()
    }

    /// Records while the log is open.
    private func record(with objects: any ObjectStore) async throws(ApusError) {
        var limits = RecordingLogLimits()
        limits.fileCountMax = max(limits.fileCountMin, context.configuration.logByteCountMax / limits.fileByteCount)
        let log = try RecordingLog(
            directory: context.configuration.logDirectory, limits: limits, sealing: ClusterLogSealing(keys: keys))
        let recorder = NodeRecorder(context, log, objects)
        self.recorder.withLock { $0 = recorder }
        await recorder.run()
        self.recorder.withLock { $0 = nil }
        await log.close()
    }

    /// Puts what has been recorded of a channel into the index, if this node owns its shard. Returns when it is there.
    private func flush(_ channel: RecordedChannel) async {
        guard let recorder = recorder.withLock(\.self), context.view.isLocal(channel.channel.shard) else { return }
        await recorder.flush(channel)
    }
}
