import ApusTestKit
import Foundation
import Testing

/// A local cluster of real processes, made for one test and ended with it.
final class Cluster {
    let directory: String
    let basePort: Int
    private var children: [Process] = []

    /// The binary that was built beside the tests.
    static let apus = ProcessInfo.processInfo.environment["APUS"] ?? "\(folder)/apus"
    /// The benchmarks that were built beside the tests; they start the same `apus`.
    static let bench = "\(folder)/apus-bench"
    private static let folder = URL(fileURLWithPath: CommandLine.arguments[0]).deletingLastPathComponent().path

    /// What a command said, and how it ended.
    struct Outcome {
        var status: Int32
        var output: String
        var errors: String
        var all: String { output + errors }
    }

    /// - Parameters:
    ///   - environment: of the nodes, beside that of the test.
    ///   - launcher: a program and its first arguments, which starts the nodes.
    init(
        nodes: Int, basePort: Int, binary: String = apus, environment: [String: String] = [:], launcher: [String] = []
    ) throws {
        self.basePort = basePort
        directory = NSTemporaryDirectory() + "/apus-test-\(UUID().uuidString)"
        let arguments =
            ["cluster", "up", "--nodes", "\(nodes)", "--dir", directory, "--base-port", "\(basePort)"]
            + (try Self.recordsArguments())
        let command = launcher + [binary] + arguments
        let up = try Self.run(Array(command.dropFirst()), binary: command[0], environment: environment)
        try #require(up.status == 0, "\(up.all)")
    }

    /// Where `scripts/test-postgresql` has started PostgreSQL, the records of each cluster are in tables of its own
    /// there.
    private static func recordsArguments() throws -> [String] {
        guard let server = ProcessInfo.processInfo.environment["APUS_TEST_POSTGRESQL"] else { return [] }
        let schema = "test_\(UUID().uuidString.lowercased().replacingOccurrences(of: "-", with: "_"))"
        let made = try run(["--quiet", "--command", "CREATE SCHEMA \(schema)", server], binary: "/usr/bin/psql")
        try #require(made.status == 0, "\(made.all)")
        return ["--records-url", "\(server)&options=-csearch_path%3D\(schema)"]
    }

    /// Nodes with configurations of the test's own.
    ///
    /// - Parameters:
    ///   - advertised: the port at which clients are told to find node N; its own where nil.
    ///   - tokenKey: the file of the key that node N checks tokens with; the cluster's where nil.
    ///   - records: the file of the records.
    ///   - environment: of the nodes, beside that of the test.
    init(
        configuredNodes nodes: Int, basePort: Int, advertised: (Int) -> Int? = { _ in nil },
        tokenKey: (Int) -> String? = { _ in nil }, records: String = "shared/records.sqlite",
        environment: [String: String] = [:]
    ) throws {
        self.basePort = basePort
        directory = NSTemporaryDirectory() + "/apus-test-\(UUID().uuidString)"
        let configs = directory + "-configs"
        try FileManager.default.createDirectory(atPath: configs, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: configs) }
        for node in 1...nodes {
            let first = basePort + (node - 1) * 10
            let text = """
                cluster: local
                node: n\(node)
                data_directory: n\(node)
                listen:
                  transport: 127.0.0.1:\(first)
                  clients: 127.0.0.1:\(first + 1)
                  http: 127.0.0.1:\(first + 2)
                advertise: {clients: "127.0.0.1:\(advertised(node) ?? first + 1)"}
                ownership: {directory: shared/ownership}
                records: {file: "\(records)"}
                tls: {authority: pki/ca.pem, certificate: pki/n\(node).pem, key: pki/n\(node).key,
                  client_certificate: pki/clients.pem, client_key: pki/clients.key}
                keys: {cluster: pki/cluster.key, token_public: "\(tokenKey(node) ?? "pki/token.pub")"}
                threads: 2
                relay: {enabled: false}

                """
            try text.write(toFile: "\(configs)/n\(node).yaml", atomically: true, encoding: .utf8)
        }
        let up = try Self.run(["cluster", "up", "--configs", configs, "--dir", directory], environment: environment)
        try #require(up.status == 0, "\(up.all)")
    }

    /// Ends everything. `APUS_TEST_KEEP` set keeps the directory with its logs, to find out why a test failed.
    func down() {
        for child in children where child.isRunning { child.terminate() }
        for child in children { child.waitUntilExit() }
        _ = try? Self.run(["cluster", "down", "--dir", directory])
        if ProcessInfo.processInfo.environment["APUS_TEST_KEEP"] != nil { return }
        try? FileManager.default.removeItem(atPath: directory)
    }

    /// Runs the binary to its end.
    static func run(
        _ arguments: [String], binary: String = apus, environment: [String: String] = [:]
    ) throws -> Outcome {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: binary)
        process.arguments = arguments
        process.environment = ProcessInfo.processInfo.environment.merging(environment) { $1 }
        let (output, errors) = (scratch(), scratch())
        defer { for path in [output, errors] { try? FileManager.default.removeItem(atPath: path) } }
        process.standardOutput = FileHandle(forWritingAtPath: output)
        process.standardError = FileHandle(forWritingAtPath: errors)
        try process.run()
        process.waitUntilExit()
        return Outcome(
            status: process.terminationStatus, output: text(output), errors: text(errors))
    }

    /// Runs a verb of this cluster to its end.
    func run(_ arguments: String...) throws -> Outcome { try Self.run(arguments + ["--dir", directory]) }

    /// The number of the node that owns a device, or a shard by its number, of the first three.
    func owner(of key: String) throws -> Int {
        let why = try run("why", key, "--json")
        return try #require((1...3).first { why.output.contains("\"owner\":\"n\($0)\"") }, "\(why.all)")
    }

    /// Starts a verb of this cluster; it ends with the test or by itself.
    @discardableResult
    func start(_ arguments: String...) throws -> Process { try start(arguments) }

    /// The same.
    ///
    /// - Parameters:
    ///   - launcher: a program and its first arguments, which gets the binary and its arguments.
    ///   - output: the file for its standard output.
    ///   - errors: the file for what the verb says on standard error.
    @discardableResult
    func start(
        _ arguments: [String], environment: [String: String] = [:], launcher: [String] = [], output: String? = nil,
        errors: String? = nil
    ) throws -> Process {
        let process = Process()
        let command = launcher + [Self.apus] + arguments + ["--dir", directory]
        process.executableURL = URL(fileURLWithPath: command[0])
        process.arguments = Array(command.dropFirst())
        process.environment = ProcessInfo.processInfo.environment.merging(environment) { $1 }
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        func file(_ path: String) -> FileHandle? {
            _ = FileManager.default.createFile(atPath: path, contents: nil)
            return FileHandle(forWritingAtPath: path)
        }
        if let output { process.standardOutput = file(output) }
        if let errors { process.standardError = file(errors) }
        try process.run()
        children.append(process)
        return process
    }

    /// Waits until the checks of the relay that were started have ended, and their allocations with them.
    func awaitChecks() async throws {
        let checks = children.filter { $0.arguments?.first == "relay" }
        while checks.contains(where: \.isRunning) { try await Task.sleep(for: .milliseconds(50)) }
    }

    func file(_ name: String) -> String { "\(directory)/\(name)" }
    func endpointPort(_ node: Int) -> Int { basePort + (node - 1) * 10 + 1 }
    func httpPort(_ node: Int) -> Int { basePort + (node - 1) * 10 + 2 }
    func relayPort(_ node: Int) -> Int { basePort + (node - 1) * 10 + 3 }

    /// The node that is a channel's primary, from 1; waits until it is known and protected.
    func primary(of channel: String) async throws -> Int {
        for _ in 0..<100 {
            let status = try run("cluster", "status", "--json")
            if let node = Self.primary(of: channel, in: status.output) { return node }
            try await Task.sleep(for: .milliseconds(100))
        }
        throw TestFailure("\(channel) has no protected primary")
    }

    private static func primary(of channel: String, in json: String) -> Int? { protectedPrimaries(in: json)[channel] }

    /// The nodes, from 1, that are primaries of channels whose standby has everything.
    static func protectedPrimaries(in json: String) -> [String: Int] {
        let root = (try? JSONSerialization.jsonObject(with: Data(json.utf8))) as? [String: Any]
        var found: [String: Int] = [:]
        for node in root?["nodes"] as? [[String: Any]] ?? [] {
            for entry in node["channels"] as? [[String: Any]] ?? [] {
                guard entry["role"] as? String == "primary", entry["protected"] as? Bool == true,
                    let channel = entry["channel"] as? String, let name = node["name"] as? String
                else { continue }
                found[channel] = Int(name.dropFirst())
            }
        }
        return found
    }

    private static func scratch() -> String {
        let path = NSTemporaryDirectory() + "/apus-out-\(UUID().uuidString)"
        _ = FileManager.default.createFile(atPath: path, contents: nil)
        return path
    }

    static func text(_ path: String) -> String { (try? String(contentsOfFile: path, encoding: .utf8)) ?? "" }
}

/// A frame log as `apus device --log` and `apus watch --log` write it.
struct Frames {
    struct Line: Decodable, Equatable {
        var seq: UInt64
        var epoch: UInt32
        var track: Int
        var pts_us: Int64
        var key: Bool
        var bytes: Int
        var sha256: String
        var at_ns: UInt64
    }

    var lines: [Line]

    init(_ path: String) {
        let decoder = JSONDecoder()
        lines = Cluster.text(path).split(separator: "\n").compactMap {
            try? decoder.decode(Line.self, from: Data($0.utf8))
        }
    }

    /// Frames missing between the first and the last.
    var lostCount: Int {
        guard let first = lines.first, let last = lines.last else { return 0 }
        return Int(last.seq - first.seq) + 1 - Set(lines.map(\.seq)).count
    }

    /// Where frames are missing, for a test that failed: the numbers on both sides, and the milliseconds between them.
    var gaps: String {
        let start = lines.first?.at_ns ?? 0
        return zip(lines, lines.dropFirst()).filter { $1.seq > $0.seq + 1 }.map { before, after in
            let (from, to) = ((before.at_ns - start) / 1_000_000, (after.at_ns - start) / 1_000_000)
            return "\(before.seq)…\(after.seq) at \(from)…\(to) ms"
        }.joined(separator: ", ")
    }

    var doubledCount: Int { lines.count - Set(lines.map(\.seq)).count }

    /// The longest time between two arrivals, in milliseconds.
    var gapLongest: Double {
        zip(lines, lines.dropFirst()).map { Double($1.at_ns - $0.at_ns) / 1e6 }.max() ?? 0
    }

    /// Frames that are not, byte for byte, what was sent.
    func differing(from sent: Frames) -> Int {
        var known: [UInt64: Line] = [:]
        for line in sent.lines { known[line.seq] = line }
        return lines.count { line in
            guard var original = known[line.seq] else { return true }
            original.at_ns = line.at_ns
            return original != line
        }
    }
}
