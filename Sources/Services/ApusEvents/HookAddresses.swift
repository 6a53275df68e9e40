import ApusCore
import ApusTraversal

/// The addresses to which hooks of integrators may lead.
package struct HookAddresses: Sendable {
    /// All special ranges are closed.
    private let policy = PeerPolicy()
    /// Those that the operators have named.
    private let named: Set<TransportAddress>
    /// The networks that they have named.
    private let networks: [PeerRule]

    package init(_ configuration: EventConfiguration) {
        named = Set(
            configuration.hosts.flatMap { host in
                host.lowercased() == "localhost"
                    ? ["127.0.0.1", "::1"].compactMap { TransportAddress($0, port: 0) }
                    : [TransportAddress(host, port: 0)].compactMap(\.self)
            })
        networks = configuration.hosts.compactMap { $0.contains("/") ? PeerRule($0) : nil }
    }

    /// - Parameter bytes: 4 or 16.
    package func allow(_ bytes: [UInt8]) -> Bool {
        guard let address = TransportAddress(bytes: bytes, port: 0) else { return false }
        return named.contains(address) || networks.contains { $0.contains(host: address) }
            || policy.refusal(ofHost: address) == nil
    }
}
