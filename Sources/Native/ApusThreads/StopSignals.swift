package import ApusCore
import CApusThreads

/// SIGTERM and SIGINT of a program that may replace itself (execve(2)): none of them is lost then. One that arrives
/// before ``end()`` makes it return true. A later one ends the process, or the program that replaces it.
///
/// A signal that the Dispatch library handles would be lost: between its arrival and its handler, execve(2) discards
/// it.
package enum StopSignals {
    /// From now on the signals do not end the process. The closure is called for each, on a thread of its own. Call
    /// once.
    ///
    /// - Throws: 10018 if the system refuses the handler or the thread.
    package static func install(_ requested: @escaping @Sendable () -> Void) throws(ApusError) {
        guard apus_stop_install() == 0 else {
            throw ApusError(.internalFailure, "the handlers of SIGTERM and SIGINT cannot be installed")
        }
        // It waits until the process ends.
        _ = try OSThread(name: "stop-signals") {
            while true {
                apus_stop_wait()
                requested()
            }
        }
    }

    /// From now on the signals end the process. Call right before the program is replaced, on the thread that does it.
    ///
    /// - Returns: true if one has arrived since ``install(_:)``. The process should then end instead.
    package static func end() -> Bool { apus_stop_end() != 0 }
}
