import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf
import Synchronization

/// Asks the owner of a channel to put what it has recorded into the index, because a client looks for it: what is newer
/// than the last segment is in the owner's log only.
///
/// Concurrency model: any task. A `Mutex` guards the times.
final class RecordingRefresh: Sendable {
    typealias Flush = @Sendable (RecordedChannel) async -> Void

    /// A channel is asked about at most this often.
    private static let interval = Duration.seconds(2)
    private static let timeout = Duration.seconds(2)
    private static let channelsMax = 4096

    private let view: ClusterView
    private let entities: EntityRegistry
    private let state = Mutex<(asked: [RecordedChannel: MonotonicTime], flush: Flush?)>(([:], nil))

    init(view: ClusterView, entities: EntityRegistry) { (self.view, self.entities) = (view, entities) }

    /// What this node does as the owner.
    func setOwner(_ flush: @escaping Flush) { state.withLock { $0.flush = flush } }

    /// Returns when the index has what was recorded before, or after some seconds.
    func refresh(_ channel: RecordedChannel) async {
        let now = MonotonicTime.now()
        let flush = state.withLock { state -> Flush? in
            if let last = state.asked[channel], now - last < Self.interval { return nil }
            if state.asked.count >= Self.channelsMax { state.asked = [:] }
            state.asked[channel] = now
            return state.flush
        }
        guard let flush else { return }
        guard !view.isLocal(channel.channel.shard) else { return await flush(channel) }
        let message = RecordingSealNow.with {
            ($0.account, $0.device, $0.source) = (
                channel.account.rawValue, channel.device.rawValue, UInt32(channel.source)
            )
        }
        // Without an answer, the index says what it has.
        _ = try? await entities.askOwner(of: channel.channel.shard, message, timeout: Self.timeout)
    }
}

/// From the node of a client to the owner of a channel.
extension RecordingSealNow: NodeMessage {
    package typealias Reply = RecordingSealedNow
    package static var method: UInt16 { 0x005e }
    package var isWithinBounds: Bool { RecordedChannel(self) != nil }
}

extension RecordedChannel {
    init?(_ message: RecordingSealNow) {
        guard let account = AccountID(rawValue: message.account), let device = DeviceID(rawValue: message.device),
            let source = UInt16(exactly: message.source)
        else { return nil }
        self.init(account: account, device: device, source: source)
    }
}
