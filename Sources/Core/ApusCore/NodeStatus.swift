/// A node's status over HTTP (`/v1/status`), and in `apus cluster status --json` for each node.
public struct NodeStatus: Codable, Sendable, Equatable {
    /// A channel that the node holds.
    public struct Channel: Codable, Sendable, Equatable {
        /// `DEVICE/SOURCE`.
        public var channel: String
        /// `primary`, `standby` or `edge`: the node's role for the channel.
        public var role: String
        public var primary: String?
        public var standby: String?
        public var term: UInt32
        /// The publisher's epoch and the newest sequence held here.
        public var epoch: UInt32?
        public var seq: UInt64?
        /// True if a standby confirms the frames too. Meaningful at the primary.
        public var protected: Bool
        /// True if frames arrive, from a publisher or another node.
        public var fed: Bool
        /// Receivers at this node, without standbys.
        public var viewers: Int

        public init(
            channel: String, role: String, primary: String?, standby: String?, term: UInt32, epoch: UInt32?,
            seq: UInt64?,
            protected: Bool, fed: Bool, viewers: Int
        ) {
            self.channel = channel
            self.role = role
            self.primary = primary
            self.standby = standby
            self.term = term
            self.epoch = epoch
            self.seq = seq
            self.protected = protected
            self.fed = fed
            self.viewers = viewers
        }
    }

    public struct Addresses: Codable, Sendable, Equatable {
        public var transport: String
        public var clients: String
        public var http: String
        /// STUN and TURN over UDP and TCP; nil if the node has no relay.
        public var relay: String?
        public init(transport: String, clients: String, http: String, relay: String? = nil) {
            self.transport = transport
            self.clients = clients
            self.http = http
            self.relay = relay
        }
    }

    public struct Shards: Codable, Sendable, Equatable {
        public var owned: Int
        public var standby: Int
        /// True if the node holds nothing that another node could take: it owns no shard, and is standby only where no
        /// other node is up to be one. The clients of a draining node were redirected. Nil if the node does not report
        /// it.
        public var drained: Bool?
        public init(owned: Int, standby: Int, drained: Bool? = nil) {
            self.owned = owned
            self.standby = standby
            self.drained = drained
        }
    }

    public struct Sessions: Codable, Sendable, Equatable {
        public var devices: Int
        public var apps: Int
        public init(devices: Int, apps: Int) {
            self.devices = devices
            self.apps = apps
        }
    }

    /// Packets and payload bytes; `up` is from clients to peers.
    public struct RelayTraffic: Codable, Sendable, Equatable {
        public var packets_up: UInt64
        public var bytes_up: UInt64
        public var packets_down: UInt64
        public var bytes_down: UInt64
        /// Dropped packets in both directions: no permission, no channel, no room, or over a quota.
        public var dropped: UInt64

        public init(packets_up: UInt64, bytes_up: UInt64, packets_down: UInt64, bytes_down: UInt64, dropped: UInt64) {
            self.packets_up = packets_up
            self.bytes_up = bytes_up
            self.packets_down = packets_down
            self.bytes_down = bytes_down
            self.dropped = dropped
        }
    }

    /// The usage of one user at the node's relay.
    public struct RelayUser: Codable, Sendable, Equatable {
        public var user: String
        public var allocations: Int
        /// Since the first of its current allocations began.
        public var traffic: RelayTraffic

        public init(user: String, allocations: Int, traffic: RelayTraffic) {
            self.user = user
            self.allocations = allocations
            self.traffic = traffic
        }
    }

    /// The node's relay.
    public struct Relay: Codable, Sendable, Equatable {
        /// The number of live allocations.
        public var allocations: Int
        /// The number of stored mirrors of other nodes' allocations.
        public var mirrors: Int
        /// The node that stores the mirrors of this node's allocations.
        public var standby: String?
        public var draining: Bool
        /// Since the node's start.
        public var traffic: RelayTraffic
        /// Users with an allocation.
        public var user_count: Int
        /// Those of them with the most traffic; at most 50.
        public var users: [RelayUser]

        public init(
            allocations: Int, mirrors: Int, standby: String?, draining: Bool, traffic: RelayTraffic, user_count: Int,
            users: [RelayUser]
        ) {
            self.allocations = allocations
            self.mirrors = mirrors
            self.standby = standby
            self.draining = draining
            self.traffic = traffic
            self.user_count = user_count
            self.users = users
        }
    }

    public var name: String
    public var incarnation: UInt64
    /// `joining`, `up`, `draining`, `fenced` or `stopped`.
    public var state: String
    public var addresses: Addresses
    public var shards: Shards
    public var sessions: Sessions
    public var viewers: Int
    public var channels: [Channel]
    /// The revision of the node's cluster map.
    public var revision: UInt64
    /// Members that are alive in the map.
    public var members: [String]
    public var uptime_s: Double
    /// Nil if the node has no relay.
    public var relay: Relay?
    /// The conditions that keep the node from full service; usually empty. Nil if the node does not report them.
    public var conditions: [NodeCondition]?

    public init(
        name: String, incarnation: UInt64, state: String, addresses: Addresses, shards: Shards, sessions: Sessions,
        viewers: Int, channels: [Channel], revision: UInt64, members: [String], uptime_s: Double,
        relay: Relay? = nil, conditions: [NodeCondition]? = nil
    ) {
        self.name = name
        self.incarnation = incarnation
        self.state = state
        self.addresses = addresses
        self.shards = shards
        self.sessions = sessions
        self.viewers = viewers
        self.channels = channels
        self.revision = revision
        self.members = members
        self.uptime_s = uptime_s
        self.relay = relay
        self.conditions = conditions
    }
}
