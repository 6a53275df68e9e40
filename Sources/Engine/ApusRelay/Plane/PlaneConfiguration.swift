package import ApusTraversal

/// A plane's listeners and limits (D13).
package struct PlaneConfiguration: Sendable {
    /// Addresses of the datagram listener. A client is answered from the address that it sent to, so a machine with
    /// several addresses lists each of them instead of a wildcard.
    package var datagramAddresses: [TransportAddress]
    /// Addresses of the stream listener.
    package var streamAddresses: [TransportAddress]
    /// Addresses of the TLS and the DTLS listener. Without ``security`` they are not opened.
    package var secureStreamAddresses: [TransportAddress] = []
    package var secureDatagramAddresses: [TransportAddress] = []
    /// The public addresses of this machine before a NAT. Indications contain these (RFC 8656 §11).
    package var externals = ExternalAddresses()
    /// Proxies. Connections from these begin with a ``ProxyHeader``.
    package var proxies: [PeerRule] = []
    /// The certificate of the TLS and DTLS listeners.
    package var security: EndpointSecurity?

    /// Allocations of one plane. Further ones are refused.
    package var allocationsMax = 16_384
    /// The rate limit of all allocations of this plane together, in both directions: its part of the node's limit.
    package var nodeRate = RelayRate()
    /// Permissions of one allocation. Further ones are refused.
    package var permissionsMax = 256
    /// Channels of one allocation. Further ones are refused.
    package var channelsMax = 256
    /// Client connections of one plane. Further ones are closed at once.
    package var streamsMax = 4_096
    /// Client connections of all planes that share it. Further ones are closed at once.
    package var streamBudget = StreamBudget()
    /// Connections of one plane to peers (RFC 6062). Further ones fail.
    package var peersMax = 4_096
    /// DTLS sessions of one plane, about 40 KiB each. Further clients get none.
    package var sessionsMax = 4_096
    /// TLS connections and DTLS sessions with an incomplete handshake. The oldest is displaced.
    package var handshakesMax = 256
    /// Those of one source (an IPv4 address, an IPv6 /64). Its own oldest is displaced.
    package var handshakesPerSourceMax = 128
    /// The time in which a connection or session must get an allocation or a peer's connection, from its start or from
    /// the end of an allocation. It is then closed.
    package var unauthenticatedTimeout = Duration.seconds(15)
    /// Unauthenticated connections, and sessions, of one source. Its own oldest is displaced.
    package var unauthenticatedPerSourceMax = 1_024
    /// Bytes of an incomplete message that are kept for an unauthenticated connection. With more the connection is
    /// closed.
    package var unauthenticatedCarryMax = 2_048
    /// Bytes of answers that wait for such a client if it does not read. Further ones are dropped and counted.
    package var unauthenticatedOutputMax = 4_096
    /// The time-out of the handshake, from the connect, or from the cookie's return.
    package var handshakeTimeout = Duration.seconds(10)
    /// Bytes that wait for a client that does not read. Further data is dropped and counted.
    package var streamOutputMax = 256 * 1_024
    /// The idle time after which a connection or session without an allocation is closed.
    package var streamIdleMax = Duration.seconds(30)
    /// Busy channels of one plane with a socket connected to their peer. Others have none.
    package var connectedFlowsMax = 1_024
    /// ICMP errors per second of which the client of one allocation is notified. Further ones are counted. 0: the
    /// kernel keeps none, and clients are not notified.
    package var peerErrorsPerSecondMax = 16
    /// The longest STUN message that control accepts, in bytes. Longer ones are dropped and counted.
    package var controlMessageMax = 2_048
    /// STUN messages of one allocation that take precedence over those of clients without an allocation: at once, and
    /// per second. Further ones wait with the others.
    package var controlShareBurst = 256.0
    package var controlSharePerSecond = 128.0
    /// Events and commands that wait between a plane and control; separately, as many messages of clients without an
    /// allocation.
    package var ringCapacity = 4_096
    /// The kernel buffers of a listener and of a relay socket in bytes, if the system allows them.
    package var listenerBufferBytes = 8 * 1_024 * 1_024
    package var relayBufferBytes = 512 * 1_024
    /// The longest datagram that is put into a run of equal ones: it fits a 1,500 byte link.
    package var segmentMax = 1_452
    /// True to carry over DSCP, ECN and TTL of datagrams (RFC 8656 §14). Otherwise the machine's own are used.
    package var carriesMarks = true
    /// The plane's pause between rounds, if that saves CPU time; see ``RestStateMachine``. 0: never.
    package var restMicroseconds = 50
    /// True to use joined receives and split sends if the kernel supports them.
    package var usesOffload = true

    package init(datagramAddresses: [TransportAddress], streamAddresses: [TransportAddress] = []) {
        self.datagramAddresses = datagramAddresses
        self.streamAddresses = streamAddresses
    }
}
