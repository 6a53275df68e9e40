import ApusCore
import ApusNode
import Foundation
import Testing

@Suite("The committed configurations (cluster-configs/)")
struct ClusterConfigsTests {
    private static let folder = URL(fileURLWithPath: #filePath)
        .deletingLastPathComponent().appending(path: "../../cluster-configs").standardizedFileURL

    static let files: [String] = {
        let all = FileManager.default.enumerator(atPath: folder.path)?.compactMap { $0 as? String } ?? []
        return all.filter { $0.hasSuffix(".yaml") }.sorted()
    }()

    private static func read(_ file: String) throws -> NodeConfiguration {
        try NodeConfiguration(file: folder.appending(path: file).path, environment: [:])
    }

    @Test("Every file is a valid configuration", arguments: files)
    func parses(file: String) throws {
        _ = try Self.read(file)
    }

    @Test("The files that the README names are there")
    func present() {
        #expect(
            Self.files == [
                "local-three-nodes/n1.yaml", "local-three-nodes/n2.yaml", "local-three-nodes/n3.yaml", "one-node.yaml",
            ])
    }

    @Test("The reference file has every key, each after a comment")
    func reference() throws {
        let text = try String(contentsOf: Self.folder.appending(path: "one-node.yaml"), encoding: .utf8)
        let lines = text.split(separator: "\n", omittingEmptySubsequences: false).map { String($0) }
        for key in try Self.read("one-node.yaml").keys {
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
            ownership: {file: shared/ownership.sqlite}
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
        #expect(Set(nodes.map(\.ownershipFile)).count == 1)
        #expect(Set(nodes.map(\.recordsFile)).count == 1)
        #expect(Set(nodes.map(\.node)).count == 3)
        #expect(Set(nodes.map(\.dataDirectory)).count == 3)
        let addresses = nodes.flatMap { [$0.advertisedTransport, $0.advertisedClients, $0.advertisedHTTP] }
        #expect(Set(addresses).count == 9)
    }
}
