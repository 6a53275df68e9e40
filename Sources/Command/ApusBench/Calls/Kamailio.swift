import ApusCore
import Foundation

/// Debian's kamailio as a stateful proxy with a registrar and dialogs in memory, and sipp on both sides of it. The
/// configuration and the scenarios are in Benchmarks/calls/.
///
/// Isolation: used by the benchmark's one task.
struct Kamailio {
    static let processName = "kamailio"
    /// How long sipp may take after its last call was due.
    private static let tailMax = Duration.seconds(15)

    private let folder: String
    private let port: Int
    private let users: Int
    private let sipp: String
    private let scope: BenchScope
    private let pids: [pid_t]

    /// - Parameters:
    ///   - port: the proxy's; the next five are sipp's.
    ///   - users: those that are called, one after the other.
    init(directory: String, port: Int, users: Int, scope: BenchScope) async throws {
        let (files, kamailio, sipp) = try Self.programs()
        (self.port, self.users, self.sipp, self.scope) = (port, users, sipp, scope)
        folder = "\(directory)/sip"
        let manager = FileManager.default
        try manager.createDirectory(atPath: folder, withIntermediateDirectories: true)
        for file in ["kamailio.cfg", "register.xml", "callee.xml", "caller.xml"] {
            try manager.copyItem(atPath: "\(files)/\(file)", toPath: "\(folder)/\(file)")
        }
        let lines = (0..<users).map { "user-\($0);\(port + 1)" }
        try (["SEQUENTIAL"] + lines).joined(separator: "\n")
            .write(toFile: "\(folder)/users.csv", atomically: true, encoding: .utf8)
        let main = try Self.start(
            kamailio, ["-DD", "-E", "-f", "\(folder)/kamailio.cfg", "-l", "udp:127.0.0.1:\(port)"], in: folder)
        let pid = main.processIdentifier
        scope.onEnd { for pid in [pid] + Self.children(of: pid) { Self.end(pid, named: Self.processName) } }
        try await Task.sleep(for: .seconds(1))
        guard main.isRunning else { throw ApusError(.internalFailure, "kamailio did not start") }
        pids = [pid] + Self.children(of: pid)
        try await register()
    }

    /// The folder of the scenarios, and the programs.
    static func programs() throws(ApusError) -> (files: String, kamailio: String, sipp: String) {
        guard let files = ProcessInfo.processInfo.environment["APUS_SIP_FOLDER"] else {
            throw ApusError(.configurationInvalid, "the scenarios of sipp are missing: use `scripts/bench calls`")
        }
        guard let kamailio = BenchProcess.find("kamailio") ?? existing("/usr/sbin/kamailio"),
            let sipp = BenchProcess.find("sipp")
        else { throw ApusError(.configurationInvalid, "kamailio or sipp is missing: install kamailio and sip-tester") }
        return (files, kamailio, sipp)
    }

    private static func existing(_ path: String) -> String? {
        FileManager.default.isExecutableFile(atPath: path) ? path : nil
    }

    private func register() async throws {
        let register = try run(
            ["127.0.0.1:\(port)", "-sf", "register.xml", "-inf", "users.csv", "-m", "\(users)", "-r", "500"],
            port: port + 2)
        try await wait(for: register, until: .now() + .seconds(Int64(users / 500)) + Self.tailMax)
        guard register.terminationStatus == 0 else {
            throw ApusError(.internalFailure, "the users could not register at kamailio")
        }
    }

    /// Places calls at a fixed rate.
    func steady(rate: Double, seconds: Double) async throws -> CallPart {
        let count = Int(rate * seconds)
        let callee = try run(["-sf", "callee.xml", "-m", "\(count)"] + Self.log("callee.log"), port: port + 1)
        try await Task.sleep(for: .milliseconds(500))
        let (start, busy) = (MonotonicTime.now(), try busySeconds())
        let caller = try run(
            [
                "127.0.0.1:\(port)", "-sf", "caller.xml", "-inf", "users.csv", "-m", "\(count)", "-r",
                "\(Int(rate))", "-l", "\(users)", "-recv_timeout", "10000",
            ] + Self.log("caller.log"), port: port + 3)
        try await wait(for: caller, until: .now() + .milliseconds(Int64(seconds * 1000)) + Self.tailMax)
        var part = try SIPLog.part(callers: "\(folder)/caller.log", callees: "\(folder)/callee.log", count: count)
        part.seconds = (.now() - start).milliseconds / 1000
        part.serverSeconds = try busySeconds() - busy
        try await wait(for: callee, until: .now() + .seconds(2))
        return part
    }

    private static func log(_ name: String) -> [String] {
        ["-trace_shortmsg", "-shortmessage_file", name, "-shortmessage_overwrite", "true"]
    }

    private func run(_ arguments: [String], port: Int) throws -> Process {
        // Not the default port of the control socket: another sipp may have it.
        let common = ["-i", "127.0.0.1", "-p", "\(port)", "-cp", "\(port + 3)", "-nostdin", "-timer_resol", "1"]
        let process = try Self.start(sipp, arguments + common, in: folder)
        let pid = process.processIdentifier
        scope.onEnd { Self.end(pid, named: "sipp") }
        return process
    }

    static func start(_ program: String, _ arguments: [String], in folder: String) throws -> Process {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: program)
        process.arguments = arguments
        process.currentDirectoryURL = URL(fileURLWithPath: folder)
        process.standardInput = FileHandle.nullDevice
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        // The threads of tasks block all signals, and a process inherits that: kamailio's timers would not run.
        var (none, earlier) = (sigset_t(), sigset_t())
        sigemptyset(&none)
        pthread_sigmask(SIG_SETMASK, &none, &earlier)
        defer { pthread_sigmask(SIG_SETMASK, &earlier, nil) }
        try process.run()
        return process
    }

    /// Kills a process that does not end in time.
    private func wait(for process: Process, until deadline: MonotonicTime) async throws {
        while process.isRunning, MonotonicTime.now() < deadline { try await Task.sleep(for: .milliseconds(20)) }
        guard process.isRunning else { return }
        Self.end(process.processIdentifier, named: "sipp")
        process.waitUntilExit()
    }

    private func busySeconds() throws(ApusError) -> Double {
        var sum = 0.0
        for pid in pids { sum += try BenchProcess.busySeconds(of: pid) }
        return sum
    }

    // MARK: - Processes

    /// The fields of `/proc/PID/stat` after the name, and the name.
    private static func stat(_ pid: pid_t) -> (name: String, fields: [Substring])? {
        guard let text = try? String(contentsOfFile: "/proc/\(pid)/stat", encoding: .utf8),
            let open = text.firstIndex(of: "("), let close = text.lastIndex(of: ")")
        else { return nil }
        return (String(text[text.index(after: open)..<close]), text[close...].split(separator: " "))
    }

    static func children(of parent: pid_t) -> [pid_t] {
        let entries = (try? FileManager.default.contentsOfDirectory(atPath: "/proc")) ?? []
        return entries.compactMap { pid_t($0) }.filter { pid in
            guard let found = stat(pid), found.fields.count > 2 else { return false }
            return found.fields[2] == "\(parent)"
        }
    }

    /// Another process may have the id meanwhile.
    static func end(_ pid: pid_t, named name: String) {
        if stat(pid)?.name == name { kill(pid, SIGKILL) }
    }
}

/// The message logs of sipp: a line for each message with its time, its direction, the call, CSeq, and its first line.
enum SIPLog {
    private struct Entry {
        let seconds: Double
        let call: Substring
        /// `S` or `R`, the method of CSeq, and the method or the status.
        let message: String
    }

    static func part(callers: String, callees: String, count: Int) throws -> CallPart {
        let (callers, callees) = (try times(callers), try times(callees))
        var part = CallPart()
        part.count = count
        for (call, caller) in callers {
            let callee = callees[call] ?? [:]
            let pairs: [(CallMeasure, Double?, Double?)] = [
                (.ring, caller["S INVITE INVITE"], callee["R INVITE INVITE"]),
                (.ringing, caller["S INVITE INVITE"], caller["R INVITE 180"]),
                (.accepted, callee["S INVITE 200"], caller["R INVITE 200"]),
                (.ended, caller["S BYE BYE"], callee["R BYE BYE"]),
            ]
            for case (let measure, let start?, let end?) in pairs {
                part.times[measure, default: []].append((end - start) * 1000)
            }
        }
        let finished = callers.values.count { $0["R BYE 200"] != nil }
        if finished < count { part.failures["not confirmed"] = count - finished }
        return part
    }

    /// By call and message, when it was first sent or received.
    static func times(_ path: String) throws -> [Substring: [String: Double]] {
        let text = try String(contentsOfFile: path, encoding: .utf8)
        var times: [Substring: [String: Double]] = [:]
        for line in text.split(separator: "\n") {
            guard let entry = entry(line), times[entry.call]?[entry.message] == nil else { continue }
            times[entry.call, default: [:]][entry.message] = entry.seconds
        }
        return times
    }

    private static func entry(_ line: Substring) -> Entry? {
        let fields = line.split(separator: "\t")
        guard fields.count >= 7, let seconds = Double(fields[2]) else { return nil }
        let first = fields[6].split(separator: " ")
        guard first.count > 1, let method = fields[5].split(separator: " ").last else { return nil }
        let word = first[0] == "SIP/2.0" ? first[1] : first[0]
        return Entry(seconds: seconds, call: fields[4], message: "\(fields[3]) \(method) \(word)")
    }
}
