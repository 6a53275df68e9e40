import ApusCore
import ApusLocal
import Foundation

/// What became of kamailio's calls when it was killed and started again.
struct KamailioKillResult: Sendable {
    struct Row: Sendable {
        let state: KamailioKill.State
        var calls = 0
        var dropped = 0
    }

    var rows: [Row] = []
    /// The dialogs that it knows before the kill, and after the restart.
    var dialogsBefore = 0
    var dialogsAfter = 0

    var table: String {
        let head = ["KAMAILIO, STATE AT THE KILL", "CALLS", "DROPPED"]
        let lines = TextTable.lines([head] + rows.map { [$0.state.says, "\($0.calls)", "\($0.dropped)"] })
        return lines.joined(separator: "\n")
            + "\n\nkamailio: \(dialogsBefore) dialogs before the kill, \(dialogsAfter) after the restart\n"
    }

    var values: [(String, Double)] {
        [
            ("calls", Double(rows.reduce(0) { $0 + $1.calls })),
            ("dropped", Double(rows.reduce(0) { $0 + $1.dropped })), ("dialogs_before", Double(dialogsBefore)),
            ("dialogs_after", Double(dialogsAfter)),
        ] + rows.map { ("\($0.state.rawValue)_dropped", Double($0.dropped)) }
    }
}

/// Debian's kamailio as in ``Kamailio``, one node with its dialogs and registrations in memory. It is killed while
/// sipp has calls in five states on both sides of it, and started again.
///
/// Isolation: used by the benchmark's one task.
struct KamailioKill {
    /// The state in which the kill meets a call.
    enum State: String, CaseIterable, Sendable {
        case placing
        case answeredLater = "answered_later"
        case cancelling
        case hangingUp = "hanging_up"
        case connected

        var says: String {
            switch self {
            case .placing: "placing; then answered, hung up"
            case .answeredLater: "ringing; answered later"
            case .cancelling: "ringing; cancelled later"
            case .hangingUp: "answered; hung up meanwhile"
            case .connected: "answered; hung up later"
            }
        }

        fileprivate var callee: String { self == .cancelling ? "cancelled.xml" : "callee.xml" }
        fileprivate var caller: String { self == .cancelling ? "canceller.xml" : "caller.xml" }

        /// In the scenarios, in milliseconds: how long the callee rings, and how long the caller waits then.
        fileprivate var pauses: (callee: Int, caller: Int) {
            switch self {
            case .placing: (20, 20)
            case .answeredLater: (laterMs, 20)
            case .cancelling, .connected: (20, laterMs)
            case .hangingUp: (20, killMs)
            }
        }

        /// The message that ends a call as it should.
        fileprivate var end: String { self == .cancelling ? "R INVITE 487" : "R BYE 200" }
    }

    /// From the first call to the kill.
    private static let killMs = 4000
    /// From the first call to what the calls do after the restart.
    private static let laterMs = 9000
    private static let spreadSeconds = 1
    /// sipp gives up after this.
    private static let timeMax = Duration.seconds(45)

    private let folder: String
    private let port: Int
    /// Of each state.
    private let count: Int
    private let programs: (files: String, kamailio: String, sipp: String)
    private let scope: BenchScope

    /// - Parameter port: kamailio's; the next 32 are sipp's.
    init(directory: String, port: Int, calls: Int, scope: BenchScope) throws {
        (self.port, self.scope, count) = (port, scope, max(1, calls / State.allCases.count))
        programs = try Kamailio.programs()
        folder = "\(directory)/sip"
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        try copy("kamailio.cfg", as: "kamailio.cfg") { text in
            // For the number of its dialogs.
            let dialog = "loadmodule \"dialog.so\"\n"
            let control = "loadmodule \"ctl.so\"\nmodparam(\"ctl\", \"binrpc\", \"unix:\(control)\")\n"
            return text.replacingOccurrences(of: dialog, with: dialog + control)
        }
        try copy("register.xml", as: "register.xml") { $0 }
        for state in State.allCases {
            let pauses = state.pauses
            for (name, file, pause) in [
                ("callee", state.callee, pauses.callee), ("caller", state.caller, pauses.caller),
            ] {
                try copy(file, as: "\(state.rawValue)-\(name).xml") { text in
                    text.replacingOccurrences(
                        of: "<pause milliseconds=\"20\"/>", with: "<pause milliseconds=\"\(pause)\"/>")
                }
            }
            let lines = (0..<count).map { "\(state.rawValue)-\($0);\(calleePort(state))" }
            try (["SEQUENTIAL"] + lines).joined(separator: "\n")
                .write(toFile: "\(folder)/\(state.rawValue).csv", atomically: true, encoding: .utf8)
        }
    }

    private var control: String { "\(folder)/ctl" }

    private func copy(_ file: String, as name: String, _ change: (String) -> String) throws {
        let text = try String(contentsOfFile: "\(programs.files)/\(file)", encoding: .utf8)
        try change(text).write(toFile: "\(folder)/\(name)", atomically: true, encoding: .utf8)
    }

    private func place(_ state: State) -> Int { State.allCases.firstIndex(of: state) ?? 0 }
    private func calleePort(_ state: State) -> Int { port + 2 + place(state) * 2 }
    private func callerPort(_ state: State) -> Int { port + 3 + place(state) * 2 }

    // MARK: - The run

    func run(down: Duration) async throws -> KamailioKillResult {
        var result = KamailioKillResult()
        let proxy = try await start()
        for state in State.allCases { try await register(state) }
        for state in State.allCases { _ = try callee(state) }
        try await Task.sleep(for: .milliseconds(500))
        let first = MonotonicTime.now()
        var callers = try State.allCases.filter { $0 != .placing }.map { try caller($0) }
        try await Task.sleep(for: max(.zero, first + .milliseconds(Int64(Self.killMs)) - .now()))
        result.dialogsBefore = dialogs()
        callers.append(try caller(.placing))
        try await Task.sleep(for: .milliseconds(500))
        Self.end(proxy)
        try await Task.sleep(for: down)
        _ = try await start()
        result.dialogsAfter = dialogs()
        let deadline = first + Self.timeMax
        while callers.contains(where: \.isRunning), MonotonicTime.now() < deadline {
            try await Task.sleep(for: .milliseconds(50))
        }
        for state in State.allCases {
            let calls = try SIPLog.times("\(folder)/\(state.rawValue).log")
            let finished = calls.values.count { $0[state.end] != nil }
            result.rows.append(.init(state: state, calls: count, dropped: count - finished))
        }
        return result
    }

    /// Through a shell: kamailio closes the descriptor by which a `Process` notices the end of a program, and no other
    /// end would be noticed any more.
    private func start() async throws -> pid_t {
        let shell = try Kamailio.start(
            "/bin/sh",
            [
                "-c", "\"$0\" \"$@\" & wait", programs.kamailio, "-DD", "-E", "-f", "\(folder)/kamailio.cfg", "-l",
                "udp:127.0.0.1:\(port)",
            ], in: folder)
        let parent = shell.processIdentifier
        scope.onEnd { for pid in Kamailio.children(of: parent) { Self.end(pid) } }
        try await Task.sleep(for: .seconds(1))
        guard shell.isRunning, let pid = Kamailio.children(of: parent).first else {
            throw ApusError(.internalFailure, "kamailio did not start")
        }
        return pid
    }

    /// Kills kamailio and its workers.
    private static func end(_ main: pid_t) {
        for pid in Kamailio.children(of: main) + [main] { Kamailio.end(pid, named: Kamailio.processName) }
    }

    private func register(_ state: State) async throws {
        let register = try sipp(
            [
                "127.0.0.1:\(port)", "-sf", "register.xml", "-inf", "\(state.rawValue).csv", "-m", "\(count)", "-r",
                "500",
            ], port: callerPort(state))
        let deadline = MonotonicTime.now() + .seconds(15)
        while register.isRunning, MonotonicTime.now() < deadline { try await Task.sleep(for: .milliseconds(20)) }
        guard !register.isRunning, register.terminationStatus == 0 else {
            throw ApusError(.internalFailure, "the users could not register at kamailio")
        }
    }

    private func callee(_ state: State) throws -> Process {
        try sipp(["-sf", "\(state.rawValue)-callee.xml"], port: calleePort(state))
    }

    private func caller(_ state: State) throws -> Process {
        try sipp(
            [
                "127.0.0.1:\(port)", "-sf", "\(state.rawValue)-caller.xml", "-inf", "\(state.rawValue).csv", "-m",
                "\(count)", "-r", "\(max(1, count / Self.spreadSeconds))", "-l", "\(count)", "-trace_shortmsg",
                "-shortmessage_file", "\(state.rawValue).log", "-shortmessage_overwrite", "true", "-recv_timeout",
                "15000",
            ], port: callerPort(state))
    }

    private func sipp(_ arguments: [String], port: Int) throws -> Process {
        // Not the default port of the control socket: another sipp may have it.
        let common = ["-i", "127.0.0.1", "-p", "\(port)", "-cp", "\(port + 16)", "-nostdin", "-timer_resol", "1"]
        let process = try Kamailio.start(programs.sipp, arguments + common, in: folder)
        let pid = process.processIdentifier
        scope.onEnd { Kamailio.end(pid, named: "sipp") }
        return process
    }

    /// The dialogs that kamailio knows; 0 if it does not answer.
    private func dialogs() -> Int {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: BenchProcess.find("kamcmd") ?? "/usr/sbin/kamcmd")
        process.arguments = ["-s", "unix:\(control)", "dlg.stats_active"]
        let output = Pipe()
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        guard (try? process.run()) != nil else { return 0 }
        let text = String(decoding: (try? output.fileHandleForReading.readToEnd()) ?? Data(), as: UTF8.self)
        process.waitUntilExit()
        let line = text.split(separator: "\n").first { $0.contains("all:") }
        return line.flatMap { Int($0.filter(\.isNumber)) } ?? 0
    }
}
