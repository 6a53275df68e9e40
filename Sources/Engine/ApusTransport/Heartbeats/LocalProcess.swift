package import ApusWire
import ApusCore
import CApusThreads
import Foundation

/// Reads a process's state on this machine from the kernel (proc(5)). The detector uses it for nodes on the same
/// machine.
package enum LocalProcess {
    /// What a process's heartbeat thread is doing.
    package enum State: String, Sendable, Equatable {
        /// No process has this number and start time: it has ended.
        case gone
        /// A signal stopped it. It runs again only when it is continued.
        case stopped
        /// It is runnable and waits for a processor, or it waits for a page, a disk or a tracer.
        case waiting
        /// It waits for work. The machine is not the cause of its silence.
        case idle
        /// The kernel does not report it.
        case unknown
    }

    /// This process; its thread is 0.
    package static func current() -> HeartbeatVitals.Process {
        let number = ProcessInfo.processInfo.processIdentifier
        return HeartbeatVitals.Process(
            host: host(), number: UInt32(number), thread: 0, started: fields("/proc/self/stat").map { start($0) } ?? 0)
    }

    /// The calling thread's number.
    static func currentThread() -> UInt32 { UInt32(apus_thread_number()) }

    package static func state(of process: HeartbeatVitals.Process) -> State {
        guard let whole = fields("/proc/\(process.number)/stat"), start(whole) == process.started else { return .gone }
        switch whole.first {
        case "Z", "X", "x": return .gone
        case "T": return .stopped
        default: break
        }
        // If the thread has ended and the process has not, the state is the process's own.
        let thread = fields("/proc/\(process.number)/task/\(process.thread)/stat") ?? whole
        switch thread.first {
        case "R", "D", "t": return .waiting
        case "T": return .stopped
        case "S", "I": return .idle
        default: return .unknown
        }
    }

    /// A hash of the boot id and the PID namespace; 0 if either is unknown.
    private static func host() -> UInt64 {
        guard let boot = text("/proc/sys/kernel/random/boot_id"),
            let space = try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/ns/pid")
        else { return 0 }
        return StableHash.hash(boot + space)
    }

    /// The fields of `stat` from the state on. The program's name comes before them and may contain any character.
    private static func fields(_ path: String) -> [Substring]? {
        guard let text = text(path), let end = text.lastIndex(of: ")") else { return nil }
        return text[text.index(after: end)...].split(separator: " ")
    }

    /// `starttime`, the 22nd field of the file.
    private static func start(_ fields: [Substring]) -> UInt64 {
        fields.count > 19 ? UInt64(fields[19]) ?? 0 : 0
    }

    private static func text(_ path: String) -> String? {
        FileManager.default.contents(atPath: path).map { String(decoding: $0, as: UTF8.self) }
    }
}
