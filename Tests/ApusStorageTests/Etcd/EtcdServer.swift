import ApusCore
import ApusStorage
import ApusTestKit
import Foundation
import Logging
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A log that writes nothing.
let quietLog = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

/// An etcd of the tests' own: members on loopback, with data in a temporary directory. Its processes end with the
/// process of the tests, however that ends.
final class EtcdServer: Sendable {
    /// Debian's server and its command for operators; nil where one is not installed (`scripts/test` installs them).
    static let program: String? = {
        let programs = ["/usr/bin/etcd", "/usr/bin/etcdctl"]
        return programs.allSatisfy { FileManager.default.isExecutableFile(atPath: $0) } ? programs[0] : nil
    }()

    /// One member for all tests that stop nothing.
    static let shared = Result { try EtcdServer() }

    private struct Member: Sendable {
        var name: String
        var clientPort: Int
        var peerPort: Int
    }

    private let folder: String
    private let members: [Member]
    private let certificate: TestCertificate?
    private let running: Mutex<[Int: EtcdProcess]>
    /// Removes the folder after the members have ended.
    private let cleaner: GuardingShell

    /// Starts the members and waits until they answer.
    /// - Parameter certificate: What they show to clients; nil: they offer no TLS.
    init(memberCount: Int = 1, certificate: TestCertificate? = nil) throws {
        let hasMemory = FileManager.default.isWritableFile(atPath: "/dev/shm")
        folder = (hasMemory ? "/dev/shm" : NSTemporaryDirectory()) + "/apus-etcd-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        members = try (0..<memberCount).map {
            Member(name: "m\($0)", clientPort: try FreePort.next(), peerPort: try FreePort.next())
        }
        self.certificate = certificate
        running = Mutex([:])
        cleaner = try GuardingShell("read line; sleep 1; rm -rf \"$0\"", [folder])
        for index in members.indices { try start(index) }
        let deadline = Date().addingTimeInterval(30)
        while (try? control("endpoint", "health")) == nil {
            try #require(Date() < deadline, "etcd does not start")
            Thread.sleep(forTimeInterval: 0.05)
        }
    }

    deinit { stop() }

    /// Ends the members. A test with a server of its own calls it last: the server ends no earlier then.
    func stop() {
        for process in running.withLock({ Array($0.values) }) { process.end() }
        cleaner.end()
    }

    // MARK: Addresses

    private var scheme: String { certificate == nil ? "http" : "https" }

    /// The addresses of all members for clients.
    var endpoints: [EtcdEndpoint] { members.indices.compactMap { endpoint($0) } }

    func endpoint(_ index: Int) -> EtcdEndpoint? { EtcdEndpoint(url(members[index].clientPort)) }

    func port(_ index: Int) -> Int { members[index].clientPort }

    private func url(_ port: Int) -> String { "\(scheme)://127.0.0.1:\(port)" }

    /// For a store at these members, with short times.
    func configuration() -> EtcdConfiguration {
        var configuration = EtcdConfiguration()
        configuration.endpoints = endpoints
        configuration.authorityFile = certificate?.certificate ?? ""
        configuration.prefix = "\(UUID().uuidString)/"
        configuration.retryDelayMin = .milliseconds(20)
        configuration.retryDelayMax = .milliseconds(200)
        return configuration
    }

    // MARK: Processes

    /// Starts a member, also one that was killed.
    func start(_ index: Int) throws {
        let member = members[index]
        let client = url(member.clientPort)
        let peer = "http://127.0.0.1:\(member.peerPort)"
        var arguments = [
            "--name", member.name, "--data-dir", "\(folder)/\(member.name)", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster",
            members.map { "\($0.name)=http://127.0.0.1:\($0.peerPort)" }.joined(separator: ","),
            "--heartbeat-interval", "50", "--election-timeout", "500",
        ]
        if let certificate {
            arguments += ["--cert-file", certificate.certificate, "--key-file", certificate.key]
        }
        let process = try EtcdProcess([try #require(Self.program)] + arguments)
        running.withLock { $0[index] = process }
    }

    /// Sends a signal to a member: SIGKILL, SIGSTOP or SIGCONT. After SIGSTOP it waits until all threads are stopped.
    func signal(_ number: Int32, _ index: Int) throws {
        let process = try #require(running.withLock { $0[index] })
        kill(process.id, number)
        if number == SIGKILL { running.withLock { $0[index] = nil } }
        // proc(5): the state is the first field after the name in parentheses.
        func isStopped(_ thread: String) -> Bool {
            let line = try? String(contentsOfFile: "/proc/\(process.id)/task/\(thread)/stat", encoding: .utf8)
            return line?.split(separator: ")").last?.hasPrefix(" T") ?? true
        }
        let deadline = MonotonicTime.now() + .seconds(5)
        while number == SIGSTOP, MonotonicTime.now() < deadline,
            try !FileManager.default.contentsOfDirectory(atPath: "/proc/\(process.id)/task").allSatisfy(isStopped)
        { usleep(1000) }
    }

    /// The index of the member that leads.
    func leader() throws -> Int {
        struct Status: Decodable {
            struct Header: Decodable { var member_id: UInt64 }
            struct Inner: Decodable {
                var header: Header
                var leader: UInt64
            }
            var Endpoint: String
            var Status: Inner
        }
        let text = try control("endpoint", "status", "-w", "json")
        let all = try JSONDecoder().decode([Status].self, from: Data(text.utf8))
        let found = try #require(all.first { $0.Status.header.member_id == $0.Status.leader }?.Endpoint)
        return try #require(members.firstIndex { found.hasSuffix(":\($0.clientPort)") })
    }

    /// Runs etcdctl and returns its output.
    /// - Parameter input: What it reads, such as a password.
    @discardableResult
    func control(_ arguments: String..., user: String = "", input: String = "") throws -> String {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/etcdctl")
        process.arguments =
            ["--endpoints", endpoints.map(\.description).joined(separator: ","), "--command-timeout", "3s"]
            + (certificate == nil ? [] : ["--insecure-transport=false", "--insecure-skip-tls-verify"])
            + (user.isEmpty ? [] : ["--user", user])
            + arguments
        process.environment = ["ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"]
        let (output, given) = (Pipe(), Pipe())
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        process.standardInput = given
        try process.run()
        try given.fileHandleForWriting.write(contentsOf: Data(input.utf8))
        try given.fileHandleForWriting.close()
        let text = String(decoding: output.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
        process.waitUntilExit()
        guard process.terminationStatus == 0 else {
            throw TestFailure("etcdctl \(arguments.joined(separator: " ")) failed: \(text)")
        }
        return text
    }
}

/// A shell that runs a script, which reads its input to the end first or last. The input ends with this object, or with
/// the process of the tests.
private final class GuardingShell: @unchecked Sendable {  // SAFETY: set once; a handle is closed once, by `end`.
    private let input = Pipe()
    private let output = Pipe()

    init(_ script: String, _ arguments: [String]) throws {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/bin/sh")
        process.arguments = ["-c", script] + arguments
        process.standardInput = input
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
    }

    /// The first line that the script writes.
    func line() -> String {
        String(decoding: output.fileHandleForReading.availableData, as: UTF8.self)
            .trimmingCharacters(in: .whitespacesAndNewlines)
    }

    func end() { try? input.fileHandleForWriting.close() }
}

/// One member's process. Its shell kills it when its own input ends.
private final class EtcdProcess: Sendable {
    let id: Int32
    private let shell: GuardingShell

    init(_ command: [String]) throws {
        // The shell does not `wait`: where its parent blocks SIGCHLD, that never returns.
        let script = """
            "$0" "$@" >/dev/null 2>&1 & server=$!
            echo $server
            read line
            kill -KILL $server
            """
        shell = try GuardingShell(script, command)
        id = try #require(Int32(shell.line()))
    }

    func end() { shell.end() }
}
