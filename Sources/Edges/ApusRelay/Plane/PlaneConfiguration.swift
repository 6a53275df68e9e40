package import ApusTraversal

/// Where a plane listens, and its bounds (D13).
package struct PlaneConfiguration: Sendable {
    /// Addresses of the datagram door. A client is answered from the address that it wrote to, so a machine
    /// with several addresses names each instead of a wildcard.
    package var datagramAddresses: [TransportAddress]
    /// Addresses of the stream door.
    package var streamAddresses: [TransportAddress]
    /// Addresses of the TLS and of the DTLS door; without ``security`` they stay closed.
    package var secureStreamAddresses: [TransportAddress] = []
    package var secureDatagramAddresses: [TransportAddress] = []
    /// What addresses of this machine are before a NAT: indications name these (RFC 8656 §11).
    package var externals = ExternalAddresses()
    /// Proxies: connections from there begin with a ``ProxyHeader``.
    package var proxies: [PeerRule] = []
    /// The certificate of the TLS and DTLS doors.
    package var security: DoorSecurity?

    /// Allocations of one plane; more are refused.
    package var allocationsMax = 16_384
    /// What all allocations of this plane may carry together, both ways: its part of the node's bound.
    package var nodeRate = RelayRate()
    /// Permissions of one allocation; more are refused.
    package var permissionsMax = 256
    /// Channels of one allocation; more are refused.
    package var channelsMax = 256
    /// Client connections of one plane; more are closed at once.
    package var streamsMax = 4_096
    /// Client connections of all planes that share it; more are closed at once.
    package var streamBudget = StreamBudget()
    /// Connections of one plane to peers (RFC 6062); more fail.
    package var peersMax = 4_096
    /// DTLS sessions of one plane, about 40 KiB each; clients beyond get none.
    package var sessionsMax = 4_096
    /// Connections of the TLS door, and sessions of the DTLS door, whose handshake is not done; the oldest makes room.
    package var handshakesMax = 256
    /// Of these, those of one source (an IPv4 address, an IPv6 /64); its own oldest makes room.
    package var handshakesPerSourceMax = 128
    /// The time from connecting, or from the end of an allocation, until a connection or session has an allocation or a
    /// peer's connection; it is closed then.
    package var unauthenticatedTimeout = Duration.seconds(15)
    /// Connections, and sessions, of one source that have neither; its own oldest makes room.
    package var unauthenticatedPerSourceMax = 1_024
    /// Bytes that are kept of a message that has not come whole on a connection that has neither; a connection with
    /// more is closed.
    package var unauthenticatedCarryMax = 2_048
    /// Bytes of answers that wait for such a client where it does not read; more are dropped and counted.
    package var unauthenticatedOutputMax = 4_096
    /// The time from connecting, or from the cookie's return, to the end of the handshake.
    package var handshakeTimeout = Duration.seconds(10)
    /// Bytes that wait for a client that does not read; what comes then is dropped and counted.
    package var streamOutputMax = 256 * 1_024
    /// A connection or session without an allocation that says nothing for so long is closed.
    package var streamIdleMax = Duration.seconds(30)
    /// Channels of one plane that have a socket connected to their peer, since they carry much; others do without.
    package var connectedFlowsMax = 1_024
    /// ICMP errors of its peers that the client of one allocation is told of in a second; what is more is counted. 0:
    /// the kernel keeps none, and clients hear nothing.
    package var peerErrorsPerSecondMax = 16
    /// Bytes of a STUN message that control takes; longer ones are dropped and counted.
    package var controlMessageMax = 2_048
    /// STUN messages of one allocation that go to control before those of clients that have none: at once, and per
    /// second. What is more waits with theirs.
    package var controlShareBurst = 256.0
    package var controlSharePerSecond = 128.0
    /// Events and commands that wait between a plane and control; as many messages of clients without an allocation.
    package var ringCapacity = 4_096
    /// Bytes of kernel buffers of a listener and of a relay socket, where the system gives them.
    package var listenerBufferBytes = 8 * 1_024 * 1_024
    package var relayBufferBytes = 512 * 1_024
    /// The longest datagram that is put into a run of equal ones: what fits a 1,500 byte link.
    package var segmentMax = 1_452
    /// Whether DSCP, ECN and TTL of datagrams are carried over (RFC 8656 §14); else the machine's own are sent.
    package var carriesMarks = true
    /// How long the plane rests between rounds where that saves CPU time; see ``RestStateMachine``. 0: never.
    package var restMicroseconds = 50
    /// Whether joined receiving and cut sending are used where the kernel has them.
    package var usesOffload = true

    package init(datagramAddresses: [TransportAddress], streamAddresses: [TransportAddress] = []) {
        self.datagramAddresses = datagramAddresses
        self.streamAddresses = streamAddresses
    }
}
