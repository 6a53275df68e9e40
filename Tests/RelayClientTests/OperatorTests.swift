import ApusTestKit
import Foundation
import Testing

@Suite("Operators of a relay that runs alone (D8, D13)")
struct OperatorTests {
    private struct Session: Decodable {
        var id: UInt32
        var user: String
        var client: String
        var transport: String
        var channels: Int
        var expires_in_s: Double
    }

    private struct Report: Decodable {
        struct Node: Decodable {
            var relay: Relay
        }
        struct Relay: Decodable {
            var sessions: [Session]
        }
        var nodes: [Node]
    }

    private func relay() async throws -> (ConfiguredRelay, config: [String]) {
        let http = try FreePort.next()
        let relay = try await ConfiguredRelay(keys: "users_file: users\nopen: loopback\n", http: "127.0.0.1:\(http)") {
            for user in ["first", "second"] { try ConfiguredRelay.addUser(user, "north", to: "\($0)/users") }
        }
        return (relay, ["--config", "\(relay.folder)/relay.yaml"])
    }

    /// Two allocations of a user, held until the value ends.
    private func hold(_ user: String, _ relay: ConfiguredRelay) async throws -> Child {
        let child = try Child([
            RelayProcess.apus, "relay", "check", "--server", relay.endpoint, "--username", user, "--password", "north",
            "--count", "5", "--hold", "60",
        ])
        try await eventually("\(user) has its allocations") {
            child.output.components(separatedBy: "allocated").count == 3
        }
        return child
    }

    private func sessions(_ relay: ConfiguredRelay, _ options: [String]) async throws -> [Session] {
        let outcome = try await relay.apus(["sessions", "--json"] + options)
        #expect(outcome.status == 0, "\(outcome.all)")
        let report = try JSONDecoder().decode(Report.self, from: Data(outcome.output.utf8))
        return try #require(report.nodes.first).relay.sessions
    }

    @Test("Sessions are listed by user, and ended by number and by user; others live on")
    func sessions() async throws {
        let (relay, config) = try await relay()
        let first = try await hold("first", relay)
        defer { first.terminate() }
        let second = try await hold("second", relay)
        defer { second.terminate() }
        #expect(try await sessions(relay, config).map(\.user) == ["first", "first", "second", "second"])
        let own = try await sessions(relay, config + ["--user", "first"])
        #expect(own.count == 2 && own.allSatisfy { $0.user == "first" && $0.transport == "udp" })
        #expect(own.allSatisfy { $0.client.hasPrefix("127.0.0.1:") && $0.channels == 1 && $0.expires_in_s > 0 })
        let table = try await relay.apus(["sessions"] + config)
        #expect(table.output.split(separator: "\n").count == 5, "\(table.all)")

        let one = try #require(own.first)
        let ended = try await relay.apus(["end", "\(one.id)"] + config)
        #expect(ended.output == "1 ended\n", "\(ended.all)")
        #expect(
            try await sessions(relay, config + ["--user", "first"]).map(\.id) == own.map(\.id).filter { $0 != one.id })
        #expect(try await relay.apus(["end", "--user", "second"] + config).output == "2 ended\n")
        #expect(try await sessions(relay, config).map(\.id) == own.map(\.id).filter { $0 != one.id })
        #expect(try await relay.apus(["end", "\(one.id)"] + config).status != 0, "it has ended already")
    }

    @Test("Who cannot read the relay's key is refused")
    func otherKey() async throws {
        let (relay, config) = try await relay()
        let other = "\(relay.folder)/other.yaml"
        let text = try String(contentsOfFile: config[1], encoding: .utf8)
        let elsewhere = "\(relay.folder)/elsewhere"
        try text.replacing("data_directory: data", with: "data_directory: elsewhere")
            .write(toFile: other, atomically: true, encoding: .utf8)
        // Before the first start there is no key, and nobody but the relay makes one.
        for verb in [
            ["sessions"], ["end", "--user", "first"], ["drain"], ["credentials", "--user", "first"], ["check"],
        ] {
            let outcome = try await relay.apus(verb + ["--config", other])
            #expect(outcome.status != 0 && outcome.errors.contains("relay.key does not exist"), "\(outcome.all)")
            #expect(!FileManager.default.fileExists(atPath: elsewhere), "\(verb)")
        }
        try FileManager.default.createDirectory(atPath: elsewhere, withIntermediateDirectories: true)
        #expect(FileManager.default.createFile(atPath: "\(elsewhere)/relay.key", contents: Data(count: 32)))
        for verb in [["sessions"], ["end", "--user", "first"], ["drain"]] {
            let outcome = try await relay.apus(verb + ["--config", other])
            #expect(outcome.status != 0 && outcome.errors.contains("403"), "\(outcome.all)")
        }
    }

    @Test("A relay that is drained refuses new allocations, and is empty when the last has ended")
    func drain() async throws {
        let (relay, config) = try await relay()
        let first = try await hold("first", relay)
        defer { first.terminate() }
        let early = try await relay.apus(["drain", "--wait", "0"] + config)
        #expect(early.status != 0 && early.errors.contains("2 allocations are left"), "\(early.all)")
        let refused = try await relay.check("second", "north")
        #expect(refused.status != 0 && refused.all.contains("508"), "\(refused.all)")
        #expect(try await relay.apus(["end", "--user", "first"] + config).status == 0)
        let empty = try await relay.apus(["drain", "--wait", "20"] + config)
        #expect(empty.status == 0, "\(empty.all)")
    }
}
