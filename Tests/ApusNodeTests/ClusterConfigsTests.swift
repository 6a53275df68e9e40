import ApusConfiguration
import ApusCore
import ApusGateway
import ApusHTTP
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
import ApusStorage
import ApusTransport
import ApusTraversal
import Foundation
import Testing

@Suite("The committed configurations (cluster-configs/)")
struct ClusterConfigsTests {
    private static let folder = URL(fileURLWithPath: #filePath)
        .deletingLastPathComponent().appending(path: "../../cluster-configs").standardizedFileURL

    static let allFiles: [String] = {
        let all = FileManager.default.enumerator(atPath: folder.path)?.compactMap { $0 as? String } ?? []
        return all.filter { $0.hasSuffix(".yaml") }.sorted()
    }()

    /// The configurations of nodes of a cluster.
    static let files = allFiles.filter { $0 != "relay-only.yaml" }

    private static func read(_ file: String) throws -> NodeConfiguration {
        try NodeConfiguration(file: folder.appending(path: file).path, environment: [:])
    }

    @Test("Every file is a valid configuration", arguments: files)
    func parses(file: String) throws {
        _ = try Self.read(file)
    }

    @Test("Keys of the release before are taken, and have no effect")
    func formerKeys() throws {
        let text = try String(contentsOf: Self.folder.appending(path: "one-node.yaml"), encoding: .utf8)
        func read(_ text: String) throws -> NodeConfiguration {
            try NodeConfiguration(yaml: text, source: "one-node.yaml", folder: Self.folder.path, environment: [:])
        }
        let former = try read(text + "\nblobs:\n  directory: shared/blobs\n  waiting_max: 256\n")
        #expect(former.ignoredKeys == ["blobs.directory", "blobs.waiting_max"])
        #expect(try read(text).ignoredKeys.isEmpty)
    }

    @Test("The files that the README names are there")
    func present() {
        #expect(
            Self.allFiles == [
                "local-three-nodes/n1.yaml", "local-three-nodes/n2.yaml", "local-three-nodes/n3.yaml", "one-node.yaml",
                "relay-only.yaml", "three-servers/a.yaml", "three-servers/b.yaml", "three-servers/c.yaml",
            ])
    }

    @Test("Three servers differ in their names and addresses only, and their etcd and firewall fit them")
    func threeServers() throws {
        func text(_ name: String) throws -> String {
            try String(contentsOf: Self.folder.appending(path: "three-servers/\(name)"), encoding: .utf8)
        }
        let addresses = ["a": "192.0.2.11", "b": "192.0.2.12", "c": "192.0.2.13"]
        let endpoints = addresses.values.sorted().map { "https://\($0):2379" }.joined(separator: " ")
        let firewall = try text("firewall.nft")
        let access = try text("pg_hba.conf")
        for (name, address) in addresses {
            let node = try Self.read("three-servers/\(name).yaml")
            #expect(node.node.rawValue == name && node.advertisedTransport.host == address)
            #expect(node.httpListener.tls != nil && node.http.host == address)
            #expect(node.etcd?.user == "apus-\(name)" && node.recordsURL.contains("sslmode=verify-full"))
            #expect(try text("\(name).yaml").contains(endpoints))
            let etcd = try text("etcd-\(name).env")
            #expect(etcd.contains("ETCD_NAME=\(name)\n") && etcd.contains("\(name)=https://\(address):2380"))
            // What each file says beside its own name and address is the same.
            for file in ["NAME.yaml", "etcd-NAME.env"] {
                let own = try text(file.replacing("NAME", with: name))
                let first = try text(file.replacing("NAME", with: "a"))
                #expect(Self.without(own, name, address) == Self.without(first, "a", "192.0.2.11"), "\(name)")
            }
            #expect(firewall.contains(address) && access.contains("\(address)/32"))
            for port in [node.transport.bind, node.gateway.bind, node.http].map(\.port) + [2379, 2380, 3478, 5349] {
                #expect(firewall.contains("\(port)"), "the firewall does not name \(port)")
            }
        }
    }

    /// The lines of a text without those that have the node's name or address in them.
    private static func without(_ text: String, _ name: String, _ address: String) -> [Substring] {
        text.split(separator: "\n").filter { line in
            !line.contains(address) && !line.contains("apus-\(name)") && !line.hasSuffix("=\(name)")
                && !line.contains("node: \(name)") && !line.contains("ode \(name) ") && !line.contains("node \(name):")
        }
    }

    @Test("The reference file has every key, each after a comment")
    func reference() throws {
        let text = try String(contentsOf: Self.folder.appending(path: "one-node.yaml"), encoding: .utf8)
        let lines = text.split(separator: "\n", omittingEmptySubsequences: false).map { String($0) }
        for key in try Self.read("one-node.yaml").keys.map(\.name) {
            let name = String(key.split(separator: ".").last ?? "")
            let depth = key.split(separator: ".").count - 1
            let start = String(repeating: "  ", count: depth) + name + ":"
            #expect(lines.contains { $0.hasPrefix(start) }, "\(key) is not in one-node.yaml")
        }
        #expect(text.split(separator: "\n").filter { $0.hasPrefix("#") || $0.hasPrefix("  #") }.count > 80)
    }

    @Test("The values of the reference file are the defaults of the code")
    func defaults() throws {
        let minimal = """
            cluster: home
            node: n1
            data_directory: n1
            ownership: {directory: shared/ownership}
            records: {file: shared/records.sqlite}
            tls: {authority: pki/ca.pem, certificate: pki/n1.pem, key: pki/n1.key,
                  client_certificate: pki/clients.pem, client_key: pki/clients.key}
            keys: {cluster: pki/cluster.key, token_public: pki/token.pub}
            advertise: {transport: '127.0.0.1:7400', clients: '127.0.0.1:7443'}
            """
        let expected = try NodeConfiguration(
            yaml: minimal, source: "minimal", folder: Self.folder.path, environment: [:])
        var written = ""
        var defaults = ""
        dump(try Self.read("one-node.yaml"), to: &written)
        dump(expected, to: &defaults)
        #expect(written == defaults)
    }

    @Test("The three local nodes share their cluster and their files, and nothing else")
    func threeNodes() throws {
        let nodes = try ["n1", "n2", "n3"].map { try Self.read("local-three-nodes/\($0).yaml") }
        #expect(Set(nodes.map(\.cluster)).count == 1)
        #expect(Set(nodes.map(\.ownershipDirectory)).count == 1)
        #expect(Set(nodes.map(\.recordsFile)).count == 1)
        #expect(Set(nodes.map(\.node)).count == 3)
        #expect(Set(nodes.map(\.dataDirectory)).count == 3)
        let addresses = nodes.flatMap { [$0.advertisedTransport, $0.advertisedClients, $0.advertisedHTTP] }
        let relays = nodes.flatMap { [$0.relayAddress(), $0.relay.firstSecureEndpoint()] }.compactMap { $0 }
        #expect(Set(addresses + relays).count == 15)
    }

    @Test("Only the local nodes and the relay alone let peers on the loopback in (CVE-2020-26262)", arguments: files)
    func loopback(file: String) throws {
        let opened = try Self.read(file).relay.opened
        #expect(opened == (file.hasPrefix("local-three-nodes/") ? [.loopback] : []))
    }

    @Test("The relay alone is set up by APUS_RELAY_PORT, APUS_RELAY_THREADS, APUS_DATA_DIR and APUS_RELAY_SECRET")
    func relayOnly() throws {
        let path = Self.folder.appending(path: "relay-only.yaml").path
        let plain = try RelayNodeConfiguration(file: path, environment: [:])
        #expect(plain.relay.port == 3478 && plain.relay.opened == [.loopback] && plain.relay.secret.isEmpty)
        #expect(plain.relay.securePort == 5349 && plain.relay.firstSecureEndpoint() == nil)
        #expect(plain.dataDirectory == Self.folder.appending(path: "relay-data").path)
        let given = try RelayNodeConfiguration(
            file: path,
            environment: [
                "APUS_RELAY_PORT": "4000", "APUS_RELAY_THREADS": "2", "APUS_DATA_DIR": "/data",
                "APUS_RELAY_SECRET": "a secret",
            ])
        #expect(given.relay.port == 4000 && given.relay.threadCount == 2 && given.relay.secret == "a secret")
        #expect(given.dataDirectory == "/data")
    }
}
