package import ApusCore
import ApusNode
import Foundation

#if canImport(Glibc)
package import Glibc
#elseif canImport(Musl)
package import Musl
#endif

/// An `apus` process that was started detached: a node of a local cluster, or a client beside one.
///
/// Its pid file is never trusted alone: before any signal, the process of that number must have exactly the name
/// and arguments that ``start()`` gave it, so that a number that the system gave to another program is left alone.
/// The name is given, not the file's: the binary may be called otherwise, or be another build than this one.
package struct NodeProcess: Sendable {
    /// What the system says of the process.
    package enum State: String, Codable, Sendable {
        case running, paused, stopped
    }

    /// How often, and how far apart, the arguments of a process that has none are looked at.
    private static let argumentAttempts = 100
    private static let argumentWaitMicroseconds: UInt32 = 1000
    /// The program's name among the arguments of every process, whatever its file is called.
    private static let programName = "apus"

    /// A node's or a client's name, for messages.
    package let name: String
    /// What follows the program's name.
    package let arguments: [String]
    /// Gets its standard output and error.
    package let logFile: String
    /// Holds its number, in digits.
    package let pidFile: String
    /// A node's file; nil for another process.
    private let configurationFile: String?

    /// A process by what it is started with; nothing is started yet.
    ///
    /// - Parameters:
    ///   - arguments: what follows the program's name.
    ///   - configurationFile: a node's; nil for another process.
    package init(
        name: String, arguments: [String], logFile: String, pidFile: String, configurationFile: String? = nil
    ) {
        self.name = name
        self.arguments = arguments
        self.logFile = logFile
        self.pidFile = pidFile
        self.configurationFile = configurationFile
    }

    /// The process of a node.
    package init(_ name: String, in directory: StateDirectory) {
        self.init(
            name: name, arguments: ["node", "--config", directory.configurationFile(name)],
            logFile: directory.logFile(name), pidFile: directory.pidFile(name),
            configurationFile: directory.configurationFile(name))
    }

    /// The number of the living process; nil where there is none.
    package var pid: pid_t? {
        guard let text = try? String(contentsOfFile: pidFile, encoding: .utf8),
            let pid = pid_t(text.trimmingCharacters(in: .whitespacesAndNewlines)), pid > 1, isOurs(pid)
        else { return nil }
        return pid
    }

    /// Whether it runs, is paused by SIGSTOP, or is not there.
    package var state: State {
        guard let pid else { return .stopped }
        return Self.statusLetter(pid) == "T" ? .paused : .running
    }

    /// Sends a signal; false where there is no process.
    @discardableResult
    package func signal(_ number: CInt) -> Bool {
        guard let pid else { return false }
        return kill(pid, number) == 0
    }

    /// Waits until the process is gone; false after the deadline.
    package func waitUntilGone(_ timeout: Duration) async throws -> Bool {
        let deadline = ContinuousClock.now + timeout
        while pid != nil {
            guard ContinuousClock.now < deadline else { return false }
            try await Task.sleep(for: .milliseconds(20))
        }
        return true
    }

    /// Stops the process: SIGTERM, and SIGKILL after `grace`. A process that is not there is stopped.
    package func stop(grace: Duration = .seconds(10)) async throws {
        guard signal(SIGTERM) else { return }
        // A paused process takes no SIGTERM before it goes on.
        signal(SIGCONT)
        if try await !waitUntilGone(grace) {
            signal(SIGKILL)
            _ = try await waitUntilGone(.seconds(5))
        }
    }

    /// Starts it detached: a session of its own, no terminal, output to its log.
    ///
    /// - Parameters:
    ///   - program: the file of `apus`; this program's own where nil.
    ///   - launcher: a program and its first arguments, which executes the file that follows in its own place, under
    ///     this program's name; empty: none.
    ///   - variables: of its environment, beside those of this process.
    /// - Throws: 10018 with the system's reason.
    package func start(
        program: String? = nil, launcher: [String] = [], variables: [String: String] = [:]
    ) throws(ApusError) {
        let program = program ?? Self.executable
        let folder = URL(fileURLWithPath: logFile).deletingLastPathComponent().path
        do {
            try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "\(folder) cannot be made: \(error.localizedDescription)")
        }
        let pid = try DetachedProcess.start(
            executable: launcher.first ?? program,
            arguments: (launcher.isEmpty ? [Self.programName] : launcher + [program]) + arguments,
            environment: try environment().merging(variables) { $1 }, output: logFile)
        do {
            try Data("\(pid)\n".utf8).write(to: URL(fileURLWithPath: pidFile), options: .atomic)
        } catch {
            kill(pid, SIGKILL)
            throw ApusError(.storageFailed, "\(pidFile) cannot be written: \(error.localizedDescription)")
        }
    }

    /// This process's variables, but for those that would override what the node's own file sets: an `APUS_DATA_DIR`
    /// that was meant for something else would be the directory of all nodes.
    private func environment() throws(ApusError) -> [String: String] {
        var environment = ProcessInfo.processInfo.environment
        guard let configurationFile else { return environment }
        guard let text = try? String(contentsOfFile: configurationFile, encoding: .utf8) else {
            throw ApusError(.storageFailed, "\(configurationFile) cannot be read")
        }
        for variable in try ConfigurationReader.variables(overriding: text, source: configurationFile) {
            environment[variable] = nil
        }
        return environment
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

    /// This program's own file.
    package static var executable: String {
        (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")) ?? CommandLine.arguments[0]
    }

    /// Ends the process and those that it started, such as a backtracer that holds its sockets open.
    package func killAll() {
        guard let pid else { return }
        for child in Self.children(of: pid) { kill(child, SIGKILL) }
        kill(pid, SIGKILL)
    }

    /// Processes that another started (proc(5)).
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
        // The arguments are missing for a moment while a process becomes another program (execve(2)): a node that was
        // just spawned, or that starts anew in place, is no dead one. They stay missing of one that is dead and not yet
        // waited for, and of the kernel's own threads.
        var line = Data()
        for _ in 0..<Self.argumentAttempts {
            guard let found = FileManager.default.contents(atPath: "/proc/\(pid)/cmdline") else { return false }
            line = found
            guard line.isEmpty, let letter = Self.statusLetter(pid), letter != "Z", letter != "X" else { break }
            usleep(Self.argumentWaitMicroseconds)
        }
        let found = line.split(separator: 0, omittingEmptySubsequences: false).dropLast()
            .map { String(decoding: $0, as: UTF8.self) }
        return found == [Self.programName] + arguments
    }

    /// The state letter of `stat` (proc(5)): R, S, D running; T stopped. Nil: no such process.
    private static func statusLetter(_ pid: pid_t) -> Character? {
        guard let data = FileManager.default.contents(atPath: "/proc/\(pid)/stat") else { return nil }
        let text = String(decoding: data, as: UTF8.self)
        guard let end = text.lastIndex(of: ")") else { return nil }
        return text[text.index(after: end)...].first { $0 != " " }
    }
}
