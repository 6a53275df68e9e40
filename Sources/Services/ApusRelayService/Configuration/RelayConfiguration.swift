package import ApusConfiguration
package import ApusCore
package import ApusTraversal

/// The configuration of a node's relay: the keys under `relay` (D8).
/// Every property is a key of `cluster-configs/one-node.yaml`, which documents its unit and when to change it.
package struct RelayConfiguration: Sendable {
    /// The maximum number of words in one list.
    private static let wordsMax = 64
    /// A shorter static secret, in bytes, can be guessed from one captured request; the log warns of it.
    package static let secretByteCountSafe = 16

    package var isEnabled = true
    /// Listeners for UDP and TCP; if empty, the machine's own addresses. A port of 0 stands for ``port``.
    package var addresses: [TransportAddress] = []
    package var port: UInt16 = 3478
    /// The port of the TLS and DTLS listeners, at the same addresses.
    package var securePort: UInt16 = 5349
    /// Listeners for TLS and DTLS; if empty, the hosts of ``addresses``. A port of 0 stands for ``securePort``.
    package var secureAddresses: [TransportAddress] = []
    /// Proxies whose connections begin with a header that names the client (PROXY protocol, version 2).
    package var proxies: [PeerRule] = []
    /// The PEM files of the TLS and DTLS listeners. If empty, these listeners stay closed.
    package var certificateFile = ""
    package var keyFile = ""
    /// The maximum number of pending handshakes of each TLS or DTLS listener of each thread. Beyond it the oldest is
    /// dropped.
    package var handshakesMax = 256
    package var handshakeTimeout = Duration.seconds(10)
    /// The maximum number of DTLS sessions of each thread.
    package var sessionsMax = 4096
    /// Relay addresses; if empty, the first of each family of ``addresses``. If a family has several, each allocation
    /// gets a random one.
    package var relayAddresses: [TransportAddress] = []
    /// Public addresses of this machine behind a NAT that keeps ports, each with its private address; nil stands for
    /// the relay address.
    package var external: [External] = []
    /// A STUN server that is asked for the public address at the start; if nil, none is asked.
    package var externalFrom: HostPort?
    /// The ports of relay addresses (RFC 8656 §7.2).
    package var ports: ClosedRange<UInt16> = 49_152...65_535
    /// The number of planes, one thread each; 0 means one per core.
    package var threadCount = 0
    package var realm = "apus"
    /// The static secret; if empty, there is none.
    package var secret = ""
    /// A file with the static secret; if empty, there is none.
    package var secretFile = ""
    /// A file with users and their keys; if empty, there is none.
    package var usersFile = ""
    /// Special address ranges in which peers are permitted.
    package var opened: [PeerPolicy.Range] = []
    /// Peers that are permitted before any other rule, and peers that are refused. The first list has precedence.
    package var allowed: [PeerRule] = []
    package var denied: [PeerRule] = []
    /// NAT64 prefixes besides the well-known ones. The embedded IPv4 addresses are checked as well.
    package var nat64Prefixes: [Nat64Prefix] = []
    /// Addresses of the cluster's other machines.
    package var clusterAddresses: [TransportAddress] = []
    package var allocationsMax = 16_384
    package var allocationsPerUserMax = 64
    package var permissionsMax = 64
    package var channelsMax = 64
    /// The shortest and the longest lifetime that is granted.
    package var lifetimeMin = Duration.seconds(600)
    /// The maximum number of client connections, TCP and TLS, of this node. The threads share it.
    package var streamsMax = 8_192
    /// The maximum number of TCP connections to peers (RFC 6062) of this node, and of one allocation. 0 for the node
    /// turns them off.
    package var tcpPeersMax = 4_096
    package var tcpPeersPerAllocationMax = 16
    /// The maximum number of busy channels of each thread with a socket that is connected to their peer; 0 turns them
    /// off.
    package var connectedFlowsMax = 1_024
    /// How long a busy thread sleeps between rounds if that saves CPU time; 0 means never.
    package var restMicroseconds = 50
    /// The maximum number of a peer's ICMP errors per second that one allocation's client receives; 0 means none.
    package var peerErrorsPerSecond = 16
    package var lifetimeMax = Duration.seconds(3600)
    package var isLegacyChannelAllowed = false
    package var quota = Quota()
    package var bounds = RelayBounds()
    /// The maximum number of another node's allocations whose state is kept. Further ones are not kept.
    package var mirrorsMax = 16_384
    /// The lifetime of allocations at a node that leaves, and how long its process waits for them to end.
    package var drainLifetime = Duration.seconds(600)
    package var drainWait = Duration.seconds(5)

    /// The limits of one user, in the cluster and at each node; 0 means no limit.
    package struct Quota: Sendable {
        /// The maximum number of allocations at all nodes together.
        package var allocationsMax = 128
        /// The maximum payload rate of all its allocations at one node, both directions together.
        package var bitsPerSecond = 100_000_000
        package var packetsPerSecond = 25_000
        /// The maximum rate of new peers at one node, with a burst of ``newPeerBurst``.
        package var newPeersPerSecond = 50
        /// The maximum payload rate of all allocations of a node together, both directions; 0 means no limit.
        package var nodeBitsPerSecond = 0
        package static let newPeerBurst = 256
        /// The lowest rate that can be set, in bits per second: one voice call.
        package static let bitsPerSecondMin = 64_000

        package init() {}

        /// No limits.
        package static var none: Quota {
            var quota = Quota()
            (quota.allocationsMax, quota.bitsPerSecond) = (0, 0)
            (quota.packetsPerSecond, quota.newPeersPerSecond) = (0, 0)
            return quota
        }

        init(_ reader: inout ConfigurationReader) throws(ApusError) {
            let d = Quota()
            allocationsMax = try reader.int(
                "relay.quota.allocations_max", default: d.allocationsMax, in: 0...1_000_000)
            bitsPerSecond = try Self.rate(&reader, "relay.quota.bits_per_second", default: d.bitsPerSecond)
            packetsPerSecond = try reader.int(
                "relay.quota.packets_per_second", default: d.packetsPerSecond, in: 0...100_000_000)
            nodeBitsPerSecond = try Self.rate(
                &reader, "relay.quota.node_bits_per_second", default: d.nodeBitsPerSecond)
            newPeersPerSecond = try reader.int(
                "relay.quota.new_peers_per_second", default: d.newPeersPerSecond, in: 0...1_000_000)
        }

        /// Reads a rate in bits per second. A rate that rounds to zero bytes would be no limit at all.
        private static func rate(
            _ reader: inout ConfigurationReader, _ key: String, default fallback: Int
        ) throws(ApusError) -> Int {
            let rate = try reader.int(key, default: fallback, in: 0...32_000_000_000)
            guard rate == 0 || rate >= bitsPerSecondMin else {
                throw reader.invalid(
                    key, "bits per second are expected, \(bitsPerSecondMin) or more, or 0 for no limit, not \(rate)")
            }
            return rate
        }
    }

    package init() {}

    /// Reads the keys under `relay`.
    ///
    /// - Throws: 10022 with file, line and key.
    package init(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = RelayConfiguration()
        try readListeners(&reader)
        try readAddresses(&reader)
        try readUsers(&reader)
        allocationsMax = try reader.int("relay.allocations_max", default: d.allocationsMax, in: 1...65_536)
        allocationsPerUserMax = try reader.int(
            "relay.allocations_per_user_max", default: d.allocationsPerUserMax, in: 1...65_536)
        permissionsMax = try reader.int("relay.permissions_max", default: d.permissionsMax, in: 1...256)
        channelsMax = try reader.int("relay.channels_max", default: d.channelsMax, in: 1...256)
        lifetimeMin = try reader.duration("relay.lifetime_min", default: d.lifetimeMin)
        guard lifetimeMin >= .seconds(1), lifetimeMin <= .seconds(600) else {
            throw reader.invalid("relay.lifetime_min", "1s to 10m are expected")
        }
        streamsMax = try reader.int("relay.streams_max", default: d.streamsMax, in: 1...1_000_000)
        tcpPeersMax = try reader.int("relay.tcp_peers_max", default: d.tcpPeersMax, in: 0...65_536)
        tcpPeersPerAllocationMax = try reader.int(
            "relay.tcp_peers_per_allocation_max", default: d.tcpPeersPerAllocationMax, in: 1...256)
        connectedFlowsMax = try reader.int(
            "relay.connected_flows_max", default: d.connectedFlowsMax, in: 0...16_384)
        restMicroseconds = try reader.int("relay.rest_microseconds", default: d.restMicroseconds, in: 0...1_000)
        peerErrorsPerSecond = try reader.int(
            "relay.peer_errors_per_second", default: d.peerErrorsPerSecond, in: 0...10_000)
        lifetimeMax = try reader.duration("relay.lifetime_max", default: d.lifetimeMax)
        guard lifetimeMax >= .seconds(600) else {
            throw reader.invalid("relay.lifetime_max", "10m or more are expected (RFC 8656 §7.2)")
        }
        quota = try Quota(&reader)
        bounds = try RelayBounds(&reader)
        mirrorsMax = try reader.int("relay.mirrors_max", default: d.mirrorsMax, in: 0...65_536)
        drainLifetime = try reader.duration("relay.drain_lifetime", default: d.drainLifetime)
        drainWait = try reader.duration("relay.drain_wait", default: d.drainWait)
        isLegacyChannelAllowed = try reader.flag("relay.legacy_channels", default: d.isLegacyChannelAllowed)
    }

    /// Reads the listeners and the certificate.
    private mutating func readListeners(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = RelayConfiguration()
        isEnabled = try reader.flag("relay.enabled", default: d.isEnabled)
        addresses = try Self.listeners(&reader, "relay.addresses")
        port = UInt16(try reader.int("relay.port", default: Int(d.port), in: 1...65_535))
        securePort = UInt16(try reader.int("relay.tls.port", default: Int(d.securePort), in: 1...65_535))
        guard securePort != port else { throw reader.invalid("relay.tls.port", "relay.port already has this port") }
        secureAddresses = try Self.listeners(&reader, "relay.tls.addresses")
        try checkListeners(reader)
        proxies = try Self.rules(&reader, "relay.proxy_from")
        guard !proxies.contains(where: \.isOfSomePorts) else {
            throw reader.invalid("relay.proxy_from", "networks without ports are expected")
        }
        certificateFile = try reader.path("relay.tls.certificate", default: "")
        keyFile = try reader.path("relay.tls.private_key", default: "")
        guard certificateFile.isEmpty == keyFile.isEmpty else {
            throw reader.invalid(
                certificateFile.isEmpty ? "relay.tls.certificate" : "relay.tls.private_key",
                "a certificate and its key are expected, or none of them")
        }
        handshakesMax = try reader.int("relay.tls.handshakes_max", default: d.handshakesMax, in: 1...65_536)
        handshakeTimeout = try reader.duration("relay.tls.handshake_timeout", default: d.handshakeTimeout)
        sessionsMax = try reader.int("relay.tls.sessions_max", default: d.sessionsMax, in: 1...65_536)
    }

    /// Reads the relay addresses and their public addresses behind a NAT.
    private mutating func readAddresses(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = RelayConfiguration()
        relayAddresses = try Self.addresses(&reader, "relay.relay_addresses")
        external = try Self.externals(&reader, "relay.external")
        externalFrom = try Self.server(&reader, "relay.external_from")
        guard external.isEmpty || externalFrom == nil else {
            throw reader.invalid("relay.external_from", "relay.external already has the public addresses")
        }
        let first = try reader.int("relay.port_min", default: Int(d.ports.lowerBound), in: 1024...65_535)
        let last = try reader.int("relay.port_max", default: Int(d.ports.upperBound), in: first...65_535)
        ports = UInt16(first)...UInt16(last)
    }

    /// Reads the users and the rules for peers.
    private mutating func readUsers(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = RelayConfiguration()
        threadCount = try reader.int("relay.threads", default: d.threadCount, in: 0...64)
        realm = try reader.string("relay.realm", default: d.realm)
        guard (1...128).contains(realm.utf8.count), !realm.contains("\"") else {
            throw reader.invalid("relay.realm", "1 to 128 bytes without a quotation mark are expected")
        }
        secret = try reader.string("relay.secret", default: "")
        secretFile = try reader.path("relay.secret_file", default: "")
        guard secret.isEmpty || secretFile.isEmpty else {
            throw reader.invalid("relay.secret_file", "relay.secret already has the secret")
        }
        usersFile = try reader.path("relay.users_file", default: "")
        opened = try Self.ranges(&reader, "relay.open")
        allowed = try Self.rules(&reader, "relay.allow")
        denied = try Self.rules(&reader, "relay.deny")
        nat64Prefixes = try Self.prefixes(&reader, "relay.nat64_prefixes")
        clusterAddresses = try Self.addresses(&reader, "relay.cluster_addresses")
    }

    private static func addresses(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [TransportAddress] {
        try reader.values(key, countMax: wordsMax, { TransportAddress($0, port: 0) }) { word in
            "addresses such as 192.0.2.1 or 2001:db8::1 are expected, not '\(word)'"
        }
    }

    private static func rules(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [PeerRule] {
        try reader.values(key, countMax: PeerPolicy.rulesMax, { PeerRule($0) }) { word in
            "'\(word)' is not a network; write 192.0.2.0/24, 192.0.2.7:5000-5999, 2001:db8::/32 or "
                + "[2001:db8::/32]:443, with no bit of the address beyond the prefix"
        }
    }

    private static func prefixes(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [Nat64Prefix] {
        try reader.values(key, countMax: wordsMax, { Nat64Prefix($0) }) { word in
            "'\(word)' is not a NAT64 prefix; write 2001:db8:64::/96, with 32, 40, 48, 56, 64 or 96 bits "
                + "and none after them"
        }
    }

    private static func ranges(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [PeerPolicy.Range] {
        try reader.values(key, countMax: wordsMax, { PeerPolicy.Range(rawValue: $0) }) { word in
            "'\(word)' is not a range; ranges are \(PeerPolicy.Range.allCases.map(\.rawValue).joined(separator: ", "))"
        }
    }
}
