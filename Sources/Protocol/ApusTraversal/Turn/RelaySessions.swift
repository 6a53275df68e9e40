/// The allocations of a relay for operators: the answer of `/v1/admin/relay/sessions`.
public struct RelaySessions: Codable, Sendable, Equatable {
    /// The most allocations in one answer.
    public static let countMax = 10_000

    /// One allocation.
    public struct Session: Codable, Sendable, Equatable {
        /// Its number at this node, for `apus relay end`.
        public var id: UInt32
        public var user: String
        /// The client's address and transport: udp, tcp, tls or dtls.
        public var client: String
        public var transport: String
        public var relayed: [String]
        public var permissions: Int
        public var channels: Int
        /// TCP connections to peers (RFC 6062).
        public var connections: Int
        public var age_s: Double
        /// The remaining lifetime, unless it is refreshed.
        public var expires_in_s: Double
        public var packets_up: UInt64
        public var bytes_up: UInt64
        public var packets_down: UInt64
        public var bytes_down: UInt64

        public init(
            id: UInt32, user: String, client: String, transport: String, relayed: [String], permissions: Int,
            channels: Int, connections: Int, age_s: Double, expires_in_s: Double, packets_up: UInt64, bytes_up: UInt64,
            packets_down: UInt64, bytes_down: UInt64
        ) {
            self.id = id
            self.user = user
            self.client = client
            self.transport = transport
            self.relayed = relayed
            self.permissions = permissions
            self.channels = channels
            self.connections = connections
            self.age_s = age_s
            self.expires_in_s = expires_in_s
            self.packets_up = packets_up
            self.bytes_up = bytes_up
            self.packets_down = packets_down
            self.bytes_down = bytes_down
        }
    }

    /// The total number. It is larger than the number of ``sessions`` if those do not fit one answer.
    public var count: Int
    /// The oldest first.
    public var sessions: [Session]

    public init(count: Int = 0, sessions: [Session] = []) {
        self.count = count
        self.sessions = sessions
    }
}

/// An operator's selection of allocations.
public enum RelaySelection: Sendable, Hashable {
    case one(UInt32)
    case user(String)
    case all
}
