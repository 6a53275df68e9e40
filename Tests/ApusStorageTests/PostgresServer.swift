import ApusCore
import ApusPQ
import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A PostgreSQL server of the tests' own: on loopback, in a temporary directory, as a user without rights. It ends with
/// the process of the tests, however that ends.
final class PostgresServer: Sendable {
    /// The folder of the server's programs; nil where it is not installed (`scripts/test` installs it).
    static let programs: String? = {
        let root = "/usr/lib/postgresql"
        let versions = ((try? FileManager.default.contentsOfDirectory(atPath: root)) ?? []).compactMap { Int($0) }
        return versions.max().map { "\(root)/\($0)/bin" }
    }()

    /// One server for all tests.
    static let shared = Result { try PostgresServer() }

    let port: Int
    /// The server's own process, to be stopped by tests.
    let process: Int32
    private let input: ServerInput

    /// - Parameter certificate: What it shows to clients that want TLS; nil: it offers none.
    init(certificate: TestCertificate? = nil) throws {
        let programs = try #require(Self.programs)
        let folder = NSTemporaryDirectory() + "/apus-postgresql-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        let data = folder + "/data"
        // initdb refuses root.
        let user = getuid() == 0 ? ["/usr/sbin/runuser", "-u", "postgres", "--"] : []
        if getuid() == 0 { #expect(try Self.run(["/usr/bin/chown", "postgres", folder]) == 0) }
        let made = try Self.run(
            user + ["\(programs)/initdb", "-D", data, "-A", "trust", "-U", "apus", "--no-sync", "-E", "UTF8"])
        try #require(made == 0, "initdb failed")
        var encryption: [String] = []
        if let certificate {
            let owner = getuid() == 0 ? ["-o", "postgres"] : []
            for (file, copy) in [(certificate.certificate, "server.crt"), (certificate.key, "server.key")] {
                try #require(try Self.run(["/usr/bin/install", "-m", "600"] + owner + [file, "\(data)/\(copy)"]) == 0)
            }
            encryption = ["-c", "ssl=on"]
        }
        port = try FreePort.next()
        // The shell's input ends with this object, or with this process; then it ends the server. It does not `wait`:
        // where its parent blocks SIGCHLD, that never returns.
        let script = """
            "$0" "$@" & server=$!
            read line
            kill -QUIT $server
            sleep 1
            rm -rf "\(folder)"
            """
        let command =
            user + [
                "/bin/sh", "-c", script, "\(programs)/postgres", "-D", data, "-c", "listen_addresses=127.0.0.1", "-c",
                "port=\(port)", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=200",
            ]
        input = ServerInput(try Self.start(command + encryption))
        let deadline = Date().addingTimeInterval(30)
        while true {
            let end = MonotonicTime.now() + .seconds(1)
            if let connection = try? PostgresConnection(url: Self.url(port), until: end),
                (try? connection.run("SELECT 1", until: end)) != nil
            {
                break
            }
            try #require(Date() < deadline, "the server does not start")
            Thread.sleep(forTimeInterval: 0.05)
        }
        let file = try Self.output(user + ["/bin/cat", data + "/postmaster.pid"])
        process = try #require(file.split(separator: "\n").first.flatMap { Int32($0) })
    }

    static func url(_ port: Int, _ parameters: String = "") -> String {
        "postgresql://apus@127.0.0.1:\(port)/postgres?sslmode=disable\(parameters)"
    }

    /// Tables of one test, apart from all others.
    func url(schema name: String) throws -> String {
        let schema = name.lowercased().replacingOccurrences(of: "-", with: "_")
        let end = MonotonicTime.now() + .seconds(10)
        let connection = try PostgresConnection(url: Self.url(port), until: end)
        try connection.run("CREATE SCHEMA IF NOT EXISTS \(schema)", until: end)
        return Self.url(port, "&options=-csearch_path%3D\(schema)")
    }

    private static func start(_ command: [String]) throws -> Pipe {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: command[0])
        process.arguments = Array(command.dropFirst())
        let input = Pipe()
        process.standardInput = input
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        try process.run()
        return input
    }

    private static func run(_ command: [String]) throws -> Int32 {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: command[0])
        process.arguments = Array(command.dropFirst())
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        process.currentDirectoryURL = URL(fileURLWithPath: "/")
        try process.run()
        process.waitUntilExit()
        return process.terminationStatus
    }

    private static func output(_ command: [String]) throws -> String {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: command[0])
        process.arguments = Array(command.dropFirst())
        let pipe = Pipe()
        process.standardOutput = pipe
        process.currentDirectoryURL = URL(fileURLWithPath: "/")
        try process.run()
        process.waitUntilExit()
        return String(decoding: pipe.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
    }
}

/// The end of a pipe that a server's shell reads; the server ends when it is closed.
private final class ServerInput: @unchecked Sendable {  // SAFETY: set once, and used again by deinit alone.
    private let pipe: Pipe
    init(_ pipe: Pipe) { self.pipe = pipe }
    deinit { try? pipe.fileHandleForWriting.close() }
}
