import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Starts programs that outlive this one. `posix_spawn` gives them a session of their own, so neither the terminal's
/// Ctrl-C nor its close reaches them. Foundation's Process cannot do that.
enum DetachedProcess {
    /// `POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK` (spawn.h).
    private static let flags: Int16 = 0x80 | 0x08

    /// Starts `executable`. Standard output and error are appended to a file, and standard input is empty.
    /// - Parameter namespace: the network namespace of the process; nil for that of this process.
    /// - Returns: the process id.
    /// - Throws: 10018 with the system's reason, 10022 if the namespace cannot be entered.
    static func start(
        executable: String, arguments: [String], environment: [String: String], output: String, namespace: String?
    ) throws(ApusError) -> pid_t {
        guard let namespace else {
            return try spawn(executable, arguments: arguments, environment: environment, output: output)
        }
        return try NetworkNamespace.run(in: namespace) { () throws(ApusError) in
            try spawn(executable, arguments: arguments, environment: environment, output: output)
        }
    }

    private static func spawn(
        _ executable: String, arguments: [String], environment: [String: String], output: String
    ) throws(ApusError) -> pid_t {
        var actions = posix_spawn_file_actions_t()
        var attributes = posix_spawnattr_t()
        posix_spawn_file_actions_init(&actions)
        posix_spawnattr_init(&attributes)
        defer {
            posix_spawn_file_actions_destroy(&actions)
            posix_spawnattr_destroy(&attributes)
        }
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_APPEND, 0o600)
        posix_spawn_file_actions_adddup2(&actions, 1, 2)
        // Descriptors of this process, sockets above all, must not stay open in the new process.
        for descriptor in OpenFiles.descriptors() { posix_spawn_file_actions_addclose(&actions, descriptor) }
        var mask = sigset_t()
        sigemptyset(&mask)
        posix_spawnattr_setsigmask(&attributes, &mask)
        posix_spawnattr_setflags(&attributes, flags)

        // SAFETY: the copies are valid until the call returns, and are freed here.
        var argumentPointers: [UnsafeMutablePointer<CChar>?] = arguments.map { strdup($0) } + [nil]
        var variablePointers: [UnsafeMutablePointer<CChar>?] = environment.map { strdup("\($0)=\($1)") } + [nil]
        defer { for pointer in argumentPointers + variablePointers { free(pointer) } }
        var pid: pid_t = 0
        let result = posix_spawn(&pid, executable, &actions, &attributes, &argumentPointers, &variablePointers)
        guard result == 0 else {
            throw ApusError(.internalFailure, "\(executable) cannot be started: \(String(cString: strerror(result)))")
        }
        return pid
    }
}

/// The open descriptors of this process, except standard input, output and error.
enum OpenFiles {
    /// The descriptors that proc(5) lists. Some may be closed by now.
    static func descriptors() -> [CInt] {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd")) ?? []
        return names.compactMap { CInt($0) }.filter { $0 > 2 }
    }
}
