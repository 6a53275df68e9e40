package import ApusCore

/// A node's status over HTTP (`/v1/status`), and in `apus cluster status --json` for each node.
package struct NodeStatus: Codable, Sendable, Equatable {
    /// A channel that the node holds.
    package struct Channel: Codable, Sendable, Equatable {
        /// `DEVICE/SOURCE`.
        package var channel: String
        /// `primary`, `standby` or `edge`: the node's role for the channel.
        package var role: String
        package var primary: String?
        package var standby: String?
        package var term: UInt32
        /// The publisher's epoch and the newest sequence held here.
        package var epoch: UInt32?
        package var seq: UInt64?
        /// True if a standby confirms the frames too. Meaningful at the primary.
        package var protected: Bool
        /// True if frames arrive, from a publisher or another node.
        package var fed: Bool
        /// Receivers at this node, without standbys.
        package var viewers: Int

        package init(
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

    package struct Addresses: Codable, Sendable, Equatable {
        package var transport: String
        package var clients: String
        package var http: String
        /// STUN and TURN over UDP and TCP; nil if the node has no relay.
        package var relay: String?
        package init(transport: String, clients: String, http: String, relay: String? = nil) {
            self.transport = transport
            self.clients = clients
            self.http = http
            self.relay = relay
        }
    }

    package struct Shards: Codable, Sendable, Equatable {
        package var owned: Int
        package var standby: Int
        /// True if the node holds nothing that another node could take: it owns no shard, and is standby only where no
        /// other node is up to be one. The clients of a draining node were redirected. Nil if the node does not report
        /// it.
        package var drained: Bool?
        /// The shards of all nodes that are not at their place, as this node sees it. Nil if the node does not report
        /// it.
        package var misplaced: Int?
        /// The shards with entities of which this node is the owner, and whose changes it acknowledges without a
        /// standby. Nil if the node does not report it.
        package var alone: Int?
        package init(owned: Int, standby: Int, drained: Bool? = nil, misplaced: Int? = nil, alone: Int? = nil) {
            self.owned = owned
            self.standby = standby
            self.drained = drained
            self.misplaced = misplaced
            self.alone = alone
        }
    }

    /// The program of the node. Of a node of an earlier version it is nil.
    package struct Program: Codable, Sendable, Equatable {
        /// Differs between two builds of the program (`ProgramBuild`).
        package var build: String
        /// The newest and the oldest wire version that it speaks with other nodes.
        package var wire: UInt32
        package var wire_oldest: UInt32
        package init(build: String, wire: UInt32, wire_oldest: UInt32) {
            self.build = build
            self.wire = wire
            self.wire_oldest = wire_oldest
        }
    }

    package struct Sessions: Codable, Sendable, Equatable {
        package var devices: Int
        package var apps: Int
        package init(devices: Int, apps: Int) {
            self.devices = devices
            self.apps = apps
        }
    }

    /// Packets and payload bytes; `up` is from clients to peers.
    package struct RelayTraffic: Codable, Sendable, Equatable {
        package var packets_up: UInt64
        package var bytes_up: UInt64
        package var packets_down: UInt64
        package var bytes_down: UInt64
        /// Dropped packets in both directions: no permission, no channel, no room, or over a quota.
        package var dropped: UInt64

        package init(packets_up: UInt64, bytes_up: UInt64, packets_down: UInt64, bytes_down: UInt64, dropped: UInt64) {
            self.packets_up = packets_up
            self.bytes_up = bytes_up
            self.packets_down = packets_down
            self.bytes_down = bytes_down
            self.dropped = dropped
        }
    }

    /// The usage of one user at the node's relay.
    package struct RelayUser: Codable, Sendable, Equatable {
        package var user: String
        package var allocations: Int
        /// Since the first of its current allocations began.
        package var traffic: RelayTraffic

        package init(user: String, allocations: Int, traffic: RelayTraffic) {
            self.user = user
            self.allocations = allocations
            self.traffic = traffic
        }
    }

    /// The node's relay.
    package struct Relay: Codable, Sendable, Equatable {
        /// The number of live allocations.
        package var allocations: Int
        /// The number of stored mirrors of other nodes' allocations.
        package var mirrors: Int
        /// The node that stores the mirrors of this node's allocations.
        package var standby: String?
        package var draining: Bool
        /// Since the node's start.
        package var traffic: RelayTraffic
        /// Users with an allocation.
        package var user_count: Int
        /// Those of them with the most traffic; at most 50.
        package var users: [RelayUser]

        package init(
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

    package var name: String
    package var incarnation: UInt64
    /// `joining`, `up`, `draining`, `fenced` or `stopped`.
    package var state: String
    package var addresses: Addresses
    package var shards: Shards
    package var sessions: Sessions
    package var viewers: Int
    package var channels: [Channel]
    /// The revision of the node's cluster map.
    package var revision: UInt64
    /// Members that are alive in the map.
    package var members: [String]
    package var uptime_s: Double
    /// Nil if the node has no relay.
    package var relay: Relay?
    /// The conditions that keep the node from full service; usually empty. Nil if the node does not report them.
    package var conditions: [NodeCondition]?
    /// Nil if the node does not report it.
    package var program: Program?
    /// True if the node was cordoned: it gets no new shards.
    package var cordoned: Bool?
    /// Its share of the shards relative to the other nodes' weights.
    package var weight: UInt32?

    package init(
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
