import ApusCore
import ApusStorage
import ArgumentParser
import Foundation

/// `apus bench store`: what one durable change costs here, in the ownership store or in the records.
///
/// Several of them on one path compete as nodes do.
struct BenchStoreCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "store", abstract: "Write to an ownership store or to records, and report how long it takes.")

    enum Kind: String, CaseIterable, ExpressibleByArgument {
        case ownership, records
    }

    /// As large as a cluster's map.
    private static let valueByteCount = 36 << 10

    @Argument(help: "ownership: swaps of a directory of revisions; records: commits of a SQLite file.") var kind: Kind
    @Argument(help: "The directory or the file; made where it is missing.") var path: String
    @Option(help: "Writes; 0: until --seconds are over.") var count = 200
    @Option(help: "The longest time to run, in seconds.") var seconds = 60.0
    @Flag(help: "Print each write as it is reported: its revision, and the monotonic clock in nanoseconds.")
    var each = false

    func run() async throws {
        let cluster = ClusterID(unchecked: "bench")
        let began = MonotonicTime.now()
        let end = began + .seconds(seconds)
        var times: [Duration] = []
        var lostCount = 0
        let write: (Int) async throws -> UInt64?
        switch kind {
        case .ownership:
            let store = try await LocalOwnershipStore(path: path, cluster: cluster)
            let value = [UInt8](repeating: UInt8.random(in: 0...255), count: Self.valueByteCount)
            write = { _ in
                let revision = try await store.revision()
                do {
                    return try await store.compareAndSwap(expected: revision, value: value)
                } catch let error as ApusError where error.code == .storageFailed && count == 0 {
                    // Uncertain: not reported, and the store is read again.
                    return nil
                }
            }
        case .records:
            let store = try await SQLiteRecordStore(path: path, cluster: cluster)
            write = { number in
                try await store.save(DeviceRecord(device: DeviceID(unchecked: "camera-\(number % 100)"), epoch: 1))
                return UInt64(number)
            }
        }
        while count == 0 || times.count < count, MonotonicTime.now() < end {
            let start = MonotonicTime.now()
            guard let revision = try await write(times.count) else {
                lostCount += 1
                continue
            }
            let now = MonotonicTime.now()
            times.append(now - start)
            if each { Console.say("\(revision) \(now.nanoseconds)") }
        }
        times.sort()
        guard let longest = times.last else { return print("No write was made.") }
        func at(_ share: Double) -> String { Self.text(times[Int(Double(times.count - 1) * share)]) }
        print(
            "\(kind.rawValue): \(times.count) writes, \(lostCount) lost to others; p50 \(at(0.5)), p99 \(at(0.99)), "
                + "max \(Self.text(longest))")
    }

    private static func text(_ time: Duration) -> String { "\(Double(time.nanoseconds / 1000) / 1000) ms" }
}
