public import ApusCore

/// Who decided what about a ``ClusterMap``, when, and why: one decision, or a series of planned moves by one node.
public struct MapChange: Sendable, Hashable {
    /// What was decided. Unknown values of later versions are kept.
    public struct Kind: Sendable, Hashable, RawRepresentable, CustomStringConvertible {
        public let rawValue: UInt8
        public init(rawValue: UInt8) { self.rawValue = rawValue }

        /// A node started.
        public static let joined = Kind(rawValue: 1)
        /// Nodes were declared dead.
        public static let dead = Kind(rawValue: 2)
        /// A node began to hand over its shards.
        public static let draining = Kind(rawValue: 3)
        /// A node stopped.
        public static let left = Kind(rawValue: 4)
        /// A node moved shards towards their place.
        public static let rebalanced = Kind(rawValue: 5)
        /// A draining node moved its shards.
        public static let drained = Kind(rawValue: 6)
        public static let cordoned = Kind(rawValue: 7)
        public static let uncordoned = Kind(rawValue: 8)
        /// A node's weight was changed.
        public static let weighted = Kind(rawValue: 9)
        /// An operator restored the map of a node.
        public static let restored = Kind(rawValue: 10)
        /// A node's drain was ended.
        public static let undrained = Kind(rawValue: 11)

        private static let names = [
            "joined", "dead", "draining", "left", "rebalanced", "drained", "cordoned", "uncordoned", "weighted",
            "restored", "undrained",
        ]

        /// True for a series of moves, which are recorded together.
        var isSeries: Bool { self == .rebalanced || self == .drained }

        public var description: String {
            (1...Self.names.count).contains(Int(rawValue)) ? Self.names[Int(rawValue) - 1] : "unknown"
        }
    }

    /// Why a death was certain enough to be declared.
    public struct Reason: Sendable, Hashable, RawRepresentable, CustomStringConvertible {
        public let rawValue: UInt8
        public init(rawValue: UInt8) { self.rawValue = rawValue }

        public static let none = Reason(rawValue: 0)
        /// The process cannot act any more: its port refused connections, or its host reported it.
        public static let processEnded = Reason(rawValue: 1)
        /// Most members did not hear it.
        public static let unheardByMajority = Reason(rawValue: 2)
        /// Half of the members did not hear it, and its lease in the store ran out.
        public static let leaseExpired = Reason(rawValue: 3)

        public var description: String {
            switch self {
            case .none: ""
            case .processEnded: "process_ended"
            case .unheardByMajority: "unheard_by_majority"
            case .leaseExpired: "lease_expired"
            default: "unknown"
            }
        }
    }

    public var kind: Kind
    public var reason: Reason
    /// The node that decided; nil for an operator who used the cluster's files.
    public var maker: NodeID?
    /// The nodes that it concerns; at most ``MapHistory/nodeCountMax``.
    public var nodes: [NodeID]
    /// The revisions of the first and the last map of the series. They are equal for a single decision.
    public var revisions: ClosedRange<UInt64>
    /// The times of both, in Unix milliseconds by the cluster's clock as the maker has it. They are recorded, and
    /// nothing depends on them.
    public var milliseconds: ClosedRange<UInt64>
    /// The number of changes of shards' owners and standbys; a shard that it changed twice counts twice.
    public var shardCount: Int

    public init(
        kind: Kind, reason: Reason = .none, maker: NodeID?, nodes: [NodeID], revision: UInt64, milliseconds: UInt64,
        shardCount: Int = 0
    ) {
        self.kind = kind
        self.reason = reason
        self.maker = maker
        self.nodes = nodes
        revisions = revision...revision
        self.milliseconds = milliseconds...milliseconds
        self.shardCount = shardCount
    }
}

/// The origin of a decision: what ``MapHistory`` records of it besides the decision itself.
package struct ChangeOrigin: Sendable, Equatable {
    /// The node that decides; nil for an operator.
    package var maker: NodeID?
    /// The wall clock, in Unix milliseconds.
    package var milliseconds: UInt64
    package var reason: MapChange.Reason

    package init(maker: NodeID?, milliseconds: UInt64, reason: MapChange.Reason = .none) {
        self.maker = maker
        self.milliseconds = milliseconds
        self.reason = reason
    }
}
