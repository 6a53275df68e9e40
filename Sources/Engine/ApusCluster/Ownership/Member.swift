public import ApusCore

/// An index into ``ClusterMap/members``.
public struct MemberSlot: Sendable, Hashable {
    public let rawValue: UInt16
    public init(rawValue: UInt16) { self.rawValue = rawValue }
    /// No member.
    public static let none = MemberSlot(rawValue: 0xffff)
}

/// A node in the map.
public struct Member: Sendable, Hashable {
    public enum State: UInt8, Sendable, Hashable, CaseIterable {
        /// Accepts shards.
        case up = 1
        /// Serves its shards and hands them over. Accepts no new ones.
        case draining = 2
        /// Declared dead; this incarnation never returns.
        case dead = 3
        /// Left the cluster by itself, without shards.
        case left = 4

        public var isAlive: Bool { self == .up || self == .draining }
    }

    public var id: NodeID
    public var state: State
    public var addresses: NodeAddresses
    /// Its share of the shards relative to the other members' weights. The default is 100.
    public var weight: UInt32
    /// True if an operator cordoned the node: it keeps its shards and gets no new ones.
    public var isCordoned: Bool
    /// How many members it expects to watch each other; nil for a version that watches all members.
    public var watchRule: WatchRule?
    /// The number that its process drew at random when it started: two processes with one configuration differ in it.
    /// 0 if it is unknown: a node of an earlier version wrote the map since it joined.
    public var process: UInt64

    /// True if shards may be given to it.
    public var acceptsShards: Bool { state == .up && !isCordoned }

    public init(
        id: NodeID, state: State, addresses: NodeAddresses, weight: UInt32 = 100, isCordoned: Bool = false,
        watchRule: WatchRule? = nil, process: UInt64 = 0
    ) {
        self.id = id
        self.state = state
        self.addresses = addresses
        self.weight = weight
        self.isCordoned = isCordoned
        self.watchRule = watchRule
        self.process = process
    }
}

/// The addresses of a node.
public struct NodeAddresses: Sendable, Hashable {
    /// Node links (TCP) and heartbeats (UDP).
    public var transport: HostPort
    /// Devices and apps.
    public var clients: HostPort
    /// Status, metrics and health.
    public var http: HostPort

    public init(transport: HostPort, clients: HostPort, http: HostPort) {
        self.transport = transport
        self.clients = clients
        self.http = http
    }
}
