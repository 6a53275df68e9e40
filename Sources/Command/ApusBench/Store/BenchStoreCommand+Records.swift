import ApusCore
import ApusLocal
import ApusStorage
import ArgumentParser

/// Measures commits of records, and those of SQLite alone.
extension BenchStoreCommand {
    private static let collection = "bench"
    /// The typical size of a service's record.
    private static let bodyByteCount = 128
    private static let keyCount = 10_000

    private var mark: UInt64 {
        get throws {
            guard let node else { return 0 }
            let parts = node.split(separator: "#")
            guard parts.count == 2, let name = NodeName(rawValue: String(parts[0])), let incarnation = UInt64(parts[1])
            else { throw ValidationError("--node must be NAME#INCARNATION") }
            return RecordWriter.mark(of: NodeID(name: name, incarnation: incarnation))
        }
    }

    private func openStore() async throws -> SQLiteRecordStore {
        var files = SQLiteLimits()
        files.checkpointPageCount = checkpointPages
        return try await SQLiteRecordStore(
            path: path, cluster: ClusterID(unchecked: cluster), files: files, mark: try mark)
    }

    /// Runs `batch` writers. Each waits for its write before the next one.
    func records() async throws {
        let store = try await openStore()
        let began = MonotonicTime.now()
        let end = began + .seconds(seconds)
        let (count, batch, each, keepGoing) = (count, max(1, batch), each, keepGoing)
        let times = try await withThrowingTaskGroup(of: [Duration].self) { group in
            for writer in 0..<batch {
                group.addTask {
                    let share = count / batch + (writer < count % batch ? 1 : 0)
                    return try await Self.write(
                        store, writer, share, isEndless: count == 0, until: end, each: each, keepGoing: keepGoing)
                }
            }
            return try await group.reduce(into: [Duration]()) { $0 += $1 }
        }
        report("records", times, MonotonicTime.now() - began)
        await store.close()
    }

    private static func write(
        _ store: SQLiteRecordStore, _ writer: Int, _ count: Int, isEndless: Bool, until end: MonotonicTime, each: Bool,
        keepGoing: Bool
    ) async throws -> [Duration] {
        let body = [UInt8](repeating: UInt8.random(in: 0...255), count: bodyByteCount)
        var times: [Duration] = []
        var tryCount = 0
        while isEndless || tryCount < count, MonotonicTime.now() < end {
            let start = MonotonicTime.now()
            let key = OrderedKey(.unsigned(UInt64(writer)), .unsigned(UInt64(tryCount % keyCount)))
            tryCount += 1
            do throws(ApusError) {
                let version = try await store.commit(
                    RecordWrite(
                        RecordID(collection, key), .put(body: body, layout: 1, entries: []),
                        fence: RecordFence(epoch: 1, writer: ""), condition: .any))
                let now = MonotonicTime.now()
                times.append(now - start)
                if each { Console.say("\(key) \(version) \(now.nanoseconds)") }
            } catch {
                guard keepGoing else { throw error }
                Console.say("refused \(error.code.number): \(error.message)")
            }
        }
        return times
    }

    /// Makes the same writes in transactions of `batch`, without the record store.
    func sqlite() async throws {
        let began = MonotonicTime.now()
        let times = try await BareSQLite.run(
            path: path, batchCount: max(1, batch), count: count == 0 ? .max : count, seconds: seconds,
            keyCount: Self.keyCount, bodyByteCount: Self.bodyByteCount)
        report("sqlite", times, MonotonicTime.now() - began)
    }

    /// Prints that it holds the lock, and keeps it until it is killed or the time is over.
    func lock() async throws {
        let store = try await openStore()
        try await store.holdLock(for: .seconds(seconds), inTransaction: !bare) { Console.say("locked") }
        await store.close()
    }

    private func report(_ name: String, _ times: [Duration], _ took: Duration) {
        let sorted = times.sorted()
        guard let longest = sorted.last else { return print("No write succeeded.") }
        let rate = Double(times.count) / (Double(took.nanoseconds) / 1e9)
        print(
            "\(name): \(times.count) writes in batches of \(batch), \(Int(rate)) a second; p50 "
                + "\(Self.milliseconds(sorted[sorted.count / 2])), p99 "
                + "\(Self.milliseconds(sorted[(sorted.count - 1) * 99 / 100])), max \(Self.milliseconds(longest))")
    }

    private static func milliseconds(_ time: Duration) -> String { "\(Double(time.nanoseconds / 1000) / 1000) ms" }
}
