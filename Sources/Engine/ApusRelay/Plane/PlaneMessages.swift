package import ApusTraversal

/// Packets and payload bytes of an allocation, since its start.
package struct RelayTraffic: Hashable, Sendable {
    /// From the client to peers.
    package var upPackets: UInt64 = 0
    package var upBytes: UInt64 = 0
    /// From peers to the client.
    package var downPackets: UInt64 = 0
    package var downBytes: UInt64 = 0
    /// Dropped packets in both directions: no permission, no channel, no room, or over the user's limit.
    package var dropped: UInt64 = 0

    package init() {}

    /// Adds another value.
    package static func += (left: inout Self, right: Self) {
        left.upPackets &+= right.upPackets
        left.upBytes &+= right.upBytes
        left.downPackets &+= right.downPackets
        left.downBytes &+= right.downBytes
        left.dropped &+= right.dropped
    }

    /// The difference since an earlier value. No field is negative.
    package static func - (left: Self, right: Self) -> Self {
        func difference(_ path: KeyPath<Self, UInt64>) -> UInt64 {
            left[keyPath: path] > right[keyPath: path] ? left[keyPath: path] - right[keyPath: path] : 0
        }
        var rest = Self()
        rest.upPackets = difference(\.upPackets)
        rest.upBytes = difference(\.upBytes)
        rest.downPackets = difference(\.downPackets)
        rest.downBytes = difference(\.downBytes)
        rest.dropped = difference(\.dropped)
        return rest
    }
}

/// A plane's other counters, since its start.
package struct PlaneCounters: Hashable, Sendable {
    /// Datagrams that are neither STUN nor ChannelData, or are truncated.
    package var malformed: UInt64 = 0
    /// ChannelData and indications of clients without an allocation.
    package var unknownFlow: UInt64 = 0
    /// ChannelData on a channel that is not bound.
    package var unboundChannel: UInt64 = 0
    /// Packets to or from a peer without a permission.
    package var notPermitted: UInt64 = 0
    /// STUN messages of allocations that found control's ring full; those of clients without one, or over their share,
    /// that found theirs full; and messages that are too long for control.
    package var controlDropped: UInt64 = 0
    package var unauthenticatedDropped: UInt64 = 0
    package var controlTooLong: UInt64 = 0
    /// Answers of control that the kernel did not accept, or whose client is gone.
    package var answersDropped: UInt64 = 0
    /// Ends of connections and allocations of which control could not be notified.
    package var newsDropped: UInt64 = 0
    /// Datagrams that the kernel did not accept.
    package var sendDropped: UInt64 = 0
    /// Packets for stream clients that do not read.
    package var slowStream: UInt64 = 0
    /// Connections and sessions refused at the plane's limit.
    package var refusedStreams: UInt64 = 0
    /// Connections that were refused because the process or the system had no descriptor for them, and the number of
    /// such events.
    package var exhaustedStreams: UInt64 = 0
    package var exhaustions: UInt64 = 0
    /// Runs that the kernel refused to split and that were sent one by one.
    package var unsegmented: UInt64 = 0
    /// The current number of channels with a socket of their own.
    package var connectedFlows: UInt64 = 0
    /// Pauses between rounds, in which more packets gather.
    package var rests: UInt64 = 0
    /// Packets between two allocations of this plane, which bypassed the kernel.
    package var shortCircuited: UInt64 = 0
    /// Packets over a user's limit of bits or packets per second.
    package var overQuota: UInt64 = 0
    /// Packets over the node's limit of bits per second.
    package var overNodeQuota: UInt64 = 0
    /// ICMP errors of datagrams to peers: passed to control, suppressed by the allocation's limit per second, and
    /// ignored, because the host has no permission or for another type.
    package var peerErrors: UInt64 = 0
    package var peerErrorsLimited: UInt64 = 0
    package var peerErrorsIgnored: UInt64 = 0
    /// Handshakes of TLS and DTLS: completed; failed, or left by the client; timed out; and displaced by others.
    package var handshakes: UInt64 = 0
    package var handshakesFailed: UInt64 = 0
    package var handshakesLate: UInt64 = 0
    package var handshakesDisplaced: UInt64 = 0
    /// Unauthenticated connections and sessions: ended by the time-out, ended to make room for others, and the current
    /// number.
    package var unauthenticatedLate: UInt64 = 0
    package var unauthenticatedDisplaced: UInt64 = 0
    package var unauthenticated: UInt64 = 0
    /// The current number of client connections, and of DTLS sessions, including unauthenticated ones.
    package var connections: UInt64 = 0
    /// Connections to peers (RFC 6062): the current number, including those being connected; joined with a client's;
    /// failed; and peers that connected without a permission, or while control was overloaded.
    package var peers: UInt64 = 0
    package var peersJoined: UInt64 = 0
    package var peersFailed: UInt64 = 0
    package var peersRefused: UInt64 = 0
    package var sessions: UInt64 = 0

    package init() {}
}

/// The addresses of a plane's listeners, with the ports that the system chose for 0.
struct BoundAddresses: Sendable {
    var datagrams: [TransportAddress]
    var streams: [TransportAddress]
    var secureStreams: [TransportAddress]
    var secureDatagrams: [TransportAddress]
}

/// Events from a plane to the control thread.
package enum PlaneEvent: Sendable, Equatable {
    /// A STUN message that the plane does not handle itself.
    case control(RelayFlow, [UInt8])
    /// The client's connection ended. Nothing follows in either direction.
    case streamClosed(RelayFlow)
    /// The kernel reported an error of a relay socket, as an errno.
    case relayError(allocation: UInt32, error: Int32)
    /// An ICMP error: a datagram did not reach a permitted peer (RFC 8656 §11.5).
    case peerError(allocation: UInt32, peer: TransportAddress, StunICMP)
    /// An allocation's counters. Sent when they changed, at most once a second, and at its removal.
    case counters(allocation: UInt32, RelayTraffic, isFinal: Bool)
    /// A permitted peer connected to a relayed address (RFC 6062 §5.3). Control owns the socket from now on.
    case peerArrived(allocation: UInt32, peer: TransportAddress, socket: Int32)
    /// The result of ``PlaneCommand/awaitPeer(connection:allocation:socket:)``. Control owns the socket again; -1 if
    /// the connect failed.
    case peerConnected(connection: UInt32, socket: Int32)
    /// The traffic of a joined connection since the last report, at most once a second. The last report comes at its
    /// end.
    case peerCarried(connection: UInt32, allocation: UInt32, RelayTraffic, isFinal: Bool)
    /// An installation was refused, because the table is full or the flow is unknown. The plane closed the socket.
    case refused(allocation: UInt32)
    /// The plane's counters, once a second when they changed.
    case plane(index: UInt8, PlaneCounters)
}

/// A user's number at the planes, and its rate limit at one of them.
package struct PeerLimit: Sendable, Hashable {
    package var user: UInt32
    package var rate: RelayRate

    package init(user: UInt32, rate: RelayRate) {
        self.user = user
        self.rate = rate
    }
}

/// Commands from the control thread to a plane.
package enum PlaneCommand: Sendable, Equatable {
    /// Sends a message to a client.
    case send(RelayFlow, [UInt8])
    /// Starts to relay for a client. The plane owns the sockets from now on; they are bound and non-blocking. The
    /// second is that of the other family (ADDITIONAL-ADDRESS-FAMILY), IPv6; -1 if there is none. Those of a TCP
    /// allocation are listening.
    case install(allocation: UInt32, flow: RelayFlow, socket: Int32, second: Int32 = -1, isTCP: Bool = false)
    /// Permits a peer's address, at any port (RFC 8656 §9). Indications to it may use only these ports; for
    /// ``PeerPolicy/judgedPorts`` control checks each of them.
    case permit(allocation: UInt32, peer: TransportAddress, ports: ClosedRange<UInt16>)
    case revoke(allocation: UInt32, peer: TransportAddress)
    /// Binds a channel number 0x4000...0x7FFF to a peer (RFC 8656 §12). It does not permit the peer.
    case bindChannel(allocation: UInt32, number: UInt16, peer: TransportAddress)
    case unbindChannel(allocation: UInt32, number: UInt16)
    /// Sends the data of an indication that control handled to a peer, unfragmented if requested (RFC 8656 §11.2).
    case sendToPeer(allocation: UInt32, peer: TransportAddress, bytes: [UInt8], isUnfragmented: Bool)
    /// Sets the rate of a user's bucket at this plane, which the allocation uses from now on.
    case limit(allocation: UInt32, user: UInt32, RelayRate)
    /// Sets the rate limit of all allocations at this plane together.
    case limitNode(RelayRate)
    /// Reports when a connection to a peer is established (RFC 6062 §5.2). The plane owns the socket until then.
    case awaitPeer(connection: UInt32, allocation: UInt32, socket: Int32)
    /// Sends the answer to a client's data connection, and from then on relays between it and a peer's connection. The
    /// plane owns the peer's socket from now on. The user's limit is included, since the first bytes may arrive before
    /// the next command.
    case joinPeer(
        connection: UInt32, allocation: UInt32, flow: RelayFlow, socket: Int32, limit: PeerLimit?, answer: [UInt8])
    /// Sets the rate of a user's bucket at this plane, which the joined connection uses from now on.
    case limitPeer(connection: UInt32, PeerLimit)
    /// Closes a connection to a peer, and the client's joined connection.
    case closePeer(connection: UInt32)
    /// The client continues from another address or connection at the same plane (RFC 8016).
    case moveFlow(allocation: UInt32, flow: RelayFlow)
    /// Closes the socket of one family of an allocation that has both.
    case closeFamily(allocation: UInt32, TransportAddress.Family)
    /// Ends an allocation and closes its socket.
    case remove(allocation: UInt32)
    case closeStream(RelayFlow)
}
