import ApusCore
import ApusCrypto
import ApusNode
import ApusNodeConfiguration
import ApusTransport
import Foundation
import Logging
import Testing

@Suite("Keys and certificates that a running node reads again")
struct NodeSecretsTests {
    /// The files of a node in a directory of their own.
    private final class Files {
        let folder = NSTemporaryDirectory() + "/apus-secrets-\(UUID().uuidString)"
        let authority: ClusterPKI.Issued
        let token = P256.Signing.PrivateKey()

        init() throws {
            try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
            authority = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "home"))
            try write("ca.pem", authority.certificatePEM)
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "n1"), authority: authority)
            try ClusterPKI.write(node, certificate: path("n1.pem"), key: path("n1.key"))
            let clients = try ClusterPKI.issueClientEndpoint(authority: authority)
            try ClusterPKI.write(clients, certificate: path("clients.pem"), key: path("clients.key"))
            try ClusterPKI.writeFile(Array(repeating: 1, count: 32), to: path("cluster.key"), mode: 0o600)
            try write("token.pub", token.publicKey.pemRepresentation)
            try write("token.key", token.pemRepresentation)
            try write("revoked.txt", "# none\n")
            try write("relay.secret", "a secret of sixteen bytes\n")
        }

        deinit { try? FileManager.default.removeItem(atPath: folder) }

        func path(_ name: String) -> String { "\(folder)/\(name)" }
        func write(_ name: String, _ text: String) throws {
            try ClusterPKI.writeFile(Array(text.utf8), to: path(name), mode: 0o600)
        }
        func configuration(node: String = "n1") throws -> NodeConfiguration {
            try NodeConfiguration(
                yaml: """
                    cluster: home
                    node: \(node)
                    data_directory: n1
                    ownership: {directory: ownership}
                    records: {file: records.sqlite}
                    http: {tls: on}
                    tls: {authority: ca.pem, certificate: n1.pem, key: n1.key, client_certificate: clients.pem,
                          client_key: clients.key, revoked: revoked.txt}
                    keys: {cluster: cluster.key, token_public: token.pub, token_private: token.key}
                    relay: {secret_file: relay.secret}
                    """, source: "test", folder: folder, environment: [:])
        }
        func read() throws -> NodeSecrets {
            try NodeSecrets(try configuration(), startedAs: try configuration())
        }
    }

    @Test("Whole files are read, with the ends of all certificates")
    func whole() throws {
        let files = try Files()
        let secrets = try files.read()
        #expect(Set(secrets.expiries.map(\.name)) == ["node", "authority", "clients", "http", "relay"])
    }

    @Test("One file that cannot be used is enough to refuse them all (10022)")
    func broken() throws {
        let other = P256.Signing.PrivateKey()
        let cases: [(name: String, text: String)] = [
            ("n1.pem", ""), ("n1.key", other.pemRepresentation), ("ca.pem", "no certificate"),
            ("clients.pem", ""), ("clients.key", other.pemRepresentation), ("cluster.key", "short"),
            ("token.pub", "no key"), ("token.key", other.pemRepresentation), ("token.key", "no key"),
            ("revoked.txt", "no number"), ("relay.secret", ""),
        ]
        for (name, text) in cases {
            let files = try Files()
            try files.write(name, text)
            let error = #expect(throws: ApusError.self) { _ = try files.read() }
            #expect(error?.code == .configurationInvalid, "\(name): \(error!)")
            try FileManager.default.removeItem(atPath: files.path(name))
            let missing = #expect(throws: ApusError.self) { _ = try files.read() }
            #expect(missing?.message.contains(name) == true, "\(missing!)")
        }
    }

    @Test("An expired certificate for clients is refused, and so is another node's configuration")
    func unfit() throws {
        let files = try Files()
        let expired = try ClusterPKI.issueClientEndpoint(
            authority: files.authority, at: Date().addingTimeInterval(-7200), lifetime: .seconds(3600))
        try ClusterPKI.write(expired, certificate: files.path("clients.pem"), key: files.path("clients.key"))
        let error = #expect(throws: ApusError.self) { _ = try files.read() }
        #expect(error?.message.contains("expired") == true)
        #expect(throws: ApusError(.configurationInvalid)) {
            _ = try NodeSecrets(try files.configuration(node: "n2"), startedAs: try files.configuration())
        }
    }

    @Test("A certificate warns from 30 days before its end on, and is an error afterwards")
    func expiry() {
        let conditions = NodeConditions(log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        let now = Date()
        let day: TimeInterval = 86_400
        let watch = CertificateWatch(
            [
                CertificateExpiry(
                    name: "node", file: "n1.pem", notAfter: now.addingTimeInterval(40 * day), isServed: true),
                CertificateExpiry(
                    name: "clients", file: "n1.pem", notAfter: now.addingTimeInterval(40 * day), isServed: true),
                CertificateExpiry(
                    name: "http", file: "h.pem", notAfter: now.addingTimeInterval(90 * day), isServed: true),
            ], warning: .seconds(30 * 86_400), conditions: conditions,
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        func types(after days: Double) -> [String] {
            watch.check(at: now.addingTimeInterval(days * day))
            return conditions.all.map(\.type).sorted()
        }
        #expect(types(after: 9) == [])
        #expect(types(after: 11) == ["certificate_expiring"])
        #expect(conditions.all.first?.message.contains("n1.pem") == true && conditions.all.allSatisfy { !$0.unhealthy })
        let first = conditions.all.first?.message ?? ""
        #expect(first.contains("n1.pem expires in 29 days") || first.contains("n1.pem expires in 28 days"), "\(first)")
        #expect(first.components(separatedBy: "n1.pem").count == 2, "a file of two purposes is named once: \(first)")
        #expect(types(after: 41) == ["certificate_expired"])
        #expect(conditions.all.first?.message.contains("n1.pem has expired") == true)
        #expect(conditions.all.contains { $0.unhealthy })
        #expect(types(after: 70) == ["certificate_expired", "certificate_expiring"])
        watch.use([
            CertificateExpiry(name: "node", file: "n1.pem", notAfter: now.addingTimeInterval(700 * day), isServed: true)
        ])
        #expect(conditions.all.isEmpty)
    }
}
