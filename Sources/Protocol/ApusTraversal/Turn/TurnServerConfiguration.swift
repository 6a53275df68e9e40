/// What a TURN server is told once: its secrets, its rules and its bounds (D8, D13). Times are spans; counts are whole.
public struct TurnServerConfiguration: Sendable {
    /// Realm and secrets of the credentials.
    public var credentials: RelayCredentials
    /// Users whose keys stand in a file; their names go before those of time-limited credentials.
    public var users = StaticUsers()
    /// The key of nonces, the same on all nodes of a cluster; 32 random bytes.
    public var nonceKey: [UInt8]
    /// The key of mobility tickets, the same on all nodes of a cluster; 32 random bytes. Default: made of the nonces'.
    public var ticketKey: [UInt8]
    /// This life of this node, as tickets name it; no two lives of nodes of a cluster have the same.
    public var node: UInt64 = 0
    /// Whether other nodes may hold what a client with an authentic ticket looks for here.
    public var hasPeers = false
    /// How long a nonce is good; RFC 8656 §5 wants an hour at most.
    public var nonceLifetime: Duration = .seconds(3600)
    /// How long after the end of its credential an allocation that lives may still be refreshed: a client of WebRTC
    /// cannot change the credential of an allocation that it has.
    public var credentialGrace: Duration = .seconds(24 * 3600)
    /// The families of which this node can open relayed addresses.
    public var families: [TransportAddress.Family] = [.v4]
    public var peers = PeerPolicy()

    /// Lifetime of an allocation where none is asked for (RFC 8656 §7.2).
    public var lifetimeDefault: Duration = .seconds(600)
    /// The shortest lifetime that is granted where a shorter one is asked for; RFC 8656 §7.2 wants the default.
    public var lifetimeMin: Duration = .seconds(600)
    public var lifetimeMax: Duration = .seconds(3600)
    /// Lifetime of a permission (RFC 8656 §9).
    public var permissionLifetime: Duration = .seconds(300)
    /// Lifetime of a channel (RFC 8656 §12).
    public var channelLifetime: Duration = .seconds(600)
    /// How long allocations may live on where the node leaves.
    public var drainLifetime: Duration = .seconds(600)
    /// How long a reserved port waits (RFC 8656 §7.2).
    public var reservationLifetime: Duration = .seconds(30)
    /// How long the opening of a relayed address may take before the request is forgotten.
    public var openTimeout: Duration = .seconds(5)

    /// Allocations of this node, those being opened counted; beyond it 508.
    public var allocationsMax = 16_384
    /// Allocations of one user on this node; beyond it 486.
    public var allocationsPerUserMax = 64
    /// Allocations of one user on all nodes; beyond it 486; 0: only each node's own bound.
    public var allocationsPerClusterUserMax = 0
    /// New peers that one user may name at once and per second here; beyond it 508. 0 per second: no bound.
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
    /// Reserved ports that wait; beyond it 508.
    public var reservationsMax = 1024
    /// Of these, those of one user; beyond it 508.
    public var reservationsPerUserMax = 16
    /// Mirrors of other nodes' allocations that are kept; beyond it a new one is not taken.
    public var mirrorsMax = 16_384
    /// Tickets whose allocations other nodes are asked for at once; a client that comes then is not answered and asks
    /// again (RFC 8489 §6.2.1).
    public var claimsMax = 1024
    /// How long other nodes may take to answer before the client is told that there is nothing.
    public var claimTimeout: Duration = .seconds(1)
    /// User names kept for USERHASH; the oldest goes.
    public var userhashesMax = 4096
    /// Expiries that one tick works off; the next deadline then is in the past, so that the shell ticks again after it
    /// has served its sockets.
    public var expiriesPerTickMax = 256

    /// So many at once, and so many per second.
    public struct Rate: Sendable, Hashable {
        public var burst: Int
        public var perSecond: Double

        public init(burst: Int, perSecond: Double) {
            self.burst = burst
            self.perSecond = perSecond
        }
    }

    /// Answers to one address that it has not authenticated for, over UDP: challenges and refusals, at once and per
    /// second.
    public var challengeBurst = 2_048
    public var challengesPerSecond = 128.0
    /// The same of one address and port.
    public var portChallenges = Rate(burst: 16, perSecond: 8)
    /// Challenges that each Allocate with a right credential lets its address have more, and how many an address may
    /// have so: 3,000 clients behind one NAT come back at once.
    public var challengesPerProof = 2
    public var challengeCreditMax = 8_192
    /// Requests with a wrong credential of one address and port, of one address, and of one allocation, whose proof is
    /// looked at; further ones are dropped before anything is hashed.
    public var portProofFailures = Rate(burst: 64, perSecond: 16)
    public var addressProofFailures = Rate(burst: 1_024, perSecond: 512)
    /// What an address and port has beside that of its address: neighbours that show wrong credentials leave it to a
    /// client that shows none.
    public var proofReserve = Rate(burst: 1, perSecond: 0.1)
    public var allocationProofFailures = Rate(burst: 64, perSecond: 16)
    /// Answers to Binding requests of one source, at once and per second.
    public var bindingBurst = 1024
    public var bindingsPerSecond = 512.0
    /// Rows of each table of addresses; those of addresses with ports have eight times as many.
    public var sourceRows = 8192

    /// Numbers that channels may have. ``ChannelDataHeader/legacyChannelNumbers`` lets older clients choose theirs.
    public var channelNumbers = ChannelDataHeader.channelNumbers
    /// RFC 8016: clients may ask for tickets.
    public var isMobilityAllowed = true
    /// RFC 6062: clients may ask for TCP relaying.
    public var isTCPAllowed = false

    public init(credentials: RelayCredentials, nonceKey: [UInt8]) {
        self.credentials = credentials
        self.nonceKey = nonceKey
        ticketKey = Keyed.sha256(nonceKey, Array("apus relay tickets".utf8)[...])
    }
}

extension TurnServerConfiguration {
    /// Until when a user name is good, in seconds since 1970, and whose it is; nil for a name of no form that is known.
    /// A static user's is good for ever.
    func identity(of username: String) -> (expiry: Int64, user: String)? {
        users.contains(username) ? (.max, username) : RelayCredentials.parse(username)
    }

    /// The keys that a user name may have.
    func keys(of username: String, algorithm: StunPasswordAlgorithm) -> [StunKey] {
        guard users.contains(username) else { return credentials.keys(of: username, algorithm: algorithm) }
        return users.key(of: username, algorithm: algorithm).map { [$0] } ?? []
    }
}
