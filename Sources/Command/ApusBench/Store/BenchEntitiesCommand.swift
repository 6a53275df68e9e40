import ApusCluster
import ApusCore
import ApusStorage
import ApusWire
import ArgumentParser
import Foundation

/// Measures the cost of an entity's durability (D15, D16, D18): replicated changes compared with plain calls, recorded
/// changes compared with bare SQLite, and the memory of a million entities and their effect on a map change. Each ratio
/// comes from one run.
struct BenchEntitiesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "entities", abstract: "Measure replicated and recorded changes, and a million entities.")

    enum Part: String, CaseIterable, ExpressibleByArgument { case replicated, recorded, mass }

    @Option(parsing: .upToNextOption, help: "Measure these parts.") var parts = Part.allCases
    @Option(help: "Run this number of rounds and report the medians.") var rounds = 3
    @Option(help: "Measure for this number of seconds.") var seconds = 3.0
    @Option(help: "Use this number of entities for the memory and the map change.") var activations = 1_000_000
    @Option(help: "Also record in PostgreSQL at this libpq URL.") var postgres: String?
    @Option(help: "Set the port of the calling node.") var port = 26_590
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func run() async throws {
        let directory = FileManager.default.temporaryDirectory.appendingPathComponent("apus-bench-\(UUID().uuidString)")
            .path
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        try BenchNode.mint(into: directory)
        var values: [(key: String, value: Double)] = []
        if parts.contains(.replicated) { values += try replicated(directory) }
        if parts.contains(.recorded) { values += try await recorded(directory) }
        if parts.contains(.mass) { values += try await mass(directory) }
        for (key, value) in values { print("\(key): \(Self.fixed(value))") }
        if json { print("{\(values.map { "\"\($0.key)\":\(Self.fixed($0.value))" }.joined(separator: ","))}") }
    }

    private static func fixed(_ value: Double) -> String { String(format: "%.3f", value) }

    private static func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

    private func say(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }

    // MARK: Replicated

    /// Two nodes over mutual TLS: one owns the entities, the other is the caller and the standby.
    private func replicated(_ directory: String) throws -> [(key: String, value: Double)] {
        let standby = "127.0.0.1:\(port)"
        let pair = try ApusPair(directory: directory, standby: standby)
        defer { pair.stop() }
        var results: [String: [BenchCallResult]] = [:]
        for round in 1...max(1, rounds) {
            for callers in [1, 1024] {
                for kind in ["plain", "replicated"] {
                    say("round \(round), \(kind), \(callers) callers")
                    let result = try pair.measure(
                        callers: callers, seconds: seconds, onPool: false, isReplicated: kind == "replicated")
                    results["\(kind) \(callers)", default: []].append(result)
                }
            }
        }
        func median(_ name: String, _ value: (BenchCallResult) -> Double) -> Double {
            Self.median((results[name] ?? []).map(value))
        }
        let plain = median("plain 1") { $0.p50Microseconds }
        let change = median("replicated 1") { $0.p50Microseconds }
        let plainRate = median("plain 1024") { $0.callsPerSecond }
        let changeRate = median("replicated 1024") { $0.callsPerSecond }
        return [
            ("plain_p50_us", plain), ("replicated_p50_us", change), ("replicated_p50_ratio", change / plain),
            ("plain_per_s_1024", plainRate), ("replicated_per_s_1024", changeRate),
            ("replicated_rate_ratio", changeRate / plainRate),
        ]
    }

    // MARK: Recorded

    private static let writers = 256

    /// Entities of one node that are changed by as many callers, compared with SQLite transactions of as many rows.
    private func recorded(_ directory: String) async throws -> [(key: String, value: Double)] {
        let store = try await SQLiteRecordStore(
            path: "\(directory)/records.sqlite", cluster: BenchNode.cluster, catalogue: Self.catalogue)
        let node = BenchNode("b", directory: directory, records: store)
        var ours: [Double] = []
        var bare: [Double] = []
        var byteCount = 128
        for round in 1...max(1, rounds) {
            say("round \(round), recorded, \(Self.writers) callers")
            ours.append(try await change(node))
            let address = EntityAddress(kind: .recordedProbe, key: "bench-0")
            let key = OrderedKey(.unsigned(UInt64(address.shard.rawValue)), .text(address.key))
            byteCount = try await store.records(ProbeRecords.collection.name, [key])[0]?.body.count ?? byteCount
            let start = MonotonicTime.now()
            let times = try await BareSQLite.run(
                path: "\(directory)/bare.sqlite", batchCount: Self.writers, count: .max, seconds: seconds, keyCount: 1,
                bodyByteCount: byteCount)
            bare.append(Double(times.count) / ((MonotonicTime.now() - start).milliseconds / 1000))
        }
        await store.close()
        let (rate, bareRate) = (Self.median(ours), Self.median(bare))
        var values = [
            ("recorded_per_s", rate), ("sqlite_per_s", bareRate), ("recorded_rate_ratio", rate / bareRate),
        ]
        if let postgres {
            let store = try await PostgresRecordStore(
                url: postgres, cluster: BenchNode.cluster, catalogue: Self.catalogue)
            let node = BenchNode("b", directory: directory, records: store)
            say("recorded in PostgreSQL")
            values.append(("recorded_per_s_postgresql", try await change(node)))
            await store.close()
        }
        return values
    }

    private static let catalogue = RecordCatalogue(
        merging: [ClusterRecords.catalogue, RecordCatalogue([ProbeRecords.collection])])

    /// The number of changes per second.
    private func change(_ node: BenchNode) async throws -> Double {
        let end = MonotonicTime.now() + .milliseconds(Int64(seconds * 1000))
        let start = MonotonicTime.now()
        let count = try await withThrowingTaskGroup(of: Int.self) { group in
            for caller in 0..<Self.writers {
                let ref = node.registry.ref(
                    EntityCell<ProbeReported>.self, EntityAddress(kind: .recordedProbe, key: "bench-\(caller)"))
                group.addTask {
                    var count = 0
                    while MonotonicTime.now() < end {
                        _ = try await ref.ask(ProbeEcho(), timeout: .seconds(30))
                        count += 1
                    }
                    return count
                }
            }
            return try await group.reduce(0, +)
        }
        return Double(count) / ((MonotonicTime.now() - start).milliseconds / 1000)
    }

    // MARK: Many

    /// The memory of entities with almost no state, and the longest call while a map change removes a third of them.
    private func mass(_ directory: String) async throws -> [(key: String, value: Double)] {
        var configuration = EntityRegistry.Configuration()
        configuration.entityCountMax = activations + 1
        let node = BenchNode("b", directory: directory, standby: "none", configuration: configuration)
        say("\(activations) entities")
        let before = try BenchProcess.residentByteCount(of: getpid())
        for number in 0..<activations {
            let address = EntityAddress(kind: .unkeptProbe, key: "\(number)")
            _ = try await node.registry.ref(EntityCell<ProbeReported>.self, address).ask(ProbeEcho())
        }
        let bytes = Double(try BenchProcess.residentByteCount(of: getpid()) - before) / Double(activations)
        let quiet = try await longestCall(node) { try? await Task.sleep(for: .seconds(1)) }
        var map = BenchNode.map(standby: nil)
        map.revision = 2
        for index in stride(from: 0, to: map.shards.count, by: 3) {
            map.shards[index] = ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: 2)
        }
        let newer = map
        let stall = try await longestCall(node) {
            await withCheckedContinuation { continuation in
                Thread.detachNewThread {
                    node.view.update(newer)
                    continuation.resume()
                }
            }
            try? await Task.sleep(for: .seconds(1))
        }
        return [("activation_bytes", bytes), ("quiet_call_max_ms", quiet), ("map_change_stall_ms", stall)]
    }

    /// The longest call of one caller to an entity that stays, in milliseconds.
    private func longestCall(_ node: BenchNode, while body: () async -> Void) async throws -> Double {
        let stays = (0...).lazy.map { EntityAddress(kind: .unkeptProbe, key: "\($0)") }
            .first { $0.shard.rawValue % 3 == 1 }
        let ref = node.registry.ref(
            EntityCell<ProbeReported>.self, stays ?? EntityAddress(kind: .unkeptProbe, key: "0"))
        let calls = Task {
            var longest = Duration.zero
            while !Task.isCancelled {
                let start = MonotonicTime.now()
                _ = try await ref.ask(ProbeEcho())
                longest = max(longest, MonotonicTime.now() - start)
                await Task.yield()
            }
            return longest
        }
        await body()
        calls.cancel()
        return try await calls.value.milliseconds
    }
}
