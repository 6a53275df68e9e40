import ApusCore
import ApusLocal
import ApusNodeConfiguration
import ApusThreads
import CApusThreads
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The restart of a node whose incarnation was declared dead, or was taken by another process (D4). The process
/// executes the same program again, with the same process id and arguments, and no descriptor of the old incarnation
/// stays open.
enum RestartInPlace {
    /// Shows the new program that it replaces an incarnation in its own process.
    private static let variable = "APUS_RESTARTED_IN_PLACE"
    /// How long to wait for the old incarnation's ports.
    static let portTimeout = Duration.seconds(5)

    /// True once, if this process was a node before.
    static var isOne: Bool {
        guard getenv(variable) != nil else { return false }
        unsetenv(variable)
        return true
    }

    /// Executes the same program again, unless the process was to stop: then it ends. Does not return.
    @Sendable static func start() {
        setenv(variable, "1", 1)
        // SAFETY: the copies are never freed; execv(2) discards this program's memory.
        var arguments: [UnsafeMutablePointer<CChar>?] = CommandLine.arguments.map { strdup($0) } + [nil]
        // Its shards are the other nodes' already, so there is nothing to hand over.
        if StopSignals.end() { _exit(0) }
        // The last step: other threads may open sockets until execv(2).
        apus_descriptors_close_on_exec()
        execv("/proc/self/exe", &arguments)
        // Only reached if the program's file is gone. Then the supervisor of the node starts it.
        _exit(70)
    }

    /// Waits until this node can listen at its addresses again. An outgoing connection from one of these ports may have
    /// taken it while no listener was open, and may hold it for a moment. If it stays, the listener reports the error.
    static func waitForPorts(of configuration: NodeConfiguration) async {
        let deadline = MonotonicTime.now() + portTimeout
        for address in configuration.listenAddresses {
            while await !LocalPorts.isFree(address), MonotonicTime.now() < deadline {
                try? await Task.sleep(for: .milliseconds(20))
            }
        }
    }
}
