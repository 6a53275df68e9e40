package import ApusCore
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
package import ApusTraversal
import Foundation

/// The relays' addresses, and credentials that they accept.
package struct RelayAccess: Sendable {
    /// The maximum number of servers for a client; browsers become slow with more.
    private static let endpointsMax = 3

    /// Issues names and passwords.
    package var credentials: RelayCredentials
    /// The UDP and TCP addresses of the relays, at most 3 for a cluster.
    package var endpoints: [HostPort]
    /// The relays of ``endpoints`` that also have TLS and DTLS, at other ports.
    package var secureEndpoints: [HostPort] = []
    /// The authority of their certificates, PEM; nil if unknown.
    package var authorityFile: String?

    /// The relays of a local cluster's first nodes: every node accepts the credentials of any other.
    /// - Throws: 10022 if a node's configuration or the cluster's key cannot be read, or no node has a relay.
    package init(_ cluster: LocalCluster) throws(ApusError) {
        endpoints = cluster.mark.nodes.compactMap { $0.relay.flatMap { HostPort($0) } }
        guard let first = cluster.mark.nodes.first(where: { $0.relay != nil }) else {
            throw ApusError(.configurationInvalid, "no node of the cluster in \(cluster.directory.path) has a relay")
        }
        endpoints = Array(endpoints.prefix(Self.endpointsMax))
        let node = try NodeConfiguration(file: cluster.directory.configurationFile(first.name))
        credentials = try node.relayKeys(node.clusterKeys()).credentials
        for known in cluster.mark.nodes.filter({ $0.relay != nil }).prefix(Self.endpointsMax) {
            let relay = try NodeConfiguration(file: cluster.directory.configurationFile(known.name)).relay
            guard let endpoint = known.relay.flatMap({ HostPort($0) }), !relay.certificateFile.isEmpty else { continue }
            secureEndpoints.append(HostPort(host: endpoint.host, port: Int(relay.securePort)))
        }
        authorityFile = cluster.authorityFile
    }

    /// The relay of a `relay-only` configuration.
    /// - Throws: 10021, 10022 if the file, its secret or its data directory cannot be read.
    package init(configuration file: String) throws(ApusError) {
        let node = try RelayNodeConfiguration(file: file)
        endpoints = node.relay.firstEndpoint().map { [$0] } ?? []
        secureEndpoints = node.relay.firstSecureEndpoint().map { [$0] } ?? []
        credentials = try node.relayCredentials()
    }

    /// Relays that belong to no local cluster and are not configured here.
    package init(secret: String, realm: String, endpoints: [HostPort]) {
        self.endpoints = endpoints
        credentials = RelayCredentials(realm: realm, current: Array(secret.utf8))
    }

    /// The URLs for a client's configuration (RFC 7065). DTLS is omitted: browsers do not support it for TURN.
    package var urls: [String] {
        endpoints.flatMap { endpoint in ["udp", "tcp"].map { "turn:\(endpoint)?transport=\($0)" } }
            + secureEndpoints.map { "turns:\($0)?transport=tcp" }
    }

    /// A name and password that are valid for this number of seconds from now.
    package func issue(user: String, lifetime: Int64) -> (username: String, password: String) {
        credentials.issue(user: user, expiry: Int64(Date().timeIntervalSince1970) + lifetime)
    }
}
