import ApusCore
import ApusStorage
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The records file, used by several processes that are stopped and killed (docs/decisions/21).
@Suite(.serialized, .timeLimit(.minutes(5)))
struct RecordProcessTests {
    /// A write as a process reported it.
    private struct Report: Hashable {
        var key: String
        var version: UInt64
    }

    private static func scratch() throws -> String {
        let folder = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/" : NSTemporaryDirectory()
        let path = folder + "apus-records-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        return path
    }

    private static func start(_ arguments: [String], output: String) throws -> Process {
        _ = FileManager.default.createFile(atPath: output, contents: nil)
        let process = Process()
        process.executableURL = URL(fileURLWithPath: Cluster.bench)
        process.arguments = ["store"] + arguments
        process.standardOutput = FileHandle(forWritingAtPath: output)
        process.standardError = FileHandle.nullDevice
        try process.run()
        return process
    }

    private static func wait(within seconds: Double, until holds: () throws -> Bool) async throws -> Bool {
        let deadline = Date().addingTimeInterval(seconds)
        while try !holds() {
            guard Date() < deadline else { return false }
            try await Task.sleep(for: .milliseconds(5))
        }
        return true
    }

    private static func reports(_ path: String) -> [Report] {
        var lines = Cluster.text(path).split(separator: "\n", omittingEmptySubsequences: false)
        // What a killed process wrote last may be half a line.
        lines.removeLast()
        return lines.compactMap { line in
            let words = line.split(separator: " ")
            guard words.count == 3, let version = UInt64(words[1]) else { return nil }
            return Report(key: String(words[0]), version: version)
        }
    }

    /// SQLite before 3.51.3 loses committed pages where one process writes the log back while another commits. Here
    /// every commit writes it back. All processes add to the same records, so a lost commit would give a version twice.
    @Test("Of five processes that commit at once and are killed again and again, none loses what it acknowledged")
    func killed() async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/records.sqlite"
        let arguments = [
            "records", path, "--count", "0", "--seconds", "60", "--batch", "3", "--each", "--checkpoint-pages", "1",
        ]
        var processes: [Process] = []
        var outputs: [String] = []
        func begin() throws -> Process {
            outputs.append("\(folder)/out-\(outputs.count)")
            return try Self.start(arguments, output: outputs[outputs.count - 1])
        }
        defer { for process in processes where process.isRunning { kill(process.processIdentifier, SIGKILL) } }
        for _ in 0..<5 { processes.append(try begin()) }
        var random = SystemRandomNumberGenerator()
        for _ in 0..<30 {
            let seen = outputs[outputs.count - 1]
            #expect(try await Self.wait(within: 20) { Self.reports(seen).count > 20 }, "the newest one writes nothing")
            try await Task.sleep(for: .microseconds(Int.random(in: 0...20_000, using: &random)))
            let victim = Int.random(in: 0..<processes.count, using: &random)
            kill(processes[victim].processIdentifier, SIGKILL)
            processes[victim].waitUntilExit()
            processes[victim] = try begin()
        }
        for process in processes {
            kill(process.processIdentifier, SIGKILL)
            process.waitUntilExit()
        }
        var newest: [String: UInt64] = [:]
        var all: Set<Report> = []
        var count = 0
        for report in outputs.flatMap({ Self.reports($0) }) {
            count += 1
            all.insert(report)
            newest[report.key] = max(newest[report.key] ?? 0, report.version)
        }
        #expect(count > 500 && all.count == count, "\(count - all.count) of \(count) versions were given twice")
        let store = try await SQLiteRecordStore(path: path, cluster: ClusterID(unchecked: "bench"))
        var found: [String: UInt64] = [:]
        var scan = RecordScan("bench")
        repeat {
            let page = try await store.page(scan)
            for record in page.records { found[record.key.description] = record.version }
            scan.token = page.next
        } while scan.token != nil
        for (key, version) in newest { #expect(found[key, default: 0] >= version, "\(key)") }
        await store.close()
        // Reads every page.
        _ = try await RecordBackup.make(of: path, cluster: ClusterID(unchecked: "bench"), to: "\(folder)/copy")
    }

    private final class EndedCount: Sendable { let value = Atomic<Int>(0) }

    private static let bench = ClusterID(unchecked: "bench")

    private static func write(_ key: String) -> RecordWrite {
        RecordWrite(
            RecordID("bench", OrderedKey(.text(key))), .put(body: [1], layout: 1, entries: []), fence: .none,
            condition: .any)
    }

    /// The loss needs a connection that writes the log back beside one that commits: none does anything beside the one
    /// that holds the cluster's lock, though SQLite's own locks would let it.
    @Test("While a process holds the lock, no other changes the file or its log by commits, opening, copies or closing")
    func excluded() async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/records.sqlite"
        let (first, second) = (
            try await SQLiteRecordStore(path: path, cluster: Self.bench),
            try await SQLiteRecordStore(path: path, cluster: Self.bench)
        )
        try await first.commit(Self.write("first"))
        let holder = try Self.start(["lock", path, "--bare", "--seconds", "100"], output: "\(folder)/out")
        defer { kill(holder.processIdentifier, SIGKILL) }
        #expect(try await Self.wait(within: 20) { Cluster.text("\(folder)/out").contains("locked") })
        func content() -> [Data?] { [path, path + "-wal"].map { FileManager.default.contents(atPath: $0) } }
        let (before, start) = (content(), MonotonicTime.now())
        let ended = EndedCount()
        try await withThrowingTaskGroup(of: Void.self) { group in
            let work: [@Sendable () async throws -> Void] = [
                { try await first.commit(Self.write("second")) }, { await second.close() },
                { await (try SQLiteRecordStore(path: path, cluster: Self.bench)).close() },
                { _ = try await RecordBackup.make(of: path, cluster: Self.bench, to: "\(folder)/copy") },
            ]
            for item in work {
                group.addTask {
                    try await item()
                    ended.value.add(1, ordering: .relaxed)
                }
            }
            while MonotonicTime.now() - start < .milliseconds(500) {
                #expect(content() == before && ended.value.load(ordering: .relaxed) == 0)
                try await Task.sleep(for: .milliseconds(20))
            }
            kill(holder.processIdentifier, SIGKILL)
            try await group.waitForAll()
        }
        #expect(try await first.records("bench", [OrderedKey(.text("second"))])[0]?.version == 1)
        await first.close()
    }

    @Test("A process that may open no more files commits and writes its log back as before")
    func descriptors() async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let output = "\(folder)/out"
        let process = try Self.start(
            [
                "records", "\(folder)/records.sqlite", "--count", "0", "--seconds", "60", "--batch", "2", "--each",
                "--checkpoint-pages", "8",
            ], output: output)
        defer { kill(process.processIdentifier, SIGKILL) }
        #expect(try await Self.wait(within: 20) { Self.reports(output).count > 20 })
        let limit = Process()
        limit.executableURL = URL(fileURLWithPath: "/usr/bin/prlimit")
        limit.arguments = ["--pid", "\(process.processIdentifier)", "--nofile=3:3"]
        try limit.run()
        limit.waitUntilExit()
        try #require(limit.terminationStatus == 0)
        let count = Self.reports(output).count
        #expect(try await Self.wait(within: 20) { Self.reports(output).count > count + 500 }, "it writes no more")
        #expect(process.isRunning)
    }

    @Test("A process that is stopped while it writes is named, and once it is killed the others write on at once")
    func stopped() async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/records.sqlite"
        let store = try await SQLiteRecordStore(path: path, cluster: ClusterID(unchecked: "bench"))
        let write = RecordWrite(
            RecordID("bench", OrderedKey(.text("key"))), .put(body: [1], layout: 1, entries: []), fence: .none,
            condition: .any)
        try await store.commit(write)
        #expect(await store.lockHolder() == nil)
        let victim = try Self.start(
            ["lock", path, "--node", "n2#7", "--seconds", "100"], output: "\(folder)/out")
        defer { kill(victim.processIdentifier, SIGKILL) }
        #expect(try await Self.wait(within: 20) { Cluster.text("\(folder)/out").contains("locked") })
        kill(victim.processIdentifier, SIGSTOP)
        let holder = try #require(await store.lockHolder())
        #expect(holder.process == victim.processIdentifier)
        #expect(holder.mark == RecordWriter.mark(of: NodeID(name: NodeName(unchecked: "n2"), incarnation: 7)))
        async let version = store.commit(write)
        // Nothing is written as long as it lives; reads go on.
        for _ in 0..<20 {
            #expect(try await store.records("bench", [write.id.key])[0]?.version == 1)
            try await Task.sleep(for: .milliseconds(10))
        }
        let killed = MonotonicTime.now()
        kill(victim.processIdentifier, SIGKILL)
        #expect(try await version == 2)
        #expect(MonotonicTime.now() - killed < .seconds(1))
        await store.close()
    }

    @Test("A node that died while it kept the others from writing records is ended by them; nobody else is")
    func endedByOthers() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 22_700)
        defer { cluster.down() }
        let path = cluster.file("shared/records.sqlite")
        for (node, incarnation, isEnded) in [(2, 9, false), (3, 1, true)] {
            let output = cluster.file("out-\(node)")
            // Stands in for node `node`, which would have to be stopped in the middle of a commit.
            let holder = try Self.start(
                ["lock", path, "--cluster", "local", "--node", "n\(node)#\(incarnation)", "--seconds", "100"],
                output: output)
            defer { kill(holder.processIdentifier, SIGKILL) }
            #expect(try await Self.wait(within: 20) { Cluster.text(output).contains("locked") })
            #expect(try cluster.run("cluster", "pause", "n\(node)").status == 0)
            if isEnded {
                // A change waits for no longer than the death takes.
                let paused = MonotonicTime.now()
                let waited = try cluster.run("admin", "revoke", "--token-id", "waited")
                #expect(waited.status == 0, "\(waited.all)")
                #expect(MonotonicTime.now() - paused < .seconds(2))
                #expect(try await Self.wait(within: 5) { !holder.isRunning }, "it still holds the lock")
                #expect(holder.terminationStatus == SIGKILL)
            } else {
                // Another incarnation than the one that died: it is left alone.
                #expect(try await Self.wait(within: 10) { !NodeView(1, of: cluster).sees("n\(node)") })
                try await Task.sleep(for: .milliseconds(500))
                #expect(holder.isRunning)
                kill(holder.processIdentifier, SIGKILL)
                holder.waitUntilExit()
                #expect(try cluster.run("cluster", "resume", "n\(node)").status == 0)
                #expect(try await Self.wait(within: 30) { NodeView(1, of: cluster).sees("n\(node)") })
            }
        }
        let revoked = try cluster.run("admin", "revoke", "--token-id", "some")
        #expect(revoked.status == 0, "\(revoked.all)")
    }
}

extension NodeView {
    fileprivate func sees(_ node: String) -> Bool { status?.members.contains(node) ?? false }
}
