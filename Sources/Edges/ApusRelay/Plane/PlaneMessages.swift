package import ApusTraversal

/// Packets and bytes of payload that an allocation carried, from its start.
package struct RelayTraffic: Hashable, Sendable {
    /// From the client to peers.
    package var upPackets: UInt64 = 0
    package var upBytes: UInt64 = 0
    /// From peers to the client.
    package var downPackets: UInt64 = 0
    package var downBytes: UInt64 = 0
    /// Dropped either way: no permission, no channel, no room, or more than the user may send.
    package var dropped: UInt64 = 0

    package init() {}

    /// Adds what another carried.
    package static func += (left: inout Self, right: Self) {
        left.upPackets &+= right.upPackets
        left.upBytes &+= right.upBytes
        left.downPackets &+= right.downPackets
        left.downBytes &+= right.downBytes
        left.dropped &+= right.dropped
    }

    /// What came since; none of it is negative.
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

/// What a plane counts besides allocations, from its start.
package struct PlaneCounters: Hashable, Sendable {
    /// Datagrams that are no STUN and no ChannelData, or cut short.
    package var malformed: UInt64 = 0
    /// ChannelData and indications of clients without an allocation.
    package var unknownFlow: UInt64 = 0
    /// ChannelData on a channel that is not bound.
    package var unboundChannel: UInt64 = 0
    /// Packets to or from a peer without a permission.
    package var notPermitted: UInt64 = 0
    /// STUN messages of allocations for control that found its ring full; those of clients without one, and of
    /// allocations over their share, that found theirs full; and messages that are longer than control takes.
    package var controlDropped: UInt64 = 0
    package var unauthenticatedDropped: UInt64 = 0
    package var controlTooLong: UInt64 = 0
    /// Answers of control that the kernel did not take, or whose client has gone.
    package var answersDropped: UInt64 = 0
    /// Ends of connections and allocations of which control could not be told.
    package var newsDropped: UInt64 = 0
    /// Datagrams that the kernel did not take.
    package var sendDropped: UInt64 = 0
    /// Packets for stream clients that do not read.
    package var slowStream: UInt64 = 0
    /// Connections and sessions refused because the plane has as many as it takes.
    package var refusedStreams: UInt64 = 0
    /// Connections that were refused since the process or the system had no descriptor for them, and how often that
    /// happened.
    package var exhaustedStreams: UInt64 = 0
    package var exhaustions: UInt64 = 0
    /// Runs that the kernel refused to cut and that were sent one by one.
    package var unsegmented: UInt64 = 0
    /// Channels with a socket of their own, now.
    package var connectedFlows: UInt64 = 0
    /// Rests between rounds, for more packets to gather.
    package var rests: UInt64 = 0
    /// Packets that went from one allocation to another of the same plane, past the kernel.
    package var shortCircuited: UInt64 = 0
    /// Packets of users over their bits or packets per second.
    package var overQuota: UInt64 = 0
    /// Packets over the bits per second of the node.
    package var overNodeQuota: UInt64 = 0
    /// ICMP errors of datagrams to peers that were handed up, held back since the allocation had enough in this second,
    /// and passed over: of hosts without a permission, or of other types.
    package var peerErrors: UInt64 = 0
    package var peerErrorsLimited: UInt64 = 0
    package var peerErrorsIgnored: UInt64 = 0
    /// Handshakes of TLS and DTLS that were done; that failed, or whose client left; whose time was over; and that made
    /// room for others.
    package var handshakes: UInt64 = 0
    package var handshakesFailed: UInt64 = 0
    package var handshakesLate: UInt64 = 0
    package var handshakesDisplaced: UInt64 = 0
    /// Connections and sessions that ended since nobody had authenticated on them in time, or to make room for others;
    /// and those that are there.
    package var unauthenticatedLate: UInt64 = 0
    package var unauthenticatedDisplaced: UInt64 = 0
    package var unauthenticated: UInt64 = 0
    /// Client connections, and DTLS sessions, that there are; unauthenticated ones among them.
    package var connections: UInt64 = 0
    /// Connections to peers that there are (RFC 6062), those on their way among them; that were joined with a client's;
    /// that failed; and peers that connected without a permission, or while control had enough.
    package var peers: UInt64 = 0
    package var peersJoined: UInt64 = 0
    package var peersFailed: UInt64 = 0
    package var peersRefused: UInt64 = 0
    package var sessions: UInt64 = 0

    package init() {}
}

/// Where a plane's doors are, with the ports that the system chose for 0.
struct BoundAddresses: Sendable {
    var datagrams: [TransportAddress]
    var streams: [TransportAddress]
    var secureStreams: [TransportAddress]
    var secureDatagrams: [TransportAddress]
}

/// From a plane to the control thread.
package enum PlaneEvent: Sendable, Equatable {
    /// A STUN message that the plane does not handle by itself.
    case control(RelayFlow, [UInt8])
    /// The client's connection ended; nothing more comes from it or goes to it.
    case streamClosed(RelayFlow)
    /// The kernel reported an error of a relay socket: an errno.
    case relayError(allocation: UInt32, error: Int32)
    /// ICMP told that a datagram did not reach a permitted peer (RFC 8656 §11.5).
    case peerError(allocation: UInt32, peer: TransportAddress, StunICMP)
    /// Where an allocation stands; sent when it changed, at most once a second, and at its removal.
    case counters(allocation: UInt32, RelayTraffic, isFinal: Bool)
    /// A permitted peer has connected to a relayed address (RFC 6062 §5.3); control owns the socket from now on.
    case peerArrived(allocation: UInt32, peer: TransportAddress, socket: Int32)
    /// A connection of ``PlaneCommand/awaitPeer(connection:allocation:socket:)`` is there, and control owns its socket
    /// again; -1 if it failed.
    case peerConnected(connection: UInt32, socket: Int32)
    /// Bytes of a joined connection since it was told last, at most once a second; the last is told at its end.
    case peerCarried(connection: UInt32, allocation: UInt32, RelayTraffic, isFinal: Bool)
    /// An installation was refused: the table is full or the flow is unknown. The plane closed the socket.
    case refused(allocation: UInt32)
    /// Where the plane stands; once a second when it changed.
    case plane(index: UInt8, PlaneCounters)
}

/// The number of a user at the planes, and what it may carry at one of them.
package struct PeerLimit: Sendable, Hashable {
    package var user: UInt32
    package var rate: RelayRate

    package init(user: UInt32, rate: RelayRate) {
        self.user = user
        self.rate = rate
    }
}

/// From the control thread to a plane.
package enum PlaneCommand: Sendable, Equatable {
    /// Sends a message to a client.
    case send(RelayFlow, [UInt8])
    /// Begins to relay for a client. The plane owns the sockets from now on; they are bound and non-blocking. The
    /// second is that of the other family (ADDITIONAL-ADDRESS-FAMILY), IPv6; -1 if there is none. Those of a TCP
    /// allocation listen.
    case install(allocation: UInt32, flow: RelayFlow, socket: Int32, second: Int32 = -1, isTCP: Bool = false)
    /// Lets a peer's address in, whatever its port (RFC 8656 §9); indications go to it at these ports alone,
    /// or to control where they are ``PeerPolicy/judgedPorts``.
    case permit(allocation: UInt32, peer: TransportAddress, ports: ClosedRange<UInt16>)
    case revoke(allocation: UInt32, peer: TransportAddress)
    /// Binds a channel number 0x4000...0x7FFF to a peer (RFC 8656 §12). It does not permit the peer.
    case bindChannel(allocation: UInt32, number: UInt16, peer: TransportAddress)
    case unbindChannel(allocation: UInt32, number: UInt16)
    /// Sends data of an indication that went up to a peer, unfragmented where that is wanted (RFC 8656 §11.2).
    case sendToPeer(allocation: UInt32, peer: TransportAddress, bytes: [UInt8], isUnfragmented: Bool)
    /// From now on an allocation draws from the bucket of its user here, which has this rate.
    case limit(allocation: UInt32, user: UInt32, RelayRate)
    /// From now on all allocations here may carry so much together.
    case limitNode(RelayRate)
    /// Tells when a connection to a peer is there (RFC 6062 §5.2). The plane owns the socket until then.
    case awaitPeer(connection: UInt32, allocation: UInt32, socket: Int32)
    /// Sends the answer to a client's data connection, and makes its bytes and those of a peer each other's from then
    /// on. The plane owns the peer's socket from now on. What bounds its user comes along, since the first bytes may
    /// come before the next command.
    case joinPeer(
        connection: UInt32, allocation: UInt32, flow: RelayFlow, socket: Int32, limit: PeerLimit?, answer: [UInt8])
    /// From now on a joined connection draws from the bucket of its user here, which has this rate.
    case limitPeer(connection: UInt32, PeerLimit)
    /// Ends a connection to a peer, and the client's that it is joined with.
    case closePeer(connection: UInt32)
    /// The client goes on from another address or connection of the same plane (RFC 8016).
    case moveFlow(allocation: UInt32, flow: RelayFlow)
    /// Closes the socket of one family of an allocation that has both.
    case closeFamily(allocation: UInt32, TransportAddress.Family)
    /// Ends an allocation and closes its socket.
    case remove(allocation: UInt32)
    case closeStream(RelayFlow)
}
