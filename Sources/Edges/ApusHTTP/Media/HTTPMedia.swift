import ApusCluster
import ApusCore
package import ApusMediaAccess
import ApusSessions
import ApusTransport
import CoreMetrics
package import NIOCore

/// What WebSockets need for media.
package struct HTTPMedia: Sendable {
    package var access: MediaAccess
    /// The event loops of the channels.
    package var group: any EventLoopGroup
    /// The maximum number of streams of one WebSocket. Key `gateway.streams_per_connection_max`.
    package var streamsMax = 64
    /// The largest binary message of a client that publishes, in bytes. Key `gateway.device_frame_bytes_max`.
    package var messageByteCountMax = 4 << 20
    /// The longest silence of the node while a stream is open. Key `gateway.stream_keepalive`.
    package var streamKeepalive: Duration = .milliseconds(80)
    /// The longest time that a leaving node waits for its WebSockets to leave. Key `gateway.leave_timeout`.
    package var leaveTimeout: Duration = .seconds(15)
    /// The cluster's HTTP listeners have TLS. Nodes announce their addresses without that, and are configured alike.
    package var isSecure = false
    private let streams = (
        played: Meter(label: "apus_http_websocket_streams", dimensions: [("direction", "played")]),
        published: Meter(label: "apus_http_websocket_streams", dimensions: [("direction", "published")])
    )

    package init(access: MediaAccess, group: any EventLoopGroup) { (self.access, self.group) = (access, group) }

    /// The addresses of the cluster's WebSockets, this node's first.
    package func endpoints() -> [String] { access.sessions.view.addresses().map(address) }

    /// Those of the channel's owner and standby first.
    func endpoints(of channel: ChannelID) -> [String] {
        access.sessions.view.addresses(of: channel.shard).map(address)
    }

    /// Those of the other nodes.
    package func otherEndpoints() -> [String] { access.sessions.view.otherAddresses().map(address) }

    private func address(_ node: NodeAddresses) -> String {
        "\(isSecure ? "wss" : "ws")://\(node.http)\(WebSockets.clientPath)"
    }

    /// Counts the streams of a connection.
    func count(played: Int, published: Int, _ counted: inout (played: Int, published: Int)) {
        streams.played.increment(by: Double(played - counted.played))
        streams.published.increment(by: Double(published - counted.published))
        counted = (played, published)
    }
}
