import ApusConfiguration
package import ApusCore
import ApusRelay
package import ApusTraversal
import NIOCore

// The relay's public addresses behind a NAT (`relay.external`, `relay.external_from`).
extension RelayConfiguration {
    /// The time-out of a request to the STUN server.
    private static let lookupTimeout = Duration.seconds(5)

    /// A public address in the configuration's notation: `PUBLIC` or `PUBLIC/PRIVATE`.
    package struct External: Sendable, Hashable {
        package var address: TransportAddress
        /// If nil, the relay's only address of the same family.
        package var local: TransportAddress?

        /// Nil if the text has neither form, or mixes the families.
        package init?(_ text: String) {
            let parts = text.split(separator: "/", omittingEmptySubsequences: false)
            guard parts.count <= 2, let address = parts.first.flatMap({ TransportAddress($0, port: 0) }) else {
                return nil
            }
            self.address = address
            guard parts.count == 2 else { return }
            guard let local = TransportAddress(parts[1], port: 0), local.family == address.family, local != address
            else { return nil }
            self.local = local
        }
    }

    static func externals(
        _ reader: inout ConfigurationReader, _ key: String
    ) throws(ApusError) -> [External] {
        var found: [External] = []
        for word in try reader.words(key, countMax: ExternalAddresses.pairsMax) {
            guard let external = External(word) else {
                throw reader.invalid(
                    key, "PUBLIC or PUBLIC/PRIVATE is expected, two addresses of one family, not '\(word)'")
            }
            let isTwice = found.contains { other in
                other.address == external.address
                    || (other.local == external.local && other.address.family == external.address.family)
            }
            guard !isTwice else { throw reader.invalid(key, "'\(word)' repeats an address") }
            found.append(external)
        }
        return found
    }

    static func server(_ reader: inout ConfigurationReader, _ key: String) throws(ApusError) -> HostPort? {
        let text = try reader.string(key, default: "")
        guard !text.isEmpty else { return nil }
        guard let server = HostPort(text) else { throw reader.invalid(key, "HOST:PORT is expected, not '\(text)'") }
        return server
    }

    /// The configured pairs.
    /// - Parameter hosts: the relay addresses.
    /// - Throws: 10022 if a public address has no private one, and not exactly one relay address has its family.
    package func externalAddresses(hosts: [TransportAddress]) throws(ApusError) -> ExternalAddresses {
        var pairs: [ExternalAddresses.Pair] = []
        for external in external {
            let own = hosts.filter { $0.family == external.address.family }
            guard let local = external.local ?? (own.count == 1 ? own.first : nil) else {
                throw ApusError(
                    .configurationInvalid,
                    "relay.external: this relay has \(own.count) addresses of the family of "
                        + "\(external.address.hostDescription): write PUBLIC/PRIVATE")
            }
            pairs.append(.init(external: external.address, local: local))
        }
        return ExternalAddresses(pairs)
    }

    /// The public addresses that were found.
    struct FoundExternals {
        var addresses: ExternalAddresses
        /// Relay addresses whose NAT changes ports.
        var withOtherPorts: [TransportAddress] = []
    }

    /// The configured pairs, or the relay addresses as the STUN server of ``externalFrom`` sees them.
    /// The server is asked from two ports, because a NAT may keep one by chance. Blocks until the server has answered,
    /// for at most ten seconds per address.
    /// - Throws: 10022 if a public address has no private one, or the server has no address of a relay address's
    ///   family; 21002 if it does not answer.
    func findExternalAddresses(hosts: [TransportAddress]) throws(ApusError) -> FoundExternals {
        guard let externalFrom else { return FoundExternals(addresses: try externalAddresses(hosts: hosts)) }
        let servers = Self.resolve(externalFrom)
        var pairs: [ExternalAddresses.Pair] = []
        var withOtherPorts: [TransportAddress] = []
        var askedCount = 0
        for host in hosts {
            guard let server = servers.first(where: { $0.family == host.family }) else { continue }
            askedCount += 1
            let first = try ExternalLookup.ask(server, from: host, timeout: Self.lookupTimeout)
            let second = try ExternalLookup.ask(server, from: host, timeout: Self.lookupTimeout)
            if first.seen.host != host.host { pairs.append(.init(external: first.seen, local: host)) }
            if !first.isPortKept || !second.isPortKept { withOtherPorts.append(host) }
        }
        guard askedCount > 0 else {
            throw ApusError(
                .configurationInvalid,
                "relay.external_from: \(externalFrom) has no address of this relay's address families")
        }
        return FoundExternals(addresses: ExternalAddresses(pairs), withOtherPorts: withOtherPorts)
    }

    private static func resolve(_ server: HostPort) -> [TransportAddress] {
        let port = UInt16(clamping: server.port)
        if let address = TransportAddress(server.host, port: port) { return [address] }
        let found = try? SocketAddress.makeAddressResolvingHost(server.host, port: server.port)
        return found?.ipAddress.flatMap { TransportAddress($0, port: port) }.map { [$0] } ?? []
    }
}
