import ApusTestKit
import Foundation
import Testing

@Suite("An operator's verbs over the API (D17)", .serialized, .timeLimit(.minutes(3)))
struct OperatorVerbTests {
    /// A cluster of two nodes whose second has TLS on its HTTP listener, and what an operator far away has of it: the
    /// authority's certificate and a token.
    private struct Remote {
        let cluster: Cluster
        let node: Process
        let server: String
        let token: String
        let tokenFile: String

        init(basePort: Int) async throws {
            cluster = try Cluster(nodes: 2, basePort: basePort)
            let minted = try cluster.run("admin", "token", "--role", "admin", "--ttl", "2h")
            try #require(minted.status == 0, "\(minted.all)")
            token = minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
            tokenFile = cluster.file("operator.token")
            try minted.output.write(toFile: tokenFile, atomically: true, encoding: .utf8)
            // The verbs of a local cluster ask over plain HTTP, so this node is started by hand.
            try #require(try cluster.run("cluster", "drain", "n2").status == 0)
            let path = cluster.file("n2.yaml")
            let text = try String(contentsOfFile: path, encoding: .utf8)
            try (text + "http: {tls: on}\n").write(toFile: path, atomically: true, encoding: .utf8)
            node = Process()
            node.executableURL = URL(fileURLWithPath: Cluster.apus)
            node.arguments = ["node", "--config", path]
            (node.standardOutput, node.standardError) = (FileHandle.nullDevice, FileHandle.nullDevice)
            try node.run()
            server = "https://127.0.0.1:\(cluster.httpPort(2))"
            for _ in 0..<300 {
                if try verb("status").status == 0 { return }
                try await Task.sleep(for: .milliseconds(100))
            }
            Issue.record("the node with TLS does not answer: \(try verb("status").all)")
        }

        func down() {
            node.terminate()
            node.waitUntilExit()
            cluster.down()
        }

        /// A verb, with no local cluster to fall back to.
        func verb(_ arguments: String...) throws -> Cluster.Outcome {
            let options = ["--server", server, "--token-file", tokenFile, "--ca", cluster.file("pki/ca.pem")]
            return try Cluster.run(options + arguments, environment: ["HOME": cluster.file("nobody")])
        }

        func json(_ arguments: String...) throws -> [String: Any] {
            let options = ["--server", server, "--token-file", tokenFile, "--ca", cluster.file("pki/ca.pem")]
            let outcome = try Cluster.run(
                options + arguments + ["--json"], environment: ["HOME": cluster.file("nobody")])
            try #require(outcome.status == 0, "\(outcome.all)")
            return try #require(try JSONSerialization.jsonObject(with: Data(outcome.output.utf8)) as? [String: Any])
        }
    }

    @Test(
        "Status, sessions, devices, revoke and drain work over TLS with a token; what is wrong is said with its number")
    func overTLS() async throws {
        let remote = try await Remote(basePort: 26_820)
        defer { remote.down() }
        let nodes = try #require(try remote.json("status")["nodes"] as? [[String: Any]])
        #expect(Set(nodes.compactMap { $0["name"] as? String }) == ["n1", "n2"])

        let app = try remote.cluster.run("admin", "token", "--role", "app", "--access", "tablet", "--ttl", "2h")
        let token = app.output.trimmingCharacters(in: .whitespacesAndNewlines)
        let socket = try #require(PlainWebSocket(port: remote.cluster.httpPort(1)))
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#))
        let session = try #require((socket.receive()?["welcome"] as? [String: Any])?["session"] as? String)
        let listed = try remote.verb("sessions")
        #expect(listed.status == 0 && listed.output.contains(session) && listed.output.contains("tablet"))
        #expect(try remote.verb("sessions", "end", session).status == 0)
        #expect((socket.receive()?["goodbye"] as? [String: Any])?["code"] as? Int == 12_003)
        #expect(try remote.verb("sessions", "end", session).errors.contains("8002"))
        #expect(try remote.json("devices")["devices"] == nil)
        #expect(try remote.json("channels")["channels"] == nil)

        // The token of the tablet is good until it is revoked.
        let rest = try #require(PlainHTTP(port: remote.cluster.httpPort(1)))
        #expect(rest.exchange("GET", "/v1/devices", token: token)?.status == 200)
        #expect(try remote.verb("revoke", "--identity", "tablet").status == 0)
        var status = 200
        for _ in 0..<100 where status == 200 {
            status = rest.exchange("GET", "/v1/devices", token: token)?.status ?? 0
            try await Task.sleep(for: .milliseconds(50))
        }
        #expect(status == 401)

        #expect(try remote.verb("drain", "n1").status == 0)
        let drained = try #require(try remote.json("status")["nodes"] as? [[String: Any]])
        #expect(drained.first { $0["name"] as? String == "n1" }?["drained"] as? Bool == true)
        #expect(try remote.verb("drain", "n9").errors.contains("8002"))

        // It gets shards again, without a restart.
        #expect(try remote.verb("undrain", "n1").status == 0)
        #expect(try remote.verb("undrain", "n1").status == 0, "it is up already")
        #expect(try remote.verb("undrain", "n9").errors.contains("8002"))
        var (owned, state) = (0, "")
        for _ in 0..<200 where owned == 0 {
            try await Task.sleep(for: .milliseconds(100))
            let nodes = try #require(try remote.json("status")["nodes"] as? [[String: Any]])
            let node = try #require(nodes.first { $0["name"] as? String == "n1" })
            (owned, state) = (node["ownedShards"] as? Int ?? 0, node["state"] as? String ?? "")
        }
        #expect(owned > 0 && state == "up")
        #expect(try remote.verb("changes").output.contains("undrained"))
    }

    @Test(
        "No token, an app's token, a certificate that is not trusted, and plain HTTP to a TLS port: each has its error")
    func refused() async throws {
        let remote = try await Remote(basePort: 26_860)
        defer { remote.down() }
        func fails(_ arguments: [String], _ environment: [String: String] = [:], with text: String) throws {
            let outcome = try Cluster.run(
                arguments + ["status"], environment: environment.merging(["HOME": remote.cluster.file("nobody")]) { $1 }
            )
            #expect(outcome.status != 0 && outcome.errors.contains(text), "\(arguments) said \(outcome.all)")
            #expect(!outcome.all.contains(".swift"), "the message names a file of the source: \(outcome.all)")
        }
        let (server, trusted) = (["--server", remote.server], ["--ca", remote.cluster.file("pki/ca.pem")])
        let token = ["APUS_ADMIN_TOKEN": remote.token]
        let outcome = try Cluster.run(server + trusted + ["status"], environment: token)
        #expect(outcome.status == 0 && outcome.output.contains("n1"), "\(outcome.all)")
        try fails(server + trusted, with: "21031")
        try fails(server, token, with: "21022")
        try fails(["--server", remote.server.replacingOccurrences(of: "https", with: "http")], token, with: "(1")
        try fails(["--server", "ftp://nowhere"], token, with: "21031")
        try fails(server + trusted, ["APUS_ADMIN_TOKEN": "none"], with: "12001")
        let app = try remote.cluster.run("admin", "token", "--role", "app", "--ttl", "2h")
        let apps = app.output.trimmingCharacters(in: .whitespacesAndNewlines)
        try fails(server + trusted, ["APUS_ADMIN_TOKEN": apps], with: "12004")

        // At the local cluster a verb acts as the token that it is given, and as nobody else.
        let file = remote.cluster.file("app.token")
        try apps.write(toFile: file, atomically: true, encoding: .utf8)
        let local = ["--dir", remote.cluster.directory]
        for verb in [["status"], ["sessions"], ["cordon", "n1"]] {
            for (given, variable) in [(["--token-file", file], [:]), ([], ["APUS_ADMIN_TOKEN": apps])] {
                let outcome = try Cluster.run(verb + given + local, environment: variable)
                #expect(outcome.status != 0 && outcome.errors.contains("12004"), "\(verb): \(outcome.all)")
            }
        }
        let own = try Cluster.run(["status", "--token-file", remote.tokenFile] + local)
        #expect(own.status == 0 && own.output.contains("n1"), "\(own.all)")
        let missing = try Cluster.run(["status", "--token-file", file + ".none"] + local)
        #expect(missing.status != 0 && missing.errors.contains("10021"), "\(missing.all)")
        let trust = try Cluster.run(["status"] + trusted + local)
        #expect(trust.status != 0 && trust.errors.contains("21031"), "\(trust.all)")
    }
}
