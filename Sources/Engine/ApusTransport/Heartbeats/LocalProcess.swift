package import ApusWire
import ApusCore
import CApusThreads
import Foundation

/// What the kernel says of a process on this machine (proc(5)), for a verdict about a node that runs beside this one.
package enum LocalProcess {
    /// What a process's heartbeat thread is about.
    package enum State: String, Sendable, Equatable {
        /// No process of this number and start, or one that has ended.
        case gone
        /// Stopped by a signal: it does nothing until somebody lets it go on.
        case stopped
        /// It could run and waits for a processor, for a page or a disk, or for whoever traces it.
        case waiting
        /// It waits for something to do; silence has another cause than its machine.
        case idle
        /// The kernel does not say.
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
        // A thread that is gone while its process is there leaves the process's own state.
        let thread = fields("/proc/\(process.number)/task/\(process.thread)/stat") ?? whole
        switch thread.first {
        case "R", "D", "t": return .waiting
        case "T": return .stopped
        case "S", "I": return .idle
        default: return .unknown
        }
    }

    /// The boot and the namespace of process numbers, as one number; 0 where the kernel tells neither.
    private static func host() -> UInt64 {
        guard let boot = text("/proc/sys/kernel/random/boot_id"),
            let space = try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/ns/pid")
        else { return 0 }
        return StableHash.hash(boot + space)
    }

    /// The fields of `stat` from the state on: what stands before it holds the program's name, whatever that is.
    private static func fields(_ path: String) -> [Substring]? {
        guard let text = text(path), let end = text.lastIndex(of: ")") else { return nil }
        return text[text.index(after: end)...].split(separator: " ")
    }

    /// `starttime`, the 22nd field of all.
    private static func start(_ fields: [Substring]) -> UInt64 {
        fields.count > 19 ? UInt64(fields[19]) ?? 0 : 0
    }

    private static func text(_ path: String) -> String? {
        FileManager.default.contents(atPath: path).map { String(decoding: $0, as: UTF8.self) }
    }
}
