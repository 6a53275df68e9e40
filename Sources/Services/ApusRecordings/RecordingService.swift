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

    let configuration: RecordingConfiguration
    let view: ClusterView
    let index: RecordingIndex
    let sessions: SessionRecords
    let channels: ChannelService
    let meters = RecordingMetrics()
    /// What clients read and change.
    let reader: RecordingReader
    let limited: LogLimiter
    /// With which the log is sealed.
    private let keys: ClusterKeys
    private let group: any EventLoopGroup
    /// The objects, while the store is open.
    private let lateObjects: LateObjects
    private let conditions: NodeConditions
    /// What records, while the log and the object store are open.
    private let recorder = Mutex<NodeRecorder?>(nil)

    private static let condition = NodeConditions.Kind("recordings", isUnhealthy: false)

    package init(_ configuration: RecordingConfiguration, of node: NodeContext) throws(ApusError) {
        (self.configuration, view, group, limited) = (configuration, node.view, node.group, node.limited)
        (index, sessions, conditions) = (
            RecordingIndex(node.records), SessionRecords(node.records), node.conditions
        )
        channels = try node.ports.one(ChannelService.self)
        keys = try node.ports.one(ClusterKeys.self)
        let late = LateObjects(configuration.objects.limits)
        lateObjects = late
        let refresh = RecordingRefresh(view: node.view, entities: node.entities)
        reader = RecordingReader(
            index: index, objects: late, sessions: RecordingSessions(node.sessions, sessions),
            now: { [view] in view.clock.wallMilliseconds() }, refresh: { await refresh.refresh($0) })
        node.ports.provide(self, as: (any MediaDownloads).self)
        refresh.setOwner { [weak self] in await self?.flush($0) }
        node.dispatcher.on(RecordingSealNow.self) { [weak self] _, message throws(ApusError) in
            guard let channel = RecordedChannel(message) else { throw ApusError(.malformed) }
            await self?.flush(channel)
            return RecordingSealedNow()
        }
    }

    package func add(to api: inout ClientAPI) { reader.addRequests(to: &api) }

    package func download(_ file: String, at address: String) async throws(ApusError) -> MediaDownload {
        try await reader.download(file, at: address)
    }

    package var work: [any Service] { [self] }

    var nowMs: Int64 { view.clock.wallMilliseconds() }

    /// Records until the node stops. While the log or the object store cannot be opened, it tries again.
    package func run() async throws {
        await cancelWhenGracefulShutdown { [self] in
            while !Task.isCancelled {
                do throws(ApusError) {
                    try await record()
                } catch {
                    raise(error)
                }
                try? await Task.sleep(for: .seconds(5))
            }
        }
    }

    private func record() async throws(ApusError) {
        let objects = try await configuration.objects.open(defaultDirectory: configuration.objectDirectory)
        lateObjects.set(objects)
        await withDiscardingTaskGroup { group in
            group.addTask { await RecordingPurge(self).run() }
            do throws(ApusError) {
                try await self.record(with: objects)
            } catch {
                raise(error)
            }
            group.cancelAll()
        }
        lateObjects.set(nil)
        await objects.shutdown()
    }

    /// Records while the log is open. The first plan of the cluster makes the log: its files take some room.
    private func record(with objects: any ObjectStore) async throws(ApusError) {
        while try await !index.hasPlans() {
            guard (try? await Task.sleep(for: RecordingConfiguration.planInterval)) != nil else { return }
        }
        var limits = RecordingLogLimits()
        limits.fileCountMax = max(limits.fileCountMin, configuration.logByteCountMax / limits.fileByteCount)
        let log = try RecordingLog(
            directory: configuration.logDirectory, limits: limits, sealing: ClusterLogSealing(keys: keys))
        let recorder = NodeRecorder(self, log, objects)
        self.recorder.withLock { $0 = recorder }
        await recorder.run()
        self.recorder.withLock { $0 = nil }
        await log.close()
    }

    /// Puts what has been recorded of a channel into the index, if this node owns its shard. Returns when it is there.
    private func flush(_ channel: RecordedChannel) async {
        guard let recorder = recorder.withLock(\.self), view.isLocal(channel.channel.shard) else { return }
        await recorder.flush(channel)
    }

    // MARK: - Conditions

    func raise(_ error: ApusError) {
        guard error.code != .cancelled else { return }
        conditions.raise(Self.condition, "recordings are not stored: \(error)")
        limited.log(.warning, "Recordings are not stored", metadata: Logger.facts(of: error))
    }

    func clear() { conditions.clear(Self.condition) }

    // MARK: - Taps

    /// Receives what the channel holds behind a position; without one all of it, also of the time before the tap.
    func tap(_ channel: RecordedChannel, after position: FramePosition?) async throws(ApusError) -> FrameTap {
        try await channels.tap(
            channel.channel, of: channel.account, after: position ?? FramePosition(epoch: 0, sequence: 0),
            on: group.next(),
            byteCountMax: RecordingConfiguration.tapByteCountMax)
    }
}
