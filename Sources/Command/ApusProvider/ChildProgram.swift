import ApusCore
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Runs a program to its end on the calling thread, with bounds of its time and output.
enum ChildProgram {
    /// The longest input, in bytes: what a pipe holds, so that writing never waits.
    static let inputByteCountMax = 65_536
    /// `POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF` (spawn.h).
    private static let flags: Int16 = 0x08 | 0x04

    /// - Parameters:
    ///   - input: its standard input.
    ///   - byteCountMax: the longest output; more of it ends the program.
    ///   - isStopped: asked each 100 ms; true ends the program.
    ///   - receive: takes the output as it comes.
    /// - Throws: 10018 if the program cannot be started or fails; 10005 after the deadline; 10002 if there is too much
    ///   output; 10006 if it was stopped.
    static func run(
        _ program: String, _ arguments: [String], input: [UInt8], deadline: MonotonicTime, byteCountMax: Int,
        isStopped: () -> Bool = { false }, receive: ([UInt8]) -> Void
    ) throws(ApusError) {
        guard input.count < inputByteCountMax else { throw ApusError(.frameTooLarge) }
        guard let child = spawning.withLock({ _ in start(program, arguments) }) else {
            throw ApusError(.internalFailure, "\(program) cannot be started")
        }
        defer { close(child.output) }
        // The program may have ended: SIGPIPE is ignored in this process.
        _ = input.withUnsafeBytes { write(child.input, $0.baseAddress, $0.count) }
        close(child.input)
        let failure = read(child.output, deadline, byteCountMax, isStopped, receive)
        if failure != nil { kill(child.pid, SIGKILL) }
        var status: CInt = 0
        while waitpid(child.pid, &status, 0) == -1, errno == EINTR {}
        if let failure { throw failure }
        guard status == 0 else { throw ApusError(.internalFailure, "\(program) failed") }
    }

    private struct Child {
        var pid: pid_t
        var input: CInt
        var output: CInt
    }

    /// One start at a time: a child must not have the pipes of another one, which would then never see their end.
    private static let spawning = Mutex(())

    private static func start(_ program: String, _ arguments: [String]) -> Child? {
        var (source, output): ([CInt], [CInt]) = ([-1, -1], [-1, -1])
        guard pipe(&source) == 0 else { return nil }
        guard pipe(&output) == 0 else {
            source.forEach { _ = close($0) }
            return nil
        }
        for descriptor in source + output { _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC) }
        let pid = spawn(program, arguments, input: source[0], output: output[1])
        close(source[0])
        close(output[1])
        if let pid { return Child(pid: pid, input: source[1], output: output[0]) }
        close(source[1])
        close(output[0])
        return nil
    }

    private static func read(
        _ descriptor: CInt, _ deadline: MonotonicTime, _ byteCountMax: Int, _ isStopped: () -> Bool,
        _ receive: ([UInt8]) -> Void
    ) -> ApusError? {
        var buffer = [UInt8](repeating: 0, count: 16_384)
        var byteCount = 0
        while true {
            if isStopped() { return ApusError(.cancelled) }
            guard MonotonicTime.now() < deadline else { return ApusError(.deadlineExceeded) }
            var waiting = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
            guard poll(&waiting, 1, 100) > 0 else { continue }
            let count = Glibc.read(descriptor, &buffer, buffer.count)
            guard count > 0 else { return count == 0 || errno == EINTR ? nil : ApusError(.internalFailure) }
            byteCount += count
            guard byteCount <= byteCountMax else { return ApusError(.frameTooLarge) }
            receive(Array(buffer[..<count]))
        }
    }

    private static func spawn(_ program: String, _ arguments: [String], input: CInt, output: CInt) -> pid_t? {
        var actions = posix_spawn_file_actions_t()
        var attributes = posix_spawnattr_t()
        posix_spawn_file_actions_init(&actions)
        posix_spawnattr_init(&attributes)
        defer {
            posix_spawn_file_actions_destroy(&actions)
            posix_spawnattr_destroy(&attributes)
        }
        posix_spawn_file_actions_adddup2(&actions, input, 0)
        posix_spawn_file_actions_adddup2(&actions, output, 1)
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0)
        var (mask, defaults) = (sigset_t(), sigset_t())
        sigemptyset(&mask)
        sigemptyset(&defaults)
        sigaddset(&defaults, SIGPIPE)
        posix_spawnattr_setsigmask(&attributes, &mask)
        posix_spawnattr_setsigdefault(&attributes, &defaults)
        posix_spawnattr_setflags(&attributes, flags)
        // SAFETY: the copies are valid until the call returns, and are freed here.
        var pointers: [UnsafeMutablePointer<CChar>?] = ([program] + arguments).map { strdup($0) } + [nil]
        defer { for pointer in pointers { free(pointer) } }
        var pid: pid_t = 0
        return posix_spawn(&pid, program, &actions, &attributes, &pointers, environ) == 0 ? pid : nil
    }
}
