import ApusCore
import ApusStorage
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// What is acknowledged is on the disk, and no process that is stopped keeps another from writing.
@Suite(.serialized, .timeLimit(.minutes(2)))
struct DurabilityTests {
    /// A compiler for C, which every machine that builds this package has.
    private static let compiler: String? = {
        let folders = (ProcessInfo.processInfo.environment["PATH"] ?? "/usr/bin").split(separator: ":")
        return ["cc", "clang", "gcc"].flatMap { name in folders.map { "\($0)/\(name)" } }
            .first { FileManager.default.isExecutableFile(atPath: $0) }
    }()

    /// Counts the calls that make data durable, and writes the number when the process ends. One of them fails where
    /// that is asked for; those after it succeed.
    private static let shim = """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <errno.h>
        #include <stdatomic.h>
        #include <stdio.h>
        #include <stdlib.h>
        static atomic_int count;
        typedef int (*sync_call)(int);
        static int sync_by(const char *name, int file) {
            const char *failing = getenv("APUS_SYNC_FAILS");
            if (atomic_fetch_add(&count, 1) + 1 == (failing ? atoi(failing) : 0)) { errno = EIO; return -1; }
            return ((sync_call)dlsym(RTLD_NEXT, name))(file);
        }
        int fsync(int file) { return sync_by("fsync", file); }
        int fdatasync(int file) { return sync_by("fdatasync", file); }
        __attribute__((destructor)) static void report(void) {
            FILE *out = fopen(getenv("APUS_SYNC_COUNT"), "w");
            if (out) { fprintf(out, "%d", atomic_load(&count)); fclose(out); }
        }
        """

    private static func scratch() throws -> String {
        // In memory where that is offered: the disk's own speed is not what is measured.
        let folder = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/" : NSTemporaryDirectory()
        let path = folder + "apus-durability-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        return path
    }

    private static func makeShim(in folder: String) throws {
        let source = "\(folder)/shim.c"
        try Data(shim.utf8).write(to: URL(fileURLWithPath: source))
        let build = Process()
        build.executableURL = URL(fileURLWithPath: try #require(compiler))
        build.arguments = ["-shared", "-fPIC", "-o", "\(folder)/shim.so", source, "-ldl"]
        try build.run()
        build.waitUntilExit()
        try #require(build.terminationStatus == 0)
    }

    private static func syncCount(of arguments: [String], in folder: String) throws -> Int {
        try makeShim(in: folder)
        let outcome = try Cluster.run(
            arguments, binary: Cluster.bench,
            environment: ["LD_PRELOAD": "\(folder)/shim.so", "APUS_SYNC_COUNT": "\(folder)/count"])
        #expect(outcome.status == 0, "\(outcome.all)")
        return try #require(Int(Cluster.text("\(folder)/count")))
    }

    @Test("Each commit of a record is synced before it is reported", .enabled(if: compiler != nil))
    func records() throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/records.sqlite"
        _ = try Self.syncCount(of: ["store", "records", path, "--count", "1"], in: folder)
        let idle = try Self.syncCount(of: ["store", "records", path, "--count", "1"], in: folder)
        let busy = try Self.syncCount(of: ["store", "records", path, "--count", "101"], in: folder)
        #expect(busy - idle >= 100, "\(busy) syncs of 101 commits, \(idle) of one")
    }

    @Test(
        "After a failed sync nothing is acknowledged, though later ones succeed, until the process is started anew",
        .enabled(if: compiler != nil), arguments: [1, 4])
    func failedSync(writerCount: Int) async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/records.sqlite"
        _ = try Self.syncCount(of: ["store", "records", path, "--count", "1"], in: folder)
        let outcome = try Cluster.run(
            [
                "store", "records", path, "--count", "200", "--batch", "\(writerCount)", "--each",
                "--keep-going",
            ],
            binary: Cluster.bench,
            environment: [
                "LD_PRELOAD": "\(folder)/shim.so", "APUS_SYNC_COUNT": "\(folder)/count", "APUS_SYNC_FAILS": "20",
            ])
        let lines = outcome.output.split(separator: "\n")
        let refused = lines.filter { $0.hasPrefix("refused 10021") }
        let acknowledged = lines.filter { $0.contains("/") && !$0.hasPrefix("refused") }
        #expect(!acknowledged.isEmpty && refused.count > 100 && acknowledged.count + refused.count == 200)
        // Those that the failed commit held; all others were told that the store is done with.
        #expect((1...writerCount).contains(refused.count { !$0.contains("restart the node") }))
        // Started anew it goes on, and has what was acknowledged.
        let store = try await SQLiteRecordStore(path: path, cluster: ClusterID(unchecked: "bench"))
        for line in acknowledged {
            let words = line.split(separator: " ")
            let numbers = words[0].split(separator: "/").compactMap { UInt64($0) }
            let key = OrderedKey(numbers.map { .unsigned($0) })
            let version = try await store.records("bench", [key])[0]?.version
            #expect(version ?? 0 >= UInt64(words[1]) ?? .max, "\(line)")
        }
        await store.close()
    }

    @Test("Each swap of the ownership store is synced, its content and its name", .enabled(if: compiler != nil))
    func swaps() throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = "\(folder)/ownership"
        _ = try Self.syncCount(of: ["store", "ownership", path, "--count", "1"], in: folder)
        let idle = try Self.syncCount(of: ["store", "ownership", path, "--count", "1"], in: folder)
        let busy = try Self.syncCount(of: ["store", "ownership", path, "--count", "101"], in: folder)
        #expect(busy - idle >= 200, "\(busy) syncs of 101 swaps, \(idle) of one")
    }

    /// Swaps as a process reported them.
    private static func reports(_ path: String) -> [(revision: UInt64, at: UInt64)] {
        Cluster.text(path).split(separator: "\n").compactMap { line in
            // The last line is a summary in words.
            let words = line.split(separator: " ")
            guard words.count == 2, let revision = UInt64(words[0]), let at = UInt64(words[1]) else { return nil }
            return (revision, at)
        }
    }

    private static func start(_ store: String, log: String) throws -> Process {
        _ = FileManager.default.createFile(atPath: log, contents: nil)
        let process = Process()
        process.executableURL = URL(fileURLWithPath: Cluster.bench)
        process.arguments = ["store", "ownership", store, "--count", "0", "--seconds", "6", "--each"]
        process.standardOutput = FileHandle(forWritingAtPath: log)
        try process.run()
        return process
    }

    @Test("A process that is stopped anywhere in a swap, again and again, keeps nobody from swapping for 200 ms")
    func stopped() async throws {
        let folder = try Self.scratch()
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let store = "\(folder)/ownership"
        let victim = try Self.start(store, log: "\(folder)/a")
        let other = try Self.start(store, log: "\(folder)/b")
        var stops: [(from: UInt64, to: UInt64)] = []
        while Self.reports("\(folder)/b").isEmpty, other.isRunning { try await Task.sleep(for: .milliseconds(5)) }
        while other.isRunning, victim.isRunning {
            kill(victim.processIdentifier, SIGSTOP)
            let from = MonotonicTime.now().nanoseconds
            try await Task.sleep(for: .milliseconds(250))
            stops.append((from, MonotonicTime.now().nanoseconds))
            kill(victim.processIdentifier, SIGCONT)
            // A moment of its own each time, so that it is stopped at another place.
            try await Task.sleep(for: .microseconds(Int.random(in: 500...20_000)))
        }
        kill(victim.processIdentifier, SIGCONT)
        for process in [victim, other] { process.waitUntilExit() }
        let (a, b) = (Self.reports("\(folder)/a"), Self.reports("\(folder)/b"))
        #expect(a.count > 3 && b.count > 100, "\(a.count) and \(b.count) swaps")
        #expect(Set(a.map(\.revision)).isDisjoint(with: b.map(\.revision)))
        #expect(Set(a.map(\.revision)).count == a.count && Set(b.map(\.revision)).count == b.count)
        var longest: UInt64 = 0
        for stop in stops.dropLast() {
            let inside = [stop.from] + b.map(\.at).filter { $0 > stop.from && $0 < stop.to } + [stop.to]
            for (earlier, later) in zip(inside, inside.dropFirst()) { longest = max(longest, later - earlier) }
        }
        #expect(longest < 200_000_000, "\(longest / 1_000_000) ms without a swap while the other was stopped")
    }
}
