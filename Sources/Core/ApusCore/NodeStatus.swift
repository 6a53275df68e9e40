/// What a node says of itself over HTTP (`/v1/status`), and `apus cluster status --json` for each node.
public struct NodeStatus: Codable, Sendable, Equatable {
    /// A channel that the node holds.
    public struct Channel: Codable, Sendable, Equatable {
        /// `DEVICE/SOURCE`.
        public var channel: String
        /// `primary`, `standby` or `edge`: what this node is for the channel.
        public var role: String
        public var primary: String?
        public var standby: String?
        public var term: UInt32
        /// The publisher's epoch and the newest sequence held here.
        public var epoch: UInt32?
        public var seq: UInt64?
        /// A standby confirms the frames too; meaningful at the primary.
        public var protected: Bool
        /// Frames come in, from a publisher or another node.
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
        /// STUN and TURN over UDP and TCP; nil if the node relays nothing.
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
        /// Nothing is left that another node could take: the node owns nothing, and stands by only where nobody else is
        /// up to do so. The clients of a node that was told to drain were sent away. Nil from a node that does not say.
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

    /// Packets and bytes of payload; `up` is from clients to peers.
    public struct RelayTraffic: Codable, Sendable, Equatable {
        public var packets_up: UInt64
        public var bytes_up: UInt64
        public var packets_down: UInt64
        public var bytes_down: UInt64
        /// Packets dropped either way: no permission, no channel, no room, or over a quota.
        public var dropped: UInt64

        public init(packets_up: UInt64, bytes_up: UInt64, packets_down: UInt64, bytes_down: UInt64, dropped: UInt64) {
            self.packets_up = packets_up
            self.bytes_up = bytes_up
            self.packets_down = packets_down
            self.bytes_down = bytes_down
            self.dropped = dropped
        }
    }

    /// What one user has at the node's relay.
    public struct RelayUser: Codable, Sendable, Equatable {
        public var user: String
        public var allocations: Int
        /// Since the first of the allocations that it has began.
        public var traffic: RelayTraffic

        public init(user: String, allocations: Int, traffic: RelayTraffic) {
            self.user = user
            self.allocations = allocations
            self.traffic = traffic
        }
    }

    /// The node's relay.
    public struct Relay: Codable, Sendable, Equatable {
        /// Allocations that live here.
        public var allocations: Int
        /// Allocations of other nodes whose state is kept here.
        public var mirrors: Int
        /// The node that keeps the state of this one's.
        public var standby: String?
        public var draining: Bool
        /// Since the node's start.
        public var traffic: RelayTraffic
        /// Users with an allocation.
        public var user_count: Int
        /// Those of them that carried most; at most 50.
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
    /// The ownership map's revision that this node has.
    public var revision: UInt64
    /// Members that the map calls alive.
    public var members: [String]
    public var uptime_s: Double
    /// Nil if the node relays nothing.
    public var relay: Relay?
    /// What keeps the node from its full service; empty on a good day. Nil from a node that does not say.
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
