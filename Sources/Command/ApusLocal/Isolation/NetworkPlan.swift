import ApusCore

/// The network of an isolated local cluster, as `cluster.json` describes it. Everything in it is a function of this
/// value and of the nodes' names, so `apus cluster down` finds all of it, also after a crash.
///
/// The bridge is in a namespace of its own. Each node, and each namespace for clients, is connected to it by a pair of
/// virtual interfaces. One more pair leads from the bridge to the namespace of the commands, where the operator has an
/// address.
package struct NetworkPlan: Codable, Sendable, Equatable {
    /// The maximum number of namespaces for clients.
    package static let clientsMax = 100
    /// The last byte of the address of the first client, and of the operator. Those from 200 to 253 are for stores.
    private static let (firstClient, firstStore, operatorByte) = (100, 200, 254)
    /// The /24 networks of 198.18.0.0/15, which is reserved for tests of network devices (RFC 2544, appendix C.2.2).
    private static let subnetCount = 512

    /// The name of the bridge's namespace, and the beginning of the names of all others.
    package var prefix: String
    /// The first three bytes of all addresses, such as `198.18.7`.
    package var subnet: String
    /// The names of the namespaces for clients, in the order of their addresses.
    package var clients: [String] = []
    /// The addresses of the servers that hold the ownership store, in the order of their numbers. Empty for a store in
    /// a directory.
    package var stores: [String] = []

    /// One participant of the network.
    package struct Endpoint: Sendable, Equatable {
        /// The name of the node, of the client or of the server of the ownership store.
        package var name: String
        /// The name of its network namespace.
        package var namespace: String
        /// Its IPv4 address. Its interface is ``NetworkPlan/interface``.
        package var address: String
        /// The other end of its interface, at the bridge.
        package var port: String
    }

    /// Chooses the names by the path of the state directory, and the first free network from there on.
    /// - Parameter isTaken: true if the machine uses addresses that begin with this text.
    /// - Returns: nil if no network is free.
    package static func choose(path: String, isTaken: (_ subnet: String) -> Bool) -> NetworkPlan? {
        let hash = StableHash.hash(path)
        let digits = String(hash & 0xffff_ffff, radix: 16)
        let prefix = "apus-" + String(repeating: "0", count: 8 - digits.count) + digits
        let first = Int(hash >> 32) % subnetCount
        for offset in 0..<subnetCount {
            let number = (first + offset) % subnetCount
            let subnet = "198.\(18 + number / 256).\(number % 256)"
            if !isTaken("\(subnet).") { return NetworkPlan(prefix: prefix, subnet: subnet) }
        }
        return nil
    }

    private init(prefix: String, subnet: String) {
        self.prefix = prefix
        self.subnet = subnet
    }

    /// The name of an endpoint's interface in its namespace.
    package static let interface = "eth0"
    /// The bridge's interface, and its port to the operator.
    static let (bridge, operatorPort) = ("bridge", "operator")
    /// The operator's interface, at most 15 bytes.
    package var operatorInterface: String { prefix.filter { $0 != "-" } }
    /// The operator's address.
    package var operatorAddress: String { "\(subnet).\(Self.operatorByte)" }
    /// The addresses of all nodes that a cluster can have. Certificates contain all of them, because the clients'
    /// certificate is not replaced when a node is added.
    package var nodeAddresses: [String] { (1...NodeConfigurationFile.nodesMax).map { address(ofNode: $0) } }

    /// The address of a node, by index from 1.
    package func address(ofNode index: Int) -> String { "\(subnet).\(index)" }
    /// The address of a server of the ownership store, by index from 0.
    package func address(ofStore index: Int) -> String { "\(subnet).\(Self.firstStore + index)" }
    /// The name of a server of the ownership store, by index from 0.
    package static func storeName(_ index: Int) -> String { "e\(index + 1)" }
    /// The names of the servers of the ownership store.
    package var storeNames: [String] { stores.indices.map { Self.storeName($0) } }
    /// The namespace of a node, a client or a server of the ownership store.
    package func namespace(of name: String) -> String { "\(prefix)-\(name)" }

    /// The endpoints: the nodes and the servers of the ownership store, in the order of their numbers, and the clients.
    package func endpoints(nodes: [String]) -> [Endpoint] {
        let nodes = nodes.enumerated().map { endpoint($0.element, number: $0.offset + 1) }
        let stores = storeNames.enumerated().map { endpoint($0.element, number: Self.firstStore + $0.offset) }
        return nodes + stores + clients.enumerated().map { endpoint($0.element, number: Self.firstClient + $0.offset) }
    }

    private func endpoint(_ name: String, number: Int) -> Endpoint {
        Endpoint(
            name: name, namespace: namespace(of: name), address: "\(subnet).\(number)", port: "port\(number)")
    }

    /// True if a namespace of this name belongs to this network.
    package func owns(namespace: String) -> Bool { namespace == prefix || namespace.hasPrefix("\(prefix)-") }
}

/// The commands that make the network, each in words. They are carried out in order.
extension NetworkPlan {
    /// Makes the bridge, in its existing namespace, and the operator's interface.
    package var bridgeCommands: [[String]] {
        let inside = ["ip", "-n", prefix]
        let outside = operatorInterface
        return [
            inside + ["link", "add", "name", Self.bridge, "type", "bridge"],
            inside + ["link", "set", "dev", Self.bridge, "up"],
            ["ip", "link", "add", "name", outside, "type", "veth", "peer", "name", Self.operatorPort, "netns", prefix],
            inside + ["link", "set", "dev", Self.operatorPort, "master", Self.bridge],
            inside + ["link", "set", "dev", Self.operatorPort, "up"],
            ["ip", "addr", "add", "\(operatorAddress)/24", "dev", outside],
            ["ip", "link", "set", "dev", outside, "up"],
        ]
    }

    /// Connects an endpoint, whose namespace exists, to the bridge. Its interface sends packets of the size that a wire
    /// has: a rule that drops a packet would otherwise drop up to 64 KiB.
    package func commands(for endpoint: Endpoint) -> [[String]] {
        let (bridge, inside) = (["ip", "-n", prefix], ["ip", "-n", endpoint.namespace])
        let (port, interface) = (endpoint.port, Self.interface)
        return [
            bridge + [
                "link", "add", "name", port, "type", "veth", "peer", "name", interface, "netns", endpoint.namespace,
            ],
            bridge + ["link", "set", "dev", port, "master", Self.bridge],
            bridge + ["link", "set", "dev", port, "up"],
            inside + ["addr", "add", "\(endpoint.address)/24", "dev", interface],
            inside + ["link", "set", "dev", interface, "gso_max_segs", "1"],
            inside + ["link", "set", "dev", "lo", "up"],
            inside + ["link", "set", "dev", interface, "up"],
        ]
    }
}
