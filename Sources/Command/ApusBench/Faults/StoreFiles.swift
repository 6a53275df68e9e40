import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The files of a cluster's ownership store in either form: those of a folder, or a file and the files next to it whose
/// names begin with its name.
struct StoreFiles {
    /// A fault of the files while nodes are running.
    enum Damage: String, CaseIterable {
        case deleted, older, garbage

        var says: String {
            switch self {
            case .deleted: "deleted"
            case .older: "replaced by an older copy"
            case .garbage: "overwritten with garbage"
            }
        }
    }

    private let path: String
    private let copy: String

    init(of local: LocalCluster) throws(ApusError) {
        path = try FailoverStage.ownershipPath(of: local)
        copy = "\(local.directory.path)/ownership-copy"
    }

    /// Paths relative to the folder that contains the store.
    private var names: [String] {
        let url = URL(fileURLWithPath: path)
        let (folder, name) = (url.deletingLastPathComponent().path, url.lastPathComponent)
        let all = FileManager.default.enumerator(atPath: folder)?.compactMap { $0 as? String } ?? []
        return all.filter { $0.hasPrefix(name) && isFile("\(folder)/\($0)") }.sorted()
    }

    private var folder: String { URL(fileURLWithPath: path).deletingLastPathComponent().path }

    private func isFile(_ path: String) -> Bool {
        var isDirectory: ObjCBool = false
        return FileManager.default.fileExists(atPath: path, isDirectory: &isDirectory) && !isDirectory.boolValue
    }

    /// Copies the current content of the store, for ``Damage/older``.
    func keepCopy() throws {
        for name in names { try Self.place("\(folder)/\(name)", at: "\(copy)/\(name)") }
    }

    func damage(_ damage: Damage) throws {
        switch damage {
        case .deleted: try removeAll()
        case .older:
            try removeAll()
            let kept = FileManager.default.enumerator(atPath: copy)?.compactMap { $0 as? String } ?? []
            for name in kept where isFile("\(copy)/\(name)") {
                try Self.place("\(copy)/\(name)", at: "\(folder)/\(name)")
            }
        case .garbage:
            for name in names { try overwrite("\(folder)/\(name)") }
        }
    }

    private func removeAll() throws {
        for name in names { try FileManager.default.removeItem(atPath: "\(folder)/\(name)") }
    }

    private static func place(_ source: String, at target: String) throws {
        let parent = URL(fileURLWithPath: target).deletingLastPathComponent().path
        try FileManager.default.createDirectory(atPath: parent, withIntermediateDirectories: true)
        try FileManager.default.copyItem(atPath: source, toPath: target)
    }

    /// In place and with the same length, so a mapped file keeps its pages.
    private func overwrite(_ path: String) throws {
        let file = try FileHandle(forUpdating: URL(fileURLWithPath: path))
        defer { try? file.close() }
        let count = try file.seekToEnd()
        try file.seek(toOffset: 0)
        var random = SeededRandom(seed: count)
        try file.write(contentsOf: Data((0..<count).map { _ in UInt8(truncatingIfNeeded: random.next()) }))
    }

    /// Stops a process at a moment at which it holds a lock on the store. If it never does within the time, the process
    /// is stopped anyway.
    /// - Returns: true if the process holds a lock.
    func stop(_ pid: pid_t, within span: Duration) async throws -> Bool {
        let deadline = MonotonicTime.now() + span
        let inodes = inodes
        while MonotonicTime.now() < deadline {
            kill(pid, SIGSTOP)
            // The signal takes a moment to stop all threads.
            try await Task.sleep(for: .milliseconds(1))
            if ProcessUse.holdsWriteLock(pid, on: inodes) { return true }
            kill(pid, SIGCONT)
            try await Task.sleep(for: .microseconds(UInt64.random(in: 200...3_000)))
        }
        kill(pid, SIGSTOP)
        return false
    }

    private var inodes: Set<UInt64> {
        Set(
            names.compactMap { name in
                let facts = try? FileManager.default.attributesOfItem(atPath: "\(folder)/\(name)")
                return (facts?[.systemFileNumber] as? NSNumber)?.uint64Value
            })
    }
}
