import ApusConfiguration
package import ApusCore
import ApusNodeConfiguration
import Foundation

#if canImport(Glibc)
package import Glibc
#elseif canImport(Musl)
package import Musl
#endif

/// A detached `apus` process: a node of a local cluster, or a client.
/// The pid file alone is never trusted. Before any signal, the process with that id must have exactly the name and
/// arguments of ``start()``, so that another program that got the same id is left alone. The name is an argument, not
/// the file's name: the binary may have another name, or be another build.
package struct NodeProcess: Sendable {
    /// The state of the process according to the system.
    package enum State: String, Codable, Sendable {
        case running, paused, stopped
    }

    /// How often, and at which interval, missing arguments of a process are read again.
    private static let argumentAttempts = 100
    private static let argumentWaitMicroseconds: UInt32 = 1000
    private static let programName = "apus"

    /// A node's or a client's name, for messages.
    package let name: String
    /// The arguments after the program's name.
    package let arguments: [String]
    /// Receives the process's standard output and error.
    package let logFile: String
    /// Contains the process id, in digits.
    package let pidFile: String
    /// A node's configuration; nil for other processes.
    private let configurationFile: String?
    /// The state directory, if the process starts in the network namespace of its name there.
    private let home: StateDirectory?
    /// The file of another program; nil for `apus`.
    private let program: String?
    /// The program's name in the arguments of the process, whatever the name of its file.
    private var title: String { program.map { URL(fileURLWithPath: $0).lastPathComponent } ?? Self.programName }

    /// Describes a process by its arguments. Nothing is started.
    /// - Parameters:
    ///   - arguments: the arguments after the program's name.
    ///   - home: the state directory, if the process starts in the network namespace of its name there; nil for the
    ///     namespace of this process.
    ///   - program: the file of another program; nil for `apus`.
    package init(
        name: String, arguments: [String], logFile: String, pidFile: String, home: StateDirectory? = nil,
        program: String? = nil
    ) {
        self.name = name
        self.arguments = arguments
        self.logFile = logFile
        self.pidFile = pidFile
        self.home = home
        self.program = program
        configurationFile = nil
    }

    /// The process of a node. In an isolated cluster, it starts in the node's network namespace.
    package init(_ name: String, in directory: StateDirectory) {
        self.name = name
        arguments = ["node", "--config", directory.configurationFile(name)]
        logFile = directory.logFile(name)
        pidFile = directory.pidFile(name)
        home = directory
        program = nil
        configurationFile = directory.configurationFile(name)
    }

    /// The id of the running process; nil if there is none.
    package var pid: pid_t? {
        guard let text = try? String(contentsOfFile: pidFile, encoding: .utf8),
            let pid = pid_t(text.trimmingCharacters(in: .whitespacesAndNewlines)), pid > 1, isOurs(pid)
        else { return nil }
        return pid
    }

    /// The state of the process: running, paused by SIGSTOP, or stopped.
    package var state: State {
        guard let pid else { return .stopped }
        return Self.statusLetter(pid) == "T" ? .paused : .running
    }

    /// Sends a signal. Returns false if there is no process.
    @discardableResult
    package func signal(_ number: CInt) -> Bool {
        guard let pid else { return false }
        return kill(pid, number) == 0
    }

    /// Waits until the process is gone. Returns false after the deadline.
    package func waitUntilGone(_ timeout: Duration) async throws -> Bool {
        let deadline = ContinuousClock.now + timeout
        while pid != nil {
            guard ContinuousClock.now < deadline else { return false }
            try await Task.sleep(for: .milliseconds(20))
        }
        return true
    }

    /// Stops the process with SIGTERM, and with SIGKILL after `grace`. Does nothing if there is no process.
    ///
    /// - Returns: false if it had to be killed.
    @discardableResult
    package func stop(grace: Duration = stopGrace) async throws -> Bool {
        guard signal(SIGTERM) else { return true }
        // A paused process handles SIGTERM only after it continues.
        signal(SIGCONT)
        if try await waitUntilGone(grace) { return true }
        signal(SIGKILL)
        _ = try await waitUntilGone(.seconds(5))
        return false
    }

    /// The time that a process has to end by itself.
    package static let stopGrace = Duration.seconds(10)

    /// Starts the process detached: a session of its own, no terminal, output to its log.
    /// - Parameters:
    ///   - program: the file of `apus`; if nil, this program's own, or that of the other program.
    ///   - launcher: a program and its first arguments, which executes the file that follows in its own process, under
    ///     this program's name; empty for none.
    ///   - variables: additional environment variables.
    /// - Throws: 10018 with the system's reason, 10020 if the state directory is not valid, 10022 if its network
    ///   namespace cannot be entered.
    package func start(
        program: String? = nil, launcher: [String] = [], variables: [String: String] = [:]
    ) throws(ApusError) {
        let program = program ?? self.program ?? Self.executable
        let folder = URL(fileURLWithPath: logFile).deletingLastPathComponent().path
        do {
            try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "\(folder) cannot be created: \(error.localizedDescription)")
        }
        let pid = try DetachedProcess.start(
            executable: launcher.first ?? program,
            arguments: (launcher.isEmpty ? [title] : launcher + [program]) + arguments,
            environment: try environment().merging(variables) { $1 }, output: logFile,
            namespace: try home?.mark()?.network?.namespace(of: name))
        do {
            try Data("\(pid)\n".utf8).write(to: URL(fileURLWithPath: pidFile), options: .atomic)
        } catch {
            kill(pid, SIGKILL)
            throw ApusError(.storageFailed, "\(pidFile) cannot be written: \(error.localizedDescription)")
        }
    }

    /// This process's environment, without the variables that would override what is the node's own in its file. An
    /// `APUS_DATA_DIR` for another purpose would otherwise be the directory of all nodes.
    private func environment() throws(ApusError) -> [String: String] {
        var environment = ProcessInfo.processInfo.environment
        guard let configurationFile else { return environment }
        guard let text = try? String(contentsOfFile: configurationFile, encoding: .utf8) else {
            throw ApusError(.storageFailed, "\(configurationFile) cannot be read")
        }
        for variable in try Self.ownVariables(of: text, source: configurationFile) { environment[variable] = nil }
        return environment
    }

    /// Beginnings of the keys that name a node, its addresses and its files. Nodes of one environment cannot share
    /// them.
    private static let ownKeys = [
        "cluster", "node", "data_directory", "listen.", "advertise.", "ownership.", "records.file", "records.url",
        "tls.", "keys.", "http.certificate", "http.key", "relay.addresses", "relay.port", "relay.tls.port",
        "relay.external",
    ]

    /// The variables that would override keys of a configuration that are one node's own. Those of all other keys hold
    /// for all nodes that are started.
    ///
    /// - Throws: 10022 if the text is not a configuration.
    package static func ownVariables(of text: String, source: String) throws(ApusError) -> [String] {
        try ConfigurationReader.variables(overriding: text, source: source) { key in
            ownKeys.contains { $0.hasSuffix(".") ? key.hasPrefix($0) : key == $0 }
        }
    }

    /// The last lines of the log, at most 64 KiB.
    package func logTail(lines: Int) -> [Substring] {
        guard let file = FileHandle(forReadingAtPath: logFile) else { return [] }
        defer { try? file.close() }
        let size = (try? file.seekToEnd()) ?? 0
        try? file.seek(toOffset: size > 65_536 ? size - 65_536 : 0)
        let text = String(decoding: (try? file.readToEnd()) ?? Data(), as: UTF8.self)
        return text.split(separator: "\n").suffix(lines)
    }

    /// The path of this program's file.
    package static var executable: String {
        (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")) ?? CommandLine.arguments[0]
    }

    /// Kills the process and its children, such as a backtracer that holds its sockets open.
    package func killAll() {
        guard let pid else { return }
        for child in Self.children(of: pid) { kill(child, SIGKILL) }
        kill(pid, SIGKILL)
    }

    /// The child processes of a process (proc(5)).
    private static func children(of pid: pid_t) -> [pid_t] {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: "/proc")) ?? []
        return names.compactMap { pid_t($0) }.filter { child in
            guard let data = FileManager.default.contents(atPath: "/proc/\(child)/stat") else { return false }
            let text = String(decoding: data, as: UTF8.self)
            guard let end = text.lastIndex(of: ")") else { return false }
            let fields = text[text.index(after: end)...].split(separator: " ")
            return fields.count > 1 && fields[1] == "\(pid)"
        }
    }

    private func isOurs(_ pid: pid_t) -> Bool {
        // The arguments are empty for a moment while a process executes another program (execve(2)), so a node that was
        // just spawned, or that restarts in place, is not dead. They stay empty for zombies and for the kernel's own
        // threads.
        var line = Data()
        for _ in 0..<Self.argumentAttempts {
            guard let found = FileManager.default.contents(atPath: "/proc/\(pid)/cmdline") else { return false }
            line = found
            guard line.isEmpty, let letter = Self.statusLetter(pid), letter != "Z", letter != "X" else { break }
            usleep(Self.argumentWaitMicroseconds)
        }
        let found = line.split(separator: 0, omittingEmptySubsequences: false).dropLast()
            .map { String(decoding: $0, as: UTF8.self) }
        return found == [title] + arguments
    }

    /// The state letter of `stat` (proc(5)): R, S, D running; T stopped. Nil if there is no such process.
    private static func statusLetter(_ pid: pid_t) -> Character? {
        guard let data = FileManager.default.contents(atPath: "/proc/\(pid)/stat") else { return nil }
        let text = String(decoding: data, as: UTF8.self)
        guard let end = text.lastIndex(of: ")") else { return nil }
        return text[text.index(after: end)...].first { $0 != " " }
    }
}
