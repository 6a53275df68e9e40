import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusCore
import ApusMedia
import ApusSessions
import Logging
import NIOCore

/// What the parts of the recordings of a node have in common.
///
/// Isolation: immutable; each part guards its own state.
final class RecordingContext: Sendable {
    let configuration: RecordingConfiguration
    let view: ClusterView
    let index: RecordingIndex
    let sessions: SessionRecords
    let channels: ChannelService
    let meters = RecordingMetrics()
    /// What clients read and change.
    let reader: RecordingReader
    private let limited: LogLimiter
    private let group: any EventLoopGroup
    private let conditions: NodeConditions
    private static let condition = NodeConditions.Kind("recordings", isUnhealthy: false)

    /// - Throws: 10018 if a service is missing.
    init(
        _ configuration: RecordingConfiguration, of node: NodeContext, _ objects: LateObjects,
        _ refresh: RecordingRefresh
    ) throws(ApusError) {
        (self.configuration, view, group, limited) = (configuration, node.view, node.group, node.limited)
        (index, sessions, conditions) = (
            RecordingIndex(node.records), SessionRecords(node.records), node.conditions
        )
        channels = try node.ports.one(ChannelService.self)
        reader = RecordingReader(
            index: index, objects: objects, sessions: RecordingSessions(node.sessions, sessions),
            now: { [view] in view.clock.wallMilliseconds() }, refresh: { await refresh.refresh($0) })
    }

    /// The cluster's clock, in Unix milliseconds.
    var nowMs: Int64 { view.clock.wallMilliseconds() }

    /// Recordings cannot be stored: a condition of the node, until a segment is.
    func raise(_ error: ApusError) {
        guard error.code != .cancelled else { return }
        conditions.raise(Self.condition, "recordings are not stored: \(error)")
        limited.log(.warning, "Recordings are not stored", metadata: Logger.facts(of: error))
    }

    func clear() { conditions.clear(Self.condition) }

    /// Receives what the channel holds behind a position; without one all of it, also of the time before the tap.
    func tap(_ channel: RecordedChannel, after position: FramePosition?) async throws(ApusError) -> FrameTap {
        try await channels.tap(
            channel.channel, of: channel.account, after: position ?? FramePosition(epoch: 0, sequence: 0),
            on: group.next(), byteCountMax: RecordingConfiguration.tapByteCountMax)
    }
}
