import ApusCore
import ApusTransport
import ApusWire
import Foundation

/// The numbers under which processes with this data directory joined the cluster, and which processes they were. It
/// proves the end of one that has ended (``JoinStateMachine``), so a node that was killed joins again at once.
///
/// The record names the processes by the machine's boot, the PID namespace, the process number and the start time. On
/// another machine, or after another boot, a copy of it proves nothing. On the same machine the kernel is asked about
/// the recorded process, whoever reads the record.
///
/// The process that has locked the directory uses it. Where the file system has no locks, two processes may lose each
/// other's entry, and the next one waits.
package struct ProcessRecord: Sendable {
    /// The most joins that are kept. Those before the last one may have been the last that the map has.
    static let countMax = 8

    private struct Entry {
        var number: UInt64
        var process: HeartbeatVitals.Process
    }

    private let file: String

    package init(directory: String) { file = "\(directory)/processes" }

    /// The numbers of those that have ended. Read before this process joins.
    package var ended: Set<UInt64> { Set(entries.filter { Self.hasEnded($0.process) }.map(\.number)) }

    /// This process joins under the number.
    package func add(_ number: UInt64) throws {
        let all = entries.suffix(Self.countMax - 1) + [Entry(number: number, process: LocalProcess.current())]
        let lines = all.map { "\($0.number) \($0.process.host) \($0.process.number) \($0.process.started)\n" }
        try Data(lines.joined().utf8).write(to: URL(fileURLWithPath: file), options: .atomic)
    }

    private var entries: [Entry] {
        let text = FileManager.default.contents(atPath: file).map { String(decoding: $0, as: UTF8.self) } ?? ""
        return text.split(separator: "\n").compactMap { line in
            let parts = line.split(separator: " ").compactMap { UInt64($0) }
            guard parts.count == 4, let number = UInt32(exactly: parts[2]) else { return nil }
            let process = HeartbeatVitals.Process(host: parts[1], number: number, thread: 0, started: parts[3])
            return Entry(number: parts[0], process: process)
        }
    }

    private static func hasEnded(_ process: HeartbeatVitals.Process) -> Bool {
        let own = LocalProcess.current()
        guard own.host != 0, process.host == own.host else { return false }
        // It has executed this program in its place.
        if process.number == own.number, process.started == own.started { return true }
        return LocalProcess.state(of: process) == .gone
    }
}
