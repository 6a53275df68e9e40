import Foundation
import Testing

@Suite("--json: results and errors of every verb as one object")
struct JSONOutputTests {
    /// The verbs without `--json`, and the reason.
    static let exceptions = [
        "node": "runs until it is stopped, and logs to standard error",
        "relay serve": "runs until it is stopped, and logs to standard error",
        "provider": "runs until it is stopped, and logs to standard error",
        "satellite": "runs until it is stopped, and logs to standard error",
        "conversation": "runs until it is stopped, and logs to standard error",
        "device": "publishes until it is stopped; --log writes a line of JSON for every frame",
        "cluster logs": "prints lines of logs as they are",
        "cluster shim": "is started by `cluster delay`, and runs until the delay ends",
    ]

    /// A verb of `--experimental-dump-help`.
    private struct Verb: Decodable {
        struct Argument: Decodable {
            struct Name: Decodable {
                var name: String
            }
            var names: [Name]?
        }
        var commandName: String
        var arguments: [Argument]?
        var subcommands: [Verb]?

        var hasJSON: Bool { (arguments ?? []).contains { ($0.names ?? []).contains { $0.name == "json" } } }
    }

    private struct Help: Decodable {
        var command: Verb
    }

    private struct Failure: Decodable {
        struct Fields: Decodable {
            var number: Int
            var name: String
            var message: String
        }
        var error: Fields
    }

    /// The verbs that do something by themselves. A verb has the options of the verb above it if that parses them.
    private static func leaves(
        of verb: Verb, path: [String] = [], hasJSON: Bool = false
    ) -> [(name: String, hasJSON: Bool)] {
        let hasJSON = hasJSON || verb.hasJSON
        let parts = (verb.subcommands ?? []).filter { $0.commandName != "help" }
        guard !parts.isEmpty else { return [(path.joined(separator: " "), hasJSON)] }
        return parts.flatMap { leaves(of: $0, path: path + [$0.commandName], hasJSON: hasJSON) }
    }

    private static func object(_ text: String) throws -> [String: Any] {
        try #require(try JSONSerialization.jsonObject(with: Data(text.utf8)) as? [String: Any], "\(text)")
    }

    private static func failure(_ outcome: Cluster.Outcome) throws -> Failure.Fields {
        let line = outcome.errors.split(separator: "\n").last ?? ""
        return try JSONDecoder().decode(Failure.self, from: Data(line.utf8)).error
    }

    @Test("Every verb has --json, or is an exception with a reason")
    func everyVerb() throws {
        let help = try Cluster.run(["--experimental-dump-help"])
        let verbs = Self.leaves(of: try JSONDecoder().decode(Help.self, from: Data(help.output.utf8)).command)
        #expect(verbs.count > 30, "the help is not read any more")
        for verb in verbs {
            let isException = Self.exceptions[verb.name] != nil
            #expect(verb.hasJSON != isException, "apus \(verb.name)\(isException ? " has" : " has no") --json")
        }
        #expect(Set(Self.exceptions.keys).isSubset(of: verbs.map(\.name)), "an exception is no verb any more")
    }

    @Test("The program says its build and wire versions")
    func version() throws {
        let plain = try Cluster.run(["--version"])
        #expect(plain.status == 0 && plain.output.hasPrefix("apus, build "), "\(plain.all)")
        let object = try Self.object(try Cluster.run(["--version", "--json"]).output)
        let build = try #require(object["build"] as? String)
        #expect(plain.output.contains(build) && object["wire"] as? Int ?? 0 >= object["wire_oldest"] as? Int ?? 1)
    }

    /// The long options of each verb, with those that it takes from the verbs above it.
    private static func options(
        of verb: Verb, path: [String] = [], above: [String] = []
    ) -> [(path: [String], options: [String])] {
        let own = (verb.arguments ?? []).flatMap { ($0.names ?? []).map(\.name) }.filter { $0.count > 1 }
        let all = above + own
        return [(path, all)]
            + (verb.subcommands ?? []).filter { $0.commandName != "help" }.flatMap {
                options(of: $0, path: path + [$0.commandName], above: all)
            }
    }

    @Test("The help of a verb has all options that it takes, also those of the verb above it")
    func parentOptions() throws {
        let help = try Cluster.run(["--experimental-dump-help"])
        let root = try JSONDecoder().decode(Help.self, from: Data(help.output.utf8)).command
        let verbs = Self.options(of: root).filter { $0.path.count > 1 && $0.path[0] != "cluster" }
        #expect(verbs.contains { $0.path == ["sessions", "end"] && $0.options.contains("server") })
        for verb in verbs {
            let text = try Cluster.run(verb.path + ["--help"]).output
            for option in verb.options { #expect(text.contains("--\(option)"), "apus \(verb.path) --\(option)") }
        }
    }

    @Test("A result is one object with sorted keys on standard output")
    func results() throws {
        let folder = NSTemporaryDirectory() + "/apus-json-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let made = try Cluster.run(["admin", "pki", "--dir", folder, "--cluster", "home", "--json"])
        #expect(made.status == 0 && made.output.hasPrefix(#"{"created":["#), "\(made.all)")
        #expect((try Self.object(made.output)["created"] as? [String])?.contains("token.key") == true)

        let token = try Cluster.run(["admin", "token", "--dir", folder, "--role", "admin", "--id", "one", "--json"])
        let signed = try Self.object(token.output)
        #expect(signed["id"] as? String == "one" && (signed["token"] as? String)?.isEmpty == false, "\(token.all)")

        let collections = try Self.object(try Cluster.run(["admin", "records", "list", "--json"]).output)
        #expect((collections["collections"] as? [[String: Any]])?.isEmpty == false)

        let issued = try Cluster.run(["relay", "credentials", "--secret", "s", "--user", "u", "--json"])
        #expect(try Self.object(issued.output)["iceServers"] != nil, "\(issued.all)")

        let down = try Cluster.run(["cluster", "down", "--dir", "\(folder)/none", "--json"])
        let purged = try Self.object(down.output)["purged"] as? Bool
        #expect(down.status == 0 && purged == false, "\(down.all)")
    }

    @Test("A reader that has left and a full disk end no verb", arguments: ["/dev/full", "pipe"])
    func lostReader(output: String) throws {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/bin/sh")
        // As under systemd and in programs of SwiftNIO, SIGPIPE is ignored.
        let verb = "'\(Cluster.apus)' admin records list"
        let command =
            output == "pipe" ? "{ sleep 0.2; \(verb); echo $? >&2; } | true" : "\(verb) >/dev/full; echo $? >&2"
        process.arguments = ["-c", "trap '' PIPE; \(command)"]
        let errors = Pipe()
        process.standardError = errors
        try process.run()
        let text = String(decoding: errors.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
        process.waitUntilExit()
        #expect(text == "0\n")
    }

    @Test("An error is one object on standard error, and the exit code is that of the verb without --json")
    func errors() throws {
        let missing = ["cluster", "status", "--dir", NSTemporaryDirectory() + "/apus-json-\(UUID().uuidString)"]
        let plain = try Cluster.run(missing)
        #expect(plain.status == 1 && plain.errors.hasPrefix("apus: ") && plain.errors.contains("(10020)"))
        let outcome = try Cluster.run(missing + ["--json"])
        let error = try Self.failure(outcome)
        #expect(outcome.status == 1 && outcome.output.isEmpty, "\(outcome.all)")
        #expect(error.number == 10_020 && error.name == "stateForeign" && !error.message.contains("10020"))

        // Arguments that are not valid have the number of a parameter, whether the parser or the verb refuses them.
        for arguments in [["relay", "user", "list", "--json"], ["cluster", "kill", "--json"]] {
            let refused = try Cluster.run(arguments)
            let error = try Self.failure(refused)
            #expect(refused.status == 64 && error.number == 21_031 && !error.message.isEmpty, "\(refused.all)")
        }

        let help = try Cluster.run(["cluster", "kill", "--json", "--help"])
        #expect(help.status == 0 && help.output.contains("USAGE") && help.errors.isEmpty, "\(help.all)")
    }
}
