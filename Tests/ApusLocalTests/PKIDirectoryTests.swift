import ApusCore
import ApusLocal
import ApusTransport
import Foundation
import Testing

@Suite("The directory of `apus admin pki`")
struct PKIDirectoryTests {
    private static let cluster = ClusterID(unchecked: "test")
    private let directory = PKIDirectory(path: NSTemporaryDirectory() + "/apus-pki-\(UUID().uuidString)")

    private func made() throws {
        let nodes = ["a", "b"].map { NodeName(unchecked: $0) }
        _ = try directory.make(cluster: Self.cluster, nodes: nodes, hosts: ["192.0.2.1", "2001:db8::1", "a.example"])
    }

    private func remove() { try? FileManager.default.removeItem(atPath: directory.path) }
    private func text(_ name: String) throws -> String {
        try String(contentsOfFile: "\(directory.path)/\(name)", encoding: .utf8)
    }
    private func count(_ name: String) throws -> Int { try text(name).split(separator: "-----BEGIN").count - 1 }
    private func mode(_ name: String) throws -> Int {
        let attributes = try FileManager.default.attributesOfItem(atPath: "\(directory.path)/\(name)")
        return attributes[.posixPermissions] as? Int ?? 0
    }

    @Test("Every secret is changed by add, use and remove, and by no other order")
    func steps() throws {
        defer { remove() }
        try made()
        for (secret, file) in [(PKISecret.authority, "ca.pem"), (.tokens, "token.pub")] {
            let old = try text(file)
            for step in [PKIStep.use, .remove] {
                #expect(throws: ApusError(.configurationInvalid)) {
                    try directory.change(secret, step, cluster: Self.cluster)
                }
            }
            _ = try directory.change(secret, .add, cluster: Self.cluster)
            #expect(try count(file) == 2 && text(file).hasPrefix(old.trimmingCharacters(in: .newlines)))
            for step in [PKIStep.add, .remove] {
                #expect(throws: ApusError(.configurationInvalid)) {
                    try directory.change(secret, step, cluster: Self.cluster)
                }
            }
            _ = try directory.change(secret, .use, cluster: Self.cluster)
            #expect(try count(file) == 2 && !text(file).hasPrefix(old.prefix(120)))
            #expect(throws: ApusError(.configurationInvalid)) {
                try directory.change(secret, .add, cluster: Self.cluster)
            }
            _ = try directory.change(secret, .remove, cluster: Self.cluster)
            #expect(try count(file) == 1 && text(file) != old)
        }
        #expect(try mode("ca.key") == 0o600 && mode("token.key") == 0o600)
    }

    @Test("The cluster's key has the new key behind the old one, then before it, then alone")
    func clusterKey() throws {
        defer { remove() }
        try made()
        func key() throws -> ClusterKeys {
            try ClusterKeys(fileContent: [UInt8](Data(contentsOf: URL(fileURLWithPath: directory.clusterKey))))
        }
        let old = try key()
        _ = try directory.change(.cluster, .add, cluster: Self.cluster)
        let added = try key()
        #expect(added.current == old.current)
        _ = try directory.change(.cluster, .use, cluster: Self.cluster)
        #expect(try key() == ClusterKeys(current: added.other!, other: old.current))
        _ = try directory.change(.cluster, .remove, cluster: Self.cluster)
        #expect(try key() == ClusterKeys(current: added.other!))
        #expect(try mode("cluster.key") == 0o600)
        #expect(throws: ApusError(.configurationInvalid)) { try ClusterKeys(fileContent: Array(0..<33)) }
        #expect(throws: ApusError(.configurationInvalid)) {
            try ClusterKeys(fileContent: Array(repeating: 1, count: 64))
        }
    }

    @Test("A renewed certificate has the old one's names, another serial number and the current authority")
    func renew() throws {
        defer { remove() }
        try made()
        let before = try directory.entries()
        let authority = try text("ca.pem")
        _ = try directory.change(.authority, .add, cluster: Self.cluster)
        _ = try directory.change(.authority, .use, cluster: Self.cluster)
        #expect(
            try directory.renew([], hosts: ["192.0.2.2"]).sorted() == [
                "a.key", "a.pem", "b.key", "b.pem", "clients.key", "clients.pem",
            ])
        let after = try directory.entries()
        for name in ["a", "b", "clients"] {
            let (old, new) = (before.first { $0.name == name }, after.first { $0.name == name })
            #expect(old?.serial != new?.serial && old?.node == new?.node)
        }
        #expect(try mode("a.key") == 0o600)
        let hosts = try ["a", "clients"].map { try ClusterPKI.hosts(ofPEM: text("\($0).pem")) }
        #expect(hosts == [["192.0.2.1", "2001:db8::1", "a.example", "192.0.2.2"]] + [hosts[0]])
        #expect(try text("ca.pem").contains(authority.split(separator: "\n")[3]))
        #expect(throws: ApusError(.storageFailed)) { try directory.renew(["c"], hosts: []) }
    }

    @Test("Every certificate of a revoked node is listed, and a new one can be issued")
    func revoke() throws {
        defer { remove() }
        try made()
        _ = try directory.renew(["b"], hosts: [])
        let serial = try #require(try directory.entries().first { $0.name == "b" }?.serial)
        let added = try directory.revoke(nodes: [NodeName(unchecked: "b")], serials: ["AB"])
        #expect(added.count == 3 && added.contains(serial) && added.contains("ab"))
        #expect(try directory.revoke(nodes: [], serials: ["ab"]) == [])
        #expect(try text("revoked.txt").split(separator: "\n").count == 3)
        _ = try directory.make(cluster: Self.cluster, nodes: [NodeName(unchecked: "b")], hosts: [])
        let entries = try directory.entries()
        #expect(
            entries.first { $0.name == "b" }?.revoked == false && entries.first { $0.name == "a" }?.revoked == false)
        #expect(throws: ApusError(.storageFailed)) {
            try directory.revoke(nodes: [NodeName(unchecked: "x")], serials: [])
        }
    }
}
