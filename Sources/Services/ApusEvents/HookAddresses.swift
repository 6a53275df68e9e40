import ApusCore
import ApusTraversal

/// The addresses that a node may connect to for hooks of integrators.
package struct HookAddresses: Sendable {
    /// Refuses all special-purpose ranges.
    private let policy = PeerPolicy()
    /// Addresses that the operators listed in `hooks.hosts`.
    private let named: Set<TransportAddress>
    /// Networks that the operators listed there.
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

    /// - Parameter bytes: an address of 4 or 16 bytes.
    package func allow(_ bytes: [UInt8]) -> Bool {
        guard let address = TransportAddress(bytes: bytes, port: 0) else { return false }
        return named.contains(address) || networks.contains { $0.contains(host: address) }
            || policy.refusal(ofHost: address) == nil
    }
}
