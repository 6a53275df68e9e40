import ApusCore
import ApusLocal
import ApusStorage
import ArgumentParser
import Foundation

/// `apus-bench store`: measures one durable change on this machine, in the ownership store or in the records.
/// Several of these processes on one path compete as nodes do.
struct BenchStoreCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "store", abstract: "Write to an ownership store or to records, and report the times.")

    enum Kind: String, CaseIterable, ExpressibleByArgument {
        case ownership, records, sqlite, lock
    }

    /// The size of a cluster's map.
    private static let valueByteCount = 36 << 10

    @Argument(
        help: """
            Measure ownership: swaps of a directory of revisions; records: commits of a SQLite file; sqlite: those of \
            SQLite alone; or lock: keep others from writing the records until this ends.
            """)
    var kind: Kind
    @Argument(help: "Use this directory or file, which is created if it is missing.") var path: String
    @Option(help: "Make this number of writes; 0 means until --seconds are over.") var count = 200
    @Option(help: "Commit this number of concurrent writes at once, for records and sqlite.") var batch = 1
    @Option(help: "Write as the node NAME#INCARNATION, for records and lock.") var node: String?
    @Option(help: "Write the log back after this number of pages, for records and lock.") var checkpointPages = 1000
    @Flag(help: "Continue after a refused write and print its error, for records.") var keepGoing = false
    @Flag(help: "Lock outside a transaction, so that SQLite holds no lock.") var bare = false
    @Option(help: "Set the store's cluster.") var cluster = "bench"
    @Option(help: "Run for at most this number of seconds.") var seconds = 60.0
    @Flag(help: "Print each write with its revision and the monotonic clock in nanoseconds.")
    var each = false

    func run() async throws {
        switch kind {
        case .ownership: break
        case .records: return try await records()
        case .sqlite: return try await sqlite()
        case .lock: return try await lock()
        }
        let began = MonotonicTime.now()
        let end = began + .seconds(seconds)
        var times: [Duration] = []
        var lostCount = 0
        let store = try await LocalOwnershipStore(path: path, cluster: ClusterID(unchecked: cluster))
        let value = [UInt8](repeating: UInt8.random(in: 0...255), count: Self.valueByteCount)
        while count == 0 || times.count < count, MonotonicTime.now() < end {
            let start = MonotonicTime.now()
            guard let revision = try await swap(store, value) else {
                lostCount += 1
                continue
            }
            let now = MonotonicTime.now()
            times.append(now - start)
            if each { Console.say("\(revision) \(now.nanoseconds)") }
        }
        times.sort()
        guard let longest = times.last else { return print("No write succeeded.") }
        func at(_ share: Double) -> String { Self.text(times[Int(Double(times.count - 1) * share)]) }
        print(
            "\(kind.rawValue): \(times.count) writes, \(lostCount) lost to others; p50 \(at(0.5)), p99 \(at(0.99)), "
                + "max \(Self.text(longest))")
    }

    private func swap(_ store: LocalOwnershipStore, _ value: [UInt8]) async throws -> UInt64? {
        let revision = try await store.revision()
        do throws(ApusError) {
            return try await store.compareAndSwap(expected: revision, value: value)
        } catch {
            // The outcome is uncertain: it is not reported, and the store is read again.
            guard error.code == .storageFailed, count == 0 else { throw error }
            return nil
        }
    }

    private static func text(_ time: Duration) -> String { "\(Double(time.nanoseconds / 1000) / 1000) ms" }
}
