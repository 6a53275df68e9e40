import ApusCore
import ApusLocal
import ApusNode
import CApusThreads
import NIOCore
import NIOPosix

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The restart of a node whose incarnation was declared dead (D4): the process becomes the same program anew, under the
/// same number and with the same arguments, and nothing of the old incarnation stays open.
enum RestartInPlace {
    /// Says to the new program that it follows an incarnation of its own process.
    private static let variable = "APUS_RESTARTED_IN_PLACE"
    /// How long the old incarnation's ports are waited for.
    static let portTimeout = Duration.seconds(5)

    /// This process was a node before; true once.
    static var isOne: Bool {
        guard getenv(variable) != nil else { return false }
        unsetenv(variable)
        return true
    }

    /// Becomes the same program anew. Does not return.
    @Sendable static func start() {
        setenv(variable, "1", 1)
        // SAFETY: the copies are left to the system, which drops this program's memory.
        var arguments: [UnsafeMutablePointer<CChar>?] = CommandLine.arguments.map { strdup($0) } + [nil]
        // The last step before: other threads open sockets until they end.
        apus_descriptors_close_on_exec()
        execv("/proc/self/exe", &arguments)
        // Only reached where the program's file is gone: whoever supervises the node starts it.
        _exit(70)
    }

    /// Waits until this node can listen where it did before. A connection that some process opened from one of these
    /// ports while nobody listened there may hold it for a moment; one that stays is reported by whoever listens.
    static func waitForPorts(of configuration: NodeConfiguration) async {
        let deadline = MonotonicTime.now() + portTimeout
        for address in configuration.listenAddresses {
            while await !LocalPorts.isFree(address), MonotonicTime.now() < deadline {
                try? await Task.sleep(for: .milliseconds(20))
            }
        }
    }
}
