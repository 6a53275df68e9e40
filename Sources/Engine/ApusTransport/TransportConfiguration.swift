package import ApusCore
package import ApusWire

/// The configuration of a node's transport. Each limit has its default here, and names what is refused beyond it (D3).
package struct TransportConfiguration: Sendable {
    /// The address of the listener for node links. Port 0 asks the system for a free one.
    package var bind: HostPort
    package var tls: TransportTLS
    /// The certificates of nodes that are refused from the start.
    package var revoked = RevokedCertificates.none
    /// The longest frame after its length field, and the longest payload after decompression, in bytes. A longer one
    /// closes its link (10002).
    package var frameByteCountMax = 8 << 20
    /// Control lanes to each peer, 1 to 16. A lane is a connection on one event loop. The shards' calls are distributed
    /// over them.
    package var controlLaneCount = 2
    /// Calls in flight per control lane and direction, 1 to 65,536. A further one fails with 10007.
    package var inFlightMax = 65_536
    /// Bytes that wait for a control lane's socket. A further call fails with 10007.
    package var controlOutboundByteCountMax = 8 << 20
    /// Bytes that wait for the media lane's socket. A further write is refused.
    package var mediaOutboundByteCountMax = 32 << 20
    /// Payloads of the control lane are compressed from this size on, in bytes.
    package var compressionThreshold = 1 << 10
    /// The time-out of a TCP connect. It is short because a dead peer's address must not block a dial.
    package var connectTimeout = Duration.milliseconds(150)
    /// The time-out of TLS and the hello, from the start of the connection (10014).
    package var handshakeTimeout = Duration.seconds(5)
    /// The wait after the first failed dial, doubled with each further one. The actual wait is half of it plus a random
    /// part of the other half.
    package var reconnectBackoffMin = Duration.milliseconds(20)
    package var reconnectBackoffMax = Duration.seconds(1)
    /// The interval between pings of an idle link. Three intervals of silence close the link (10015).
    package var pingInterval = Duration.seconds(2)
    /// Accepted connections whose handshake is not complete. A further one is closed at once.
    package var handshakingMax = 256
    /// Connections between other nodes that this node forwards at once. A further one is closed. Each pair of nodes
    /// without a direct path uses up to two times the number of its lanes.
    package var forwardedMax = 512
    /// Authorizes connections that are forwarded. Without it, this node neither forwards nor asks others to.
    package var forwardingKey: ForwardingKey?
    /// The interval between scans of the open calls of a link. It is the accuracy of call deadlines, and bounds the
    /// time in which a cancelled call ends.
    package var deadlineScanInterval = Duration.milliseconds(10)
    /// The least time between two ``TransportEvent/heard(_:)`` events of one connection.
    package var heardInterval = Duration.milliseconds(20)

    package init(bind: HostPort, tls: TransportTLS) {
        self.bind = bind
        self.tls = tls
    }
}

/// The certificates of a node, in PEM. TLS 1.3 only; both sides present a certificate of the cluster's own authority
/// (D3).
package struct TransportTLS: Sendable {
    /// The source of a PEM text.
    package enum Source: Sendable, Hashable {
        case file(String)
        case bytes([UInt8])
    }

    /// The cluster's authority. No other is trusted.
    package var authority: Source
    /// The node's certificate. Links check the identity in its URI name `apus://node/NAME`.
    package var certificateChain: Source
    package var privateKey: Source

    package init(authority: Source, certificateChain: Source, privateKey: Source) {
        self.authority = authority
        self.certificateChain = certificateChain
        self.privateKey = privateKey
    }
}

/// A node that this node keeps links to.
package struct Peer: Sendable, Hashable {
    package var id: NodeID
    package var address: HostPort

    package init(id: NodeID, address: HostPort) {
        self.id = id
        self.address = address
    }
}

/// Events that the transport reports to the cluster. They are delivered on event loops; a receiver must not block.
///
/// `linkUp` and `linkLost` concern the links that this node dialled, over which it sends. `heard` concerns both
/// directions.
package enum TransportEvent: Sendable, Hashable {
    case linkUp(NodeID, Lane)
    /// An established link ended unexpectedly. The transport dials it again.
    case linkLost(NodeID, Lane)
    /// The address refuses connections, or another incarnation of the node answers there. The process of this
    /// incarnation has ended (D4).
    case connectRefused(NodeID)
    /// Bytes arrived from the peer. Emitted at most once per connection and ``TransportConfiguration/heardInterval``.
    case heard(NodeID)
    /// False: the listener closed by itself and is being opened again. True: it is open again.
    case listening(Bool)
    /// A link was refused or closed because of a fault of the peer.
    case rejected(RejectReason)
    /// The peer's certificate is in this node's list of revoked certificates.
    case revoked(NodeID)
    /// The peer refuses this node's certificate as revoked.
    case refusedAsRevoked(NodeID)
    /// Another process with this node's own name and certificate opened a link, from this address.
    case ownName(NodeID, address: String)
}
