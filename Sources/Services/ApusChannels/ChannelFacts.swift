package import ApusCore
package import ApusMedia
import NIOCore

/// The publisher and the frames of a channel, as its primary has seen them. The times are ages.
package struct ChannelFacts: Sendable, Hashable {
    /// Since the newest publisher opened its stream; nil: none has one.
    package var publishing: Duration?
    /// Since the newest frame, key frame and configuration of the current run; nil: none has come to this node.
    package var frame: Duration?
    package var key: Duration?
    package var configuration: Duration?
    /// The codecs of the tracks, by their numbers.
    package var codecs: [Codec]
    package var standby: NodeID?
    package var isProtected: Bool
    /// Viewers at this node.
    package var viewers: Int
}

extension ChannelService {
    /// A channel as this node, its primary, has seen it. Nil if the channel is not in use here, or another node is
    /// its primary.
    package func facts(of channel: ChannelID) async -> ChannelFacts? {
        guard let home = home(of: channel) else { return nil }
        var facts = try? await home.eventLoop.submit { home.hubs[channel]?.facts(now: .now()) }.get()
        guard facts != nil else { return nil }
        for loop in allLoops {
            facts?.viewers += (try? await loop.eventLoop.submit { loop.viewerCount(of: channel) }.get()) ?? 0
        }
        return facts
    }
}

extension ChannelHub {
    fileprivate func facts(now: MonotonicTime) -> ChannelFacts? {
        guard machine.role == .primary else { return nil }
        return ChannelFacts(
            publishing: publishingSince.map { now - $0 }, frame: arrivals.frame.map { now - $0 },
            key: arrivals.key.map { now - $0 }, configuration: arrivals.configuration.map { now - $0 },
            codecs: machine.ring.codecs, standby: machine.assignment.standby, isProtected: machine.isProtected,
            viewers: 0)
    }
}
