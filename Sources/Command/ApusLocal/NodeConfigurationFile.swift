package import ApusCore
import ApusNode
import Foundation

/// The configuration files of a local cluster's nodes: generated, or copied from a folder.
package enum NodeConfigurationFile {
    /// The most nodes of a local cluster.
    package static let nodesMax = 32
    /// Ports that each node has to itself: node links, clients, HTTP, the relay and its TLS door, and some to spare.
    package static let portsPerNode = 10

    /// The addresses of node `index` from 1, on the loopback.
    package static func node(_ index: Int, basePort: Int) -> StateDirectory.Node {
        let first = basePort + (index - 1) * portsPerNode
        return StateDirectory.Node(
            name: "n\(index)", transport: "127.0.0.1:\(first)", clients: "127.0.0.1:\(first + 1)",
            http: "127.0.0.1:\(first + 2)", relay: "127.0.0.1:\(first + 3)")
    }

    /// The file of a generated node; every key that is not in it has its default.
    package static func text(_ node: StateDirectory.Node, cluster: String) -> String {
        let relay = node.relay.flatMap { HostPort($0) }
        return """
            # Made by `apus cluster up`. Every other key has its default; cluster-configs/one-node.yaml names them all.
            cluster: \(cluster)
            node: \(node.name)
            data_directory: \(node.name)
            listen:
              transport: \(node.transport)
              clients: \(node.clients)
              http: \(node.http)
            ownership:
              directory: shared/ownership
            records:
              file: shared/records.sqlite
            tls:
              authority: pki/ca.pem
              certificate: pki/\(node.name).pem
              key: pki/\(node.name).key
              client_certificate: pki/clients.pem
              client_key: pki/clients.key
            keys:
              cluster: pki/cluster.key
              token_public: pki/token.pub
            threads: 2
            # Everything is on this machine, peers as well; elsewhere they must not be on the loopback.
            relay:
              enabled: \(relay != nil)
              addresses: \(relay?.host ?? "127.0.0.1")
              port: \(relay?.port ?? 3478)
              tls:
                port: \((relay?.port ?? 5348) + 1)
              threads: 1
              open: loopback

            """
    }

    /// The files of a folder, by name, with the nodes that they configure.
    ///
    /// - Throws: 10022 where the folder has none, where one is not valid, or where they are not of one cluster.
    package static func read(
        folder: String
    ) throws(ApusError) -> (cluster: String, nodes: [(node: StateDirectory.Node, text: String)]) {
        let names = ((try? FileManager.default.contentsOfDirectory(atPath: folder)) ?? [])
            .filter { $0.hasSuffix(".yaml") }.sorted()
        guard !names.isEmpty else {
            throw ApusError(.configurationInvalid, "there is no .yaml file in \(folder)")
        }
        var cluster: String?
        var nodes: [(node: StateDirectory.Node, text: String)] = []
        for name in names {
            let file = "\(folder)/\(name)"
            let configuration = try NodeConfiguration(file: file)
            guard cluster == nil || cluster == configuration.cluster.rawValue else {
                throw ApusError(
                    .configurationInvalid, "\(file) is of cluster \(configuration.cluster), the others of another")
            }
            cluster = configuration.cluster.rawValue
            let node = StateDirectory.Node(
                name: configuration.node.rawValue, transport: configuration.advertisedTransport.description,
                clients: configuration.advertisedClients.description, http: configuration.advertisedHTTP.description,
                relay: configuration.relayAddress()?.description)
            let text = String(decoding: FileManager.default.contents(atPath: file) ?? Data(), as: UTF8.self)
            nodes.append((node, text))
        }
        return (cluster ?? "", nodes)
    }
}
