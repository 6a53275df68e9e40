import ApusTestKit
import Foundation
import Testing

/// `apus relay serve --config` in a folder of its own, both of which end with this value.
final class ConfiguredRelay: Sendable {
    let folder: String
    let address: String
    let port: Int
    let child: Child

    private let http: String
    private let more: String

    /// - Parameters:
    ///   - keys: Lines under `relay` beside the address and the port.
    ///   - http: Where operators come; empty for nowhere.
    ///   - more: Other listeners beside that at the address.
    ///   - prefix: `NAME=VALUE` for the relay's environment, or what runs it, such as in a network namespace.
    ///   - address: Where it listens.
    ///   - port: Nil for one that is free.
    ///   - prepare: Makes files in the folder that is given.
    init(
        keys: String, http: String = "", more: String = "", prefix: [String] = [], address: String = "127.0.0.1",
        port: Int? = nil, prepare: (String) throws -> Void = { _ in }
    ) async throws {
        folder = FileManager.default.temporaryDirectory.appending(path: "apus-relay-\(UUID().uuidString)").path
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        self.address = address
        self.port = if let port { port } else { try FreePort.next(at: address) }
        self.http = http
        self.more = more
        try Self.write(keys, folder, "\(address) \(more)", self.port, http)
        try prepare(folder)
        let child = try Child(prefix + [RelayProcess.apus, "relay", "serve", "--config", "\(folder)/relay.yaml"])
        self.child = child
        try await eventually("the relay is open") {
            if !child.isRunning {
                Issue.record("the relay ended: \(child.errors)")
                throw CancellationError()
            }
            return child.errors.contains("The relay is open")
        }
    }

    deinit {
        child.terminate()
        try? FileManager.default.removeItem(atPath: folder)
    }

    var endpoint: String { "\(address):\(port)" }
    var users: String { "\(folder)/users" }

    /// Writes the configuration anew.
    func write(_ keys: String) throws { try Self.write(keys, folder, "\(address) \(more)", port, http) }

    private static func write(
        _ keys: String, _ folder: String, _ addresses: String, _ port: Int, _ http: String
    ) throws {
        let lines = keys.split(separator: "\n").map { "  \($0)\n" }.joined()
        let head = "data_directory: data\nhttp: '\(http)'\nrelay:\n  addresses: \(addresses)\n"
        try "\(head)  port: \(port)\n  threads: 1\n\(lines)".write(
            toFile: "\(folder)/relay.yaml", atomically: true, encoding: .utf8)
    }

    /// SIGHUP, and the line that answers it.
    func reload(_ line: String) async throws {
        let before = child.errors.components(separatedBy: line).count
        kill(child.id, SIGHUP)
        try await eventually("the relay says: \(line)") {
            self.child.errors.components(separatedBy: line).count > before
        }
    }

    /// `apus relay` with these arguments.
    func apus(_ arguments: [String]) async throws -> Outcome {
        try await Outcome.of([RelayProcess.apus, "relay"] + arguments)
    }

    /// `apus relay check` as a static user.
    func check(_ user: String, _ password: String, _ options: [String] = []) async throws -> Outcome {
        try await apus(
            ["check", "--server", endpoint, "--username", user, "--password", password, "--count", "5"] + options)
    }

    /// `apus relay user add`, which reads the password from standard input.
    static func addUser(_ name: String, _ password: String, to file: String) throws {
        let command = "printf '%s\\n' '\(password)' | '\(RelayProcess.apus)' relay user add \(name) --file '\(file)'"
        let outcome = try Outcome.now(["sh", "-c", command])
        #expect(outcome.status == 0, "\(outcome.all)")
    }
}

@Suite("A relay that is reloaded (D8)")
struct ReloadTests {
    static let done = "The relay read its secrets, users, lists of peers and certificate again"
    private static let failed = "The relay cannot be reloaded; nothing has changed"
    private let keys = "users_file: users\nopen: loopback\n"

    @Test("A user that is added is let in after SIGHUP, one that is removed is not, and an allocation lives on")
    func users() async throws {
        // One message after the other is more than the default lets a user send, where the processors never rest.
        let keys = keys + "quota: {packets_per_second: 1000000}\n"
        let relay = try await ConfiguredRelay(keys: keys) { folder in
            try ConfiguredRelay.addUser("first", "north", to: "\(folder)/users")
        }
        let text = try String(contentsOfFile: relay.users, encoding: .utf8)
        #expect(!text.contains("north"), "no password is in the file")
        let mode = try FileManager.default.attributesOfItem(atPath: relay.users)[.posixPermissions] as? Int
        #expect(mode == 0o600)
        #expect(try await relay.check("first", "north").status == 0)
        #expect(try await relay.check("second", "south").status != 0)

        // Two clients send for as long as the relay is reloaded around them.
        let busy = try Child([
            RelayProcess.apus, "relay", "check", "--server", relay.endpoint, "--username", "first", "--password",
            "north",
            "--count", "10000", "--size", "64",
        ])
        try await eventually("the clients have their allocations") {
            busy.output.components(separatedBy: "allocated").count == 3
        }
        try ConfiguredRelay.addUser("second", "south", to: relay.users)
        try await relay.reload(Self.done)
        #expect(try await relay.check("second", "south").status == 0)
        let removed = try await relay.apus(["user", "remove", "second", "--file", relay.users])
        #expect(removed.status == 0, "\(removed.all)")
        try await relay.reload(Self.done)
        #expect(try await relay.check("second", "south").status != 0)
        let listed = try await relay.apus(["user", "list", "--config", "\(relay.folder)/relay.yaml"])
        #expect(listed.output == "first\n")
        await busy.ended()
        #expect(busy.status == 0, "\(busy.output) \(busy.errors)")
        #expect(busy.output.contains("10000 of 10000 messages"), "\(busy.output)")
    }

    @Test("A file of secrets that everybody can read is named in the log; one that others can write is not taken")
    func openFiles() async throws {
        let relay = try await ConfiguredRelay(keys: keys) { folder in
            try ConfiguredRelay.addUser("first", "north", to: "\(folder)/users")
            #expect(chmod("\(folder)/users", 0o644) == 0)
        }
        let line = "Every user of the machine can read a file with the relay's secrets"
        #expect(relay.child.errors.contains(line), "\(relay.child.errors)")
        #expect(chmod(relay.users, 0o640) == 0)
        try await relay.reload(Self.done)
        #expect(relay.child.errors.components(separatedBy: line).count == 2, "the group alone may read")
        #expect(chmod(relay.users, 0o604) == 0)
        try await relay.reload(line)
        for mode in [0o620, 0o602] as [mode_t] {
            #expect(chmod(relay.users, mode) == 0)
            try await relay.reload(Self.failed)
            #expect(relay.child.errors.contains("can be written by others than its owner"), "\(relay.child.errors)")
        }
        #expect(try await relay.check("first", "north").status == 0, "nothing has changed")
    }

    @Test("Of twenty users that are added at once none is lost")
    func together() async throws {
        let folder = FileManager.default.temporaryDirectory.appending(path: "apus-users-\(UUID().uuidString)").path
        defer { try? FileManager.default.removeItem(atPath: folder) }
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        let names = (10..<30).map { "camera\($0)" }
        await withTaskGroup(of: Void.self) { group in
            for name in names {
                group.addTask {
                    let command =
                        "echo north | '\(RelayProcess.apus)' relay user add \(name) --file '\(folder)/users'"
                    let outcome = try? await Outcome.of(["sh", "-c", command])
                    #expect(outcome?.status == 0, "\(outcome?.all ?? "")")
                }
            }
        }
        let listed = try await Outcome.of([RelayProcess.apus, "relay", "user", "list", "--file", "\(folder)/users"])
        #expect(listed.output.split(separator: "\n").map(String.init) == names)
        #expect(try FileManager.default.contentsOfDirectory(atPath: folder) == ["users"])
    }

    @Test("Lists of peers count from SIGHUP on; a reload that fails says where and changes nothing")
    func lists() async throws {
        let relay = try await ConfiguredRelay(keys: keys) { folder in
            try ConfiguredRelay.addUser("first", "north", to: "\(folder)/users")
        }
        #expect(try await relay.check("first", "north", ["--peer", "127.0.0.9:9"]).status == 0)
        try relay.write(keys + "deny: 127.0.0.8/29\n")
        try await relay.reload(Self.done)
        #expect(try await relay.check("first", "north", ["--peer", "127.0.0.9:9"]).status != 0)
        #expect(try await relay.check("first", "north", ["--peer", "127.0.0.7:9"]).status == 0)
        try relay.write(keys + "deny: 127.0.0.9/29\n")
        try await relay.reload(Self.failed)
        #expect(relay.child.errors.contains("relay.yaml:9: relay.deny:"), "\(relay.child.errors)")
        #expect(try await relay.check("first", "north", ["--peer", "127.0.0.9:9"]).status != 0)
        try relay.write(keys)
        try "first:apus:north\n".write(toFile: relay.users, atomically: true, encoding: .utf8)
        try await relay.reload(Self.failed)
        #expect(relay.child.errors.contains("users:1: "), "\(relay.child.errors)")
        #expect(try await relay.check("first", "north", ["--peer", "127.0.0.9:9"]).status != 0, "all or nothing")
    }

    @Test("coturn's own key lets its user in", .enabled(if: OtherClients.uclient != nil, "coturn is not installed"))
    func coturn() async throws {
        let relay = try await ConfiguredRelay(keys: keys + "legacy_channels: true\n") { folder in
            try ConfiguredRelay.addUser("first", "north", to: "\(folder)/users")
        }
        let outcome = try await Outcome.of([
            "turnutils_uclient", "-u", "first", "-w", "north", "-p", "\(relay.port)", "-m", "2", "-n", "20", "-y",
            "127.0.0.1",
        ])
        #expect(outcome.status == 0, "\(outcome.all) \(relay.child.errors)")
        #expect(outcome.output.contains("Total lost packets 0 (0.000000%)"), "\(outcome.all)")
    }
}
