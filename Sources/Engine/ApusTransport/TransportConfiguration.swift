package import ApusCore
package import ApusWire

/// What a node's transport needs to know. Every bound has its default here; a bound's loser is named
/// beside it (D3).
package struct TransportConfiguration: Sendable {
    /// Where node links are taken; port 0 asks the system for a free one.
    package var bind: HostPort
    package var tls: TransportTLS
    /// The longest frame after its length field, and the longest payload after decompression, in
    /// bytes; a longer one closes its link (10002).
    package var frameByteCountMax = 8 << 20
    /// Control lanes to each peer, 1 to 16: connections that the shards' calls are spread over, each on one event loop.
    package var controlLaneCount = 2
    /// Calls under way per control lane and direction, 1 to 65,536; one more fails with 10007.
    package var inFlightMax = 65_536
    /// Bytes that wait for a control lane's socket; a call beyond fails with 10007.
    package var controlOutboundByteCountMax = 8 << 20
    /// Bytes that wait for the media lane's socket; a write beyond is refused.
    package var mediaOutboundByteCountMax = 32 << 20
    /// Payloads of the control lane from this size on are compressed, in bytes.
    package var compressionThreshold = 1 << 10
    /// The time that TCP may take to connect; a dead peer's address must not hold a dial for long.
    package var connectTimeout = Duration.milliseconds(150)
    /// The time for TLS and the hello, from the connection's first moment (10014).
    package var handshakeTimeout = Duration.seconds(5)
    /// The wait after the first failed dial; doubled with each further one. The actual wait is half
    /// of it and a random part of the other half.
    package var reconnectBackoffMin = Duration.milliseconds(20)
    package var reconnectBackoffMax = Duration.seconds(1)
    /// How often an idle link is pinged; three intervals of silence close it (10015).
    package var pingInterval = Duration.seconds(2)
    /// Connections that are not yet through the handshake; one more is closed at once.
    package var handshakingMax = 256
    /// The accuracy of call deadlines, and how soon a cancelled caller's call ends: one scan of the open calls per
    /// link and interval.
    package var deadlineScanInterval = Duration.milliseconds(10)
    /// The least time between two ``TransportEvent/heard(_:)`` of one connection.
    package var heardInterval = Duration.milliseconds(20)

    package init(bind: HostPort, tls: TransportTLS) {
        self.bind = bind
        self.tls = tls
    }
}

/// The certificates of a node, PEM. TLS 1.3 only, both sides show a certificate of the cluster's own
/// authority (D3).
package struct TransportTLS: Sendable {
    /// Where a PEM text comes from.
    package enum Source: Sendable, Hashable {
        case file(String)
        case bytes([UInt8])
    }

    /// The cluster's authority; no other is trusted.
    package var authority: Source
    /// The node's certificate; its URI name `apus://node/NAME` is the identity that links check.
    package var certificateChain: Source
    package var privateKey: Source

    package init(authority: Source, certificateChain: Source, privateKey: Source) {
        self.authority = authority
        self.certificateChain = certificateChain
        self.privateKey = privateKey
    }
}

/// A node that this one keeps links to.
package struct Peer: Sendable, Hashable {
    package var id: NodeID
    package var address: HostPort

    package init(id: NodeID, address: HostPort) {
        self.id = id
        self.address = address
    }
}

/// What the transport tells the cluster. Events come on event loops and must not block there.
///
/// `linkUp` and `linkLost` speak of the links that this node dialled, which are the ones that it
/// sends over; `heard` speaks of both directions.
package enum TransportEvent: Sendable, Hashable {
    case linkUp(NodeID, Lane)
    /// An established link ended without our wish; a new dial is already under way.
    case linkLost(NodeID, Lane)
    /// The address refuses connections, or another life of the node answers there: the process that
    /// this life was is gone (D4).
    case connectRefused(NodeID)
    /// Bytes came from the peer; at most once per connection and ``TransportConfiguration/heardInterval``.
    case heard(NodeID)
    /// The listener closed by itself, and is opened anew; or it is open again.
    case listening(Bool)
    /// A link was refused or closed for a fault of the other side.
    case rejected(RejectReason)
}
