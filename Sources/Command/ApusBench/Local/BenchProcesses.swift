import ApusCore
import Foundation
import Synchronization

/// A child process with pipes for its input and output.
final class BenchProcess {
    private let process = Process()
    private let input = Pipe()
    private let output = Pipe()

    init(_ executable: String, _ arguments: [String], environment: [String: String] = [:]) throws {
        process.executableURL = URL(fileURLWithPath: executable)
        process.arguments = arguments
        process.environment = ProcessInfo.processInfo.environment.merging(environment) { $1 }
        process.standardInput = input
        process.standardOutput = output
        try process.run()
    }

    var isRunning: Bool { process.isRunning }
    var pid: pid_t { process.processIdentifier }

    /// The next line of its output; nil at the end.
    func line() -> String? {
        var line: [UInt8] = []
        while true {
            guard let byte = try? output.fileHandleForReading.read(upToCount: 1), let byte = byte.first else {
                return line.isEmpty ? nil : String(decoding: line, as: UTF8.self)
            }
            if byte == UInt8(ascii: "\n") { return String(decoding: line, as: UTF8.self) }
            line.append(byte)
        }
    }

    /// Reads its only line, which is a result. A process without a result in time is killed.
    func result(within seconds: Double) throws -> BenchCallResult {
        let watchdog = Watchdog(process, seconds: seconds)
        defer { watchdog.disarm() }
        guard let line = line() else { throw ApusError(.internalFailure, "a measuring process ended without a result") }
        process.waitUntilExit()
        return try JSONDecoder().decode(BenchCallResult.self, from: Data(line.utf8))
    }

    private final class Watchdog: Sendable {
        private let isDisarmed = Atomic<Bool>(false)

        init(_ process: Process, seconds: Double) {
            Thread.detachNewThread {
                Thread.sleep(forTimeInterval: seconds)
                if !self.isDisarmed.load(ordering: .relaxed) { kill(process.processIdentifier, SIGKILL) }
            }
        }

        func disarm() { isDisarmed.store(true, ordering: .relaxed) }
    }

    /// Closes its input, which ends the process.
    func stop() {
        try? input.fileHandleForWriting.close()
        process.waitUntilExit()
    }

    /// Kills the process. The port mapper ignores SIGTERM.
    func end() {
        kill(process.processIdentifier, SIGKILL)
        process.waitUntilExit()
    }

    /// The CPU time of a process, in seconds (proc(5), fields 14 and 15). Throws 10018 if there is none.
    static func busySeconds(of pid: pid_t) throws(ApusError) -> Double {
        guard
            let text = FileManager.default.contents(atPath: "/proc/\(pid)/stat").map({
                String(decoding: $0, as: UTF8.self)
            }), let end = text.lastIndex(of: ")")
        else { throw ApusError(.internalFailure, "the process \(pid) is not running") }
        let fields = text[end...].split(separator: " ")
        let ticks = (Double(fields[12]) ?? 0) + (Double(fields[13]) ?? 0)
        return ticks / Double(sysconf(Int32(_SC_CLK_TCK)))
    }

    /// The resident memory of a process, in bytes (proc(5), `statm`).
    ///
    /// - Throws: 10018 if it is not running.
    static func residentByteCount(of pid: pid_t) throws(ApusError) -> Int {
        let text = try? String(contentsOfFile: "/proc/\(pid)/statm", encoding: .utf8)
        guard let fields = text?.split(separator: " "), fields.count > 1, let pages = Int(fields[1]) else {
            throw ApusError(.internalFailure, "the process \(pid) is not running")
        }
        return pages * Int(getpagesize())
    }

    /// The path of a command, from the search path.
    static func find(_ command: String) -> String? {
        let path = ProcessInfo.processInfo.environment["PATH"] ?? "/usr/local/bin:/usr/bin:/bin"
        return path.split(separator: ":").map { "\($0)/\(command)" }.first {
            FileManager.default.isExecutableFile(atPath: $0)
        }
    }
}

/// Two nodes of this project.
struct ApusPair {
    private let directory: String
    private let executable: String
    private let verbs: [String]
    private let server: BenchProcess
    private let address: String
    private let standby: String?

    /// - Parameters:
    ///   - executable: another build of this program, or of an `apus` with the command `bench`; nil for this one.
    ///   - standby: the address of the calling node, which is the other's standby; nil for none.
    init(directory: String, executable: String? = nil, standby: String? = nil) throws {
        self.directory = directory
        self.standby = standby
        self.executable = executable ?? BenchPrograms.own
        verbs = try executable.map(BenchPrograms.verbs) ?? []
        server = try BenchProcess(
            self.executable,
            verbs + ["transport-server", "--dir", directory] + (standby.map { ["--standby", $0] } ?? []))
        guard let address = server.line() else { throw ApusError(.internalFailure, "the serving node did not start") }
        self.address = address
    }

    func measure(
        callers: Int, seconds: Double, onPool: Bool, isReplicated: Bool = false
    ) throws -> BenchCallResult {
        let flags = (onPool ? ["--pool"] : []) + (isReplicated ? ["--replicated"] : [])
        return try client(["--callers", "\(callers)", "--seconds", "\(seconds)"] + flags)
            .result(within: seconds + 30)
    }

    func checkOrder() throws -> BenchCallResult { try client(["--order"]).result(within: 60) }

    func stop() { server.stop() }

    private func client(_ arguments: [String]) throws -> BenchProcess {
        try BenchProcess(
            executable,
            verbs + ["transport-client", "--dir", directory, "--connect", address]
                + (standby.map { ["--listen", $0] } ?? []) + arguments)
    }
}

/// Two Erlang nodes with TLS distribution and the same certificates, and their own port mapper, which ends with the
/// benchmark.
struct ErlangPair {
    private let directory: String
    private let erl: String
    private let environment: [String: String]
    private let portMapper: BenchProcess
    private let server: BenchProcess

    init(directory: String, source: String) throws {
        guard let erl = BenchProcess.find("erl"), let erlc = BenchProcess.find("erlc"),
            let epmd = BenchProcess.find("epmd")
        else {
            throw ApusError(.configurationInvalid, "erl is missing: install erlang-base and erlang-ssl, or use --alone")
        }
        self.directory = directory
        self.erl = erl
        environment = [
            "ERL_EPMD_PORT": "\(Int.random(in: 20_000..<30_000))", "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": directory,
        ]
        let compiler = try BenchProcess(erlc, ["-o", directory, "\(source)/apus_bench.erl"])
        compiler.stop()
        for name in ["a", "b"] { try Self.writeOptions(directory, name) }
        portMapper = try BenchProcess(epmd, ["-port", environment["ERL_EPMD_PORT"] ?? ""], environment: environment)
        server = try BenchProcess(
            erl, Self.arguments(directory, "b") + ["-run", "apus_bench", "server"], environment: environment)
        guard server.line() == "ready" else { throw ApusError(.internalFailure, "the Erlang server did not start") }
    }

    func measure(callers: Int, seconds: Double) throws -> BenchCallResult {
        try client(["client", "b@localhost", "\(callers)", "\(Int(seconds * 1000))"]).result(within: seconds + 30)
    }

    /// Casts of one sender, in order.
    func cast(count: Int) throws -> BenchCallResult {
        try client(["caster", "b@localhost", "\(count)"]).result(within: 60)
    }

    private func client(_ call: [String]) throws -> BenchProcess {
        try BenchProcess(
            erl, Self.arguments(directory, "a") + ["-s", "apus_bench"] + call, environment: environment)
    }

    func stop() {
        server.stop()
        portMapper.end()
    }

    private static func arguments(_ directory: String, _ name: String) -> [String] {
        [
            "-noshell", "-sname", "\(name)@localhost", "-setcookie", "apus-bench", "-proto_dist", "inet_tls",
            "-ssl_dist_optfile", "\(directory)/\(name).config", "-pa", directory,
        ]
    }

    private static func writeOptions(_ directory: String, _ name: String) throws {
        let common = """
            {certfile,"\(directory)/\(name).pem"},{keyfile,"\(directory)/\(name).key"},\
            {cacertfile,"\(directory)/ca.pem"},{verify,verify_peer},{versions,['tlsv1.3']}
            """
        let text = "[{server,[\(common),{fail_if_no_peer_cert,true}]},{client,[\(common)]}].\n"
        try text.write(toFile: "\(directory)/\(name).config", atomically: true, encoding: .utf8)
    }
}
