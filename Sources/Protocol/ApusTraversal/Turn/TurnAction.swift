public import ApusCore

/// The path of a client's messages and answers: a pair of addresses at one plane, or one stream.
public struct RelayFlow: Hashable, Sendable {
    public enum Transport: UInt8, Sendable, Hashable, CaseIterable {
        case udp, tcp, tls, dtls

        /// True if messages are in a stream and ChannelData is padded.
        public var isStream: Bool { self == .tcp || self == .tls }
    }

    /// The plane thread that owns the socket.
    public var plane: UInt8
    public var transport: Transport
    public var local: TransportAddress
    public var remote: TransportAddress
    /// The number of a stream at the plane, which is never reused; 0 for datagrams.
    public var connection: UInt64

    public init(
        plane: UInt8, transport: Transport, local: TransportAddress, remote: TransportAddress, connection: UInt64 = 0
    ) {
        self.plane = plane
        self.transport = transport
        self.local = local
        self.remote = remote
        self.connection = connection
    }

    /// The address that a nonce is bound to: the sender's. For a stream, whose address is verified, the port is
    /// ignored, so a client's data connections need no challenge of their own (RFC 6062 §4.3).
    var nonceAddress: TransportAddress { transport.isStream ? remote.host : remote }
}

/// An allocation of this node. A number is reused only after 2^32 others.
public struct AllocationID: RawRepresentable, Hashable, Sendable {
    public let rawValue: UInt32
    public init(rawValue: UInt32) { self.rawValue = rawValue }
}

/// The 16 random bytes that identify a movable allocation between nodes. Clients carry them sealed, as a ticket that
/// proves, with their credential, that the allocation is theirs (RFC 8016 §3.1).
public struct MobilityTicket: Hashable, Sendable {
    public let high: UInt64
    public let low: UInt64

    public init(high: UInt64, low: UInt64) {
        self.high = high
        self.low = low
    }

    /// From its bytes; nil if they are not 16.
    public init?(bytes: some Collection<UInt8>) {
        guard bytes.count == 16 else { return nil }
        let all = Array(bytes)
        self.init(high: all.bigEndian64(at: 0), low: all.bigEndian64(at: 8))
    }

    public var bytes: [UInt8] {
        var bytes: [UInt8] = []
        bytes.append(bigEndian: high)
        bytes.append(bigEndian: low)
        return bytes
    }
}

/// The sockets that the shell must open for an allocation. It answers with `relayOpened` or `relayFailed`.
public struct RelayOpening: Hashable, Sendable {
    /// The number of this request.
    public let request: UInt32
    public let flow: RelayFlow
    /// The requested families. The second is optional (ADDITIONAL-ADDRESS-FAMILY).
    public let families: [TransportAddress.Family]
    /// True for a listening TCP socket (RFC 6062), false for UDP.
    public let isTCP: Bool
    /// True if the port must be even (EVEN-PORT).
    public let isEvenPort: Bool
    /// If set, the next port is reserved under this token.
    public let reserveNextAs: UInt64?
    /// If set, the port reserved under this token is used.
    public let reserved: UInt64?
    /// The port to use if it is free: that of the allocation on the node that died.
    public let preferredPort: UInt16?
}

/// A record of an allocation that ended, for the log and for accounting.
public struct AllocationSummary: Hashable, Sendable {
    /// The reason for which an allocation ended.
    public enum Reason: String, Sendable, Hashable {
        case deleted, expired, streamClosed = "stream-closed", movedAway = "moved-away", closedByNode = "closed-by-node"
        /// The process shut down.
        case shutdown
    }

    public let allocation: AllocationID
    public let user: String
    public let flow: RelayFlow
    public let relayed: [TransportAddress]
    public let started: MonotonicTime
    public var counters: RelayCounters
    public let reason: Reason
}

/// The traffic of an allocation; `up` is from the client to peers.
public struct RelayCounters: Hashable, Sendable {
    public var packetsUp: UInt64 = 0
    public var bytesUp: UInt64 = 0
    public var packetsDown: UInt64 = 0
    public var bytesDown: UInt64 = 0
    public init() {}

    public static func + (left: Self, right: Self) -> Self {
        var sum = left
        sum.packetsUp &+= right.packetsUp
        sum.bytesUp &+= right.bytesUp
        sum.packetsDown &+= right.packetsDown
        sum.bytesDown &+= right.bytesDown
        return sum
    }
}

/// The state with which another node can continue an allocation (RFC 8016, D8); about 300 bytes.
public struct AllocationMirror: Hashable, Sendable {
    public struct Channel: Hashable, Sendable {
        public let number: UInt16
        public let peer: TransportAddress
        public init(number: UInt16, peer: TransportAddress) {
            self.number = number
            self.peer = peer
        }
    }

    public let ticket: MobilityTicket
    public let username: String
    public let relayed: [TransportAddress]
    /// The remaining lifetime of the allocation at the moment of mirroring.
    public let remaining: Duration
    public let permissions: [TransportAddress]
    public let channels: [Channel]

    public init(
        ticket: MobilityTicket, username: String, relayed: [TransportAddress], remaining: Duration,
        permissions: [TransportAddress], channels: [Channel]
    ) {
        self.ticket = ticket
        self.username = username
        self.relayed = relayed
        self.remaining = remaining
        self.permissions = permissions
        self.channels = channels
    }
}

/// The actions of ``TurnServerStateMachine``, to be carried out in order.
public enum TurnAction: Hashable, Sendable {
    /// Send this STUN message to the client.
    case reply(RelayFlow, [UInt8])
    case openRelay(RelayOpening)
    /// Close the relayed sockets of this opening.
    case closeRelay(request: UInt32)
    /// Close the reserved port under this token.
    case closeReserved(UInt64)

    // For the plane. `request` names the opening whose sockets the allocation uses.
    case install(AllocationID, RelayFlow, relayed: [TransportAddress], request: UInt32)
    /// Data from and to this host may pass, to the host only at these ports. For ``PeerPolicy/judgedPorts`` the machine
    /// checks each port.
    case permit(AllocationID, TransportAddress, ports: ClosedRange<UInt16>)
    case revoke(AllocationID, TransportAddress)
    case bindChannel(AllocationID, UInt16, TransportAddress)
    case unbindChannel(AllocationID, UInt16)
    /// The client continues from another address at the same plane.
    case moveFlow(AllocationID, RelayFlow)
    /// The client continues at another plane, which gets the relayed socket. Permissions and channels follow.
    case transfer(AllocationID, from: RelayFlow, to: RelayFlow)
    /// Close the relayed address of one family. The other one stays.
    case closeFamily(AllocationID, TransportAddress.Family)
    case remove(AllocationID)
    case closeStream(RelayFlow)
    /// Send this to the peer, for a Send indication that the plane passed to the machine.
    case sendToPeer(AllocationID, TransportAddress, [UInt8], dontFragment: Bool)

    // TCP relaying (RFC 6062).
    /// Connect from the relayed address to a peer; answer with `peerConnected` or `peerFailed`.
    case connectPeer(AllocationID, connection: UInt32, TransportAddress)
    /// Send this answer on the client's stream, and from then on relay between it and the peer's connection. This is
    /// one action, since the client's first bytes may arrive as soon as it has the answer.
    case joinStreams(RelayFlow, AllocationID, connection: UInt32, answer: [UInt8])
    /// Close the connection to the peer, and the client's stream that is joined with it.
    case closePeer(AllocationID, connection: UInt32)

    /// An allocation began.
    case began(AllocationID, RelayFlow, user: String, relayed: [TransportAddress])
    case ended(AllocationSummary)
    /// Send this to the standby. It replaces the mirror under `replacing`.
    case mirror(AllocationMirror, replacing: MobilityTicket?)
    case unmirror(MobilityTicket)
    /// Ask the other nodes for the allocation of this ticket and user name; answer with `claimed`.
    case claim(UInt32, MobilityTicket, username: String)
    /// An allocation of another node continues here. If that node still has it, it must end it.
    case revived(MobilityTicket, home: UInt64)
}

/// The reason for which a relayed address could not be opened.
public enum RelayFailure: Sendable, Hashable {
    /// No port, or no even pair of ports, is free, or the machine has no resources.
    case noCapacity
    /// The node has no address of the family.
    case familyUnsupported
}
