/// The configuration of a TURN server: secrets, rules and limits (D8, D13). Times are durations.
public struct TurnServerConfiguration: Sendable {
    /// Realm and secrets of the credentials.
    public var credentials: RelayCredentials
    /// Users whose keys are in a file. Their names take precedence over those of time-limited credentials.
    public var users = StaticUsers()
    /// The key of nonces, the same on all nodes of a cluster; 32 random bytes.
    public var nonceKey: [UInt8]
    /// The key of mobility tickets, the same on all nodes of a cluster; 32 random bytes. By default it is derived from
    /// the nonces' key.
    public var ticketKey: [UInt8]
    /// This incarnation of this node, as in tickets. It must be unique among all incarnations of all nodes of a
    /// cluster.
    public var node: UInt64 = 0
    /// True if other nodes may hold the allocation of a client with an authentic ticket.
    public var hasPeers = false
    /// The lifetime of a nonce. RFC 8656 §5 demands at most an hour.
    public var nonceLifetime: Duration = .seconds(3600)
    /// The time after the expiry of its credential in which an allocation may still be refreshed: a WebRTC client
    /// cannot change the credential of an allocation.
    public var credentialGrace: Duration = .seconds(24 * 3600)
    /// The families of which this node can open relayed addresses.
    public var families: [TransportAddress.Family] = [.v4]
    public var peers = PeerPolicy()

    /// The lifetime of an allocation if none is requested (RFC 8656 §7.2).
    public var lifetimeDefault: Duration = .seconds(600)
    /// The shortest lifetime that is granted. RFC 8656 §7.2 demands the default.
    public var lifetimeMin: Duration = .seconds(600)
    public var lifetimeMax: Duration = .seconds(3600)
    /// The lifetime of a permission (RFC 8656 §9).
    public var permissionLifetime: Duration = .seconds(300)
    /// The lifetime of a channel (RFC 8656 §12).
    public var channelLifetime: Duration = .seconds(600)
    /// The remaining lifetime of allocations when the node drains.
    public var drainLifetime: Duration = .seconds(600)
    /// The lifetime of a reserved port (RFC 8656 §7.2).
    public var reservationLifetime: Duration = .seconds(30)
    /// The time-out for the opening of a relayed address.
    public var openTimeout: Duration = .seconds(5)

    /// Allocations of this node, including those that are being opened; beyond it 508.
    public var allocationsMax = 16_384
    /// Allocations of one user on this node; beyond it 486.
    public var allocationsPerUserMax = 64
    /// Allocations of one user on all nodes; beyond it 486. 0: only the limit of each node applies.
    public var allocationsPerClusterUserMax = 0
    /// New peers that one user may name at once and per second at this node; beyond it 508. 0 per second: no limit.
    public var newPeerBurst = 128
    public var newPeersPerSecond = 0.0
    /// Permissions of one allocation; beyond it 508.
    public var permissionsMax = 64
    /// Channels of one allocation; beyond it 508.
    public var channelsMax = 64
    /// TCP connections of one allocation; beyond it 508 (RFC 6062).
    public var connectionsMax = 16
    /// TCP connections of all allocations of this node; beyond it 508.
    public var connectionsPerNodeMax = 4096
    /// Peers named in one CreatePermission; beyond it 400.
    public var peersPerRequestMax = 16
    /// Reserved ports; beyond it 508.
    public var reservationsMax = 1024
    /// Reserved ports of one user; beyond it 508.
    public var reservationsPerUserMax = 16
    /// Mirrors of other nodes' allocations. Beyond it a new one is refused.
    public var mirrorsMax = 16_384
    /// Tickets that are looked up at other nodes at the same time. Beyond it a client gets no answer and retransmits
    /// (RFC 8489 §6.2.1).
    public var claimsMax = 1024
    /// The time-out of such a look-up. The client is then refused.
    public var claimTimeout: Duration = .seconds(1)
    /// User names stored for USERHASH. The oldest is removed.
    public var userhashesMax = 4096
    /// The most expiries that one tick handles. If more are due, the next deadline is in the past, so that the shell
    /// ticks again after it has served its sockets.
    public var expiriesPerTickMax = 256

    /// A burst, and a rate per second.
    public struct Rate: Sendable, Hashable {
        public var burst: Int
        public var perSecond: Double

        public init(burst: Int, perSecond: Double) {
            self.burst = burst
            self.perSecond = perSecond
        }
    }

    /// Unauthenticated answers to one address over UDP (challenges and refusals), at once and per second.
    public var challengeBurst = 2_048
    public var challengesPerSecond = 128.0
    /// The same for one address and port.
    public var portChallenges = Rate(burst: 16, perSecond: 8)
    /// The additional challenges that an address gets for each Allocate with a valid credential, and their limit: 3,000
    /// clients behind one NAT may return at once.
    public var challengesPerProof = 2
    public var challengeCreditMax = 8_192
    /// Requests with a wrong credential whose MAC is checked: per address and port, per address, and per allocation.
    /// Further ones are dropped before anything is hashed.
    public var portProofFailures = Rate(burst: 64, perSecond: 16)
    public var addressProofFailures = Rate(burst: 1_024, perSecond: 512)
    /// A reserve of an address and port in addition to the limit of its address. Neighbours with wrong credentials do
    /// not use the reserve of a client that shows none.
    public var proofReserve = Rate(burst: 1, perSecond: 0.1)
    public var allocationProofFailures = Rate(burst: 64, perSecond: 16)
    /// Answers to Binding requests per source, at once and per second.
    public var bindingBurst = 1024
    public var bindingsPerSecond = 512.0
    /// Rows of each table of addresses. Tables of addresses with ports have eight times as many.
    public var sourceRows = 8192

    /// The valid channel numbers. ``ChannelDataHeader/legacyChannelNumbers`` supports older clients.
    public var channelNumbers = ChannelDataHeader.channelNumbers
    /// RFC 8016: clients may request tickets.
    public var isMobilityAllowed = true
    /// RFC 6062: clients may request TCP relaying.
    public var isTCPAllowed = false

    public init(credentials: RelayCredentials, nonceKey: [UInt8]) {
        self.credentials = credentials
        self.nonceKey = nonceKey
        ticketKey = Keyed.sha256(nonceKey, Array("apus relay tickets".utf8)[...])
    }
}

extension TurnServerConfiguration {
    /// The expiry of a user name in Unix seconds, and its user; nil if the name has no known form. A static user does
    /// not expire.
    func identity(of username: String) -> (expiry: Int64, user: String)? {
        users.contains(username) ? (.max, username) : RelayCredentials.parse(username)
    }

    /// The possible keys of a user name.
    func keys(of username: String, algorithm: StunPasswordAlgorithm) -> [StunKey] {
        guard users.contains(username) else { return credentials.keys(of: username, algorithm: algorithm) }
        return users.key(of: username, algorithm: algorithm).map { [$0] } ?? []
    }
}
