package import ApusCore
import ApusNode
package import ApusTraversal
import Foundation

/// What a client needs: where relays are, and credentials that they take.
package struct RelayAccess: Sendable {
    /// Servers that a client is told of, at most; browsers grow slow with more.
    private static let doorsMax = 3

    /// What issues names and passwords.
    package var credentials: RelayCredentials
    /// UDP and TCP addresses of the relays, 3 at most for a cluster.
    package var doors: [HostPort]
    /// Those of ``doors`` that have TLS and DTLS too, at other ports.
    package var secureDoors: [HostPort] = []
    /// Who signed the certificate of these, PEM; nil where that is not known.
    package var authorityFile: String?

    /// The relays of a local cluster: those of its first nodes, since any node takes what any other issued.
    ///
    /// - Throws: 10022 where a node's configuration or the cluster's key cannot be read or no node relays.
    package init(_ cluster: LocalCluster) throws(ApusError) {
        doors = cluster.mark.nodes.compactMap { $0.relay.flatMap { HostPort($0) } }
        guard let first = cluster.mark.nodes.first(where: { $0.relay != nil }) else {
            throw ApusError(.configurationInvalid, "no node of the cluster in \(cluster.directory.path) relays")
        }
        doors = Array(doors.prefix(Self.doorsMax))
        let node = try NodeConfiguration(file: cluster.directory.configurationFile(first.name))
        credentials = try node.relayKeys().credentials
        for known in cluster.mark.nodes.filter({ $0.relay != nil }).prefix(Self.doorsMax) {
            let relay = try NodeConfiguration(file: cluster.directory.configurationFile(known.name)).relay
            guard let door = known.relay.flatMap({ HostPort($0) }), !relay.certificateFile.isEmpty else { continue }
            secureDoors.append(HostPort(host: door.host, port: Int(relay.securePort)))
        }
        authorityFile = cluster.authorityFile
    }

    /// The relay of a `relay-only` configuration.
    ///
    /// - Throws: 10021, 10022 where the file, its secret or its data directory cannot be read.
    package init(configuration file: String) throws(ApusError) {
        let node = try RelayNodeConfiguration(file: file)
        doors = node.relay.firstDoor().map { [$0] } ?? []
        secureDoors = node.relay.firstSecureDoor().map { [$0] } ?? []
        credentials = try node.relayCredentials()
    }

    /// Relays that are neither a local cluster's nor configured here.
    package init(secret: String, realm: String, doors: [HostPort]) {
        self.doors = doors
        credentials = RelayCredentials(realm: realm, current: Array(secret.utf8))
    }

    /// The addresses as clients are configured with them (RFC 7065). DTLS is left out: no browser has it for this.
    package var urls: [String] {
        doors.flatMap { door in ["udp", "tcp"].map { "turn:\(door)?transport=\($0)" } }
            + secureDoors.map { "turns:\($0)?transport=tcp" }
    }

    /// A name and password that are good for so many seconds from now.
    package func issue(user: String, lifetime: Int64) -> (username: String, password: String) {
        credentials.issue(user: user, expiry: Int64(Date().timeIntervalSince1970) + lifetime)
    }
}
