import ApusCluster
import ApusCore
import ApusEtcd
import ApusLocal
import ApusStorage
import ArgumentParser
import Foundation

/// `apus-bench stores`: compares calls between the nodes of a cluster on the local ownership store with those on etcd.
///
/// Each change of a client goes to the node of its connection, from there to the owner of the entity, and from the
/// owner to the standby. No change reads or writes the ownership store, so any difference is what the store takes of
/// the machine. Rounds of both stores take turns.
struct BenchStoresCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "stores", abstract: "Compare calls between nodes on the local ownership store and on etcd.",
        discussion: "Requires the package etcd-server.")

    @Option(help: "Change this number of entities a second.") var rate = 2_000
    @Option(help: "Use this number of clients.") var clients = 40
    @Option(help: "Measure for this number of seconds in each round.") var seconds = 10.0
    @Option(help: "Run this number of rounds of each store, and report the medians.") var rounds = 5
    @Option(help: "Set the first port of the cluster.") var basePort = 27_450
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1...100_000).contains(rate), (1...1000).contains(clients) else {
            throw ValidationError("--rate must be 1 to 100000, and --clients 1 to 1000")
        }
        guard seconds > 0, rounds > 0 else { throw ValidationError("numbers must be positive") }
    }

    /// What one round saw.
    private struct Round: Sendable {
        var p50: Double
        var p99: Double
        var failures: Int
        /// The CPU time of all nodes, in microseconds for each change.
        var nodeMicroseconds: Double
        /// The CPU time of etcd's members, in milliseconds for each second.
        var storeMilliseconds: Double
        /// The time of a swap of a map in the store, the median of ``swapCount``.
        var swap: Double
    }

    private static let stores = [("local", false), ("etcd", true)]
    private static let swapCount = 50
    /// The size of the map of three nodes.
    private static let mapByteCount = 60 << 10

    func run() async throws {
        let options = self
        let results = try await BenchScope.run { scope in
            var results: [String: [Round]] = [:]
            for number in 1...options.rounds {
                for (name, hasEtcd) in Self.stores {
                    let round = try await options.play(scope, hasEtcd: hasEtcd)
                    BenchScope.say("round \(number)/\(options.rounds), \(name): \(round)")
                    results[name, default: []].append(round)
                }
            }
            return results
        }
        report(results)
        guard results.values.allSatisfy({ $0.allSatisfy { $0.failures == 0 } }) else { throw ExitCode.failure }
    }

    private func play(_ scope: BenchScope, hasEtcd: Bool) async throws -> Round {
        var options = FailoverStage.Options()
        options.executable = try BenchPrograms.doors()
        options.hasEtcd = hasEtcd
        return try await scope.withStage(basePort: basePort, name: "stores", options: options) { stage in
            let local = stage.local
            let nodes = local.mark.nodes.map { NodeProcess($0.name, in: local.directory) }
            let members = try (local.mark.stores ?? []).map {
                try EtcdMember.process($0, in: local.directory, local.mark)
            }
            let swap = try await swapTime(local)
            let load = try await ChangeLoad(local, clients: clients, rate: rate)
            async let work: Void = load.run()
            // The first changes make the entities.
            try await Task.sleep(for: .seconds(3))
            let start = MonotonicTime.now()
            let (nodesBefore, membersBefore) = (try busy(nodes), try busy(members))
            try await Task.sleep(for: .seconds(seconds))
            let (nodesAfter, membersAfter) = (try busy(nodes), try busy(members))
            let end = MonotonicTime.now()
            load.stop()
            await work
            let times = load.result.changes.filter { $0.due >= start && $0.due < end }.map(\.milliseconds)
            return Round(
                p50: FailoverResult.quantile(times, 0.5) ?? 0, p99: FailoverResult.quantile(times, 0.99) ?? 0,
                failures: load.result.failures.count,
                nodeMicroseconds: (nodesAfter - nodesBefore) * 1_000_000 / Double(max(times.count, 1)),
                storeMilliseconds: (membersAfter - membersBefore) * 1_000_000 / (end - start).milliseconds, swap: swap)
        }
    }

    private func busy(_ processes: [NodeProcess]) throws -> Double {
        try processes.compactMap(\.pid).map { try BenchProcess.busySeconds(of: $0) }.reduce(0, +)
    }

    /// The median time of a swap in the same store, of a map of another cluster, in milliseconds.
    private func swapTime(_ local: LocalCluster) async throws -> Double {
        let store = try await FailoverStage.ownership(of: local, other: ClusterID(unchecked: "bench-swaps"))
        let map = (0..<Self.mapByteCount).map { _ in UInt8.random(in: 0...255) }
        var times: [Double] = []
        for _ in 0..<Self.swapCount {
            let start = MonotonicTime.now()
            _ = try await store.compareAndSwap(expected: try await store.revision(), value: map)
            times.append((MonotonicTime.now() - start).milliseconds)
        }
        await store.close()
        return FailoverResult.quantile(times, 0.5) ?? 0
    }

    private func report(_ results: [String: [Round]]) {
        let measures: [(name: String, key: String, value: (Round) -> Double)] = [
            ("change p50, ms", "change_p50_ms", { $0.p50 }), ("change p99, ms", "change_p99_ms", { $0.p99 }),
            ("changes failed", "changes_failed", { Double($0.failures) }),
            ("CPU of the nodes for each change, µs", "node_us_per_change", { $0.nodeMicroseconds }),
            ("CPU of etcd for each second, ms", "store_ms_per_s", { $0.storeMilliseconds }),
            ("swap of a map, ms", "swap_ms", { $0.swap }),
        ]
        func median(_ store: String, _ value: (Round) -> Double) -> Double {
            let values = (results[store] ?? []).map(value).sorted()
            return values.isEmpty ? 0 : values[values.count / 2]
        }
        func text(_ value: Double) -> String { String(format: "%.3f", value) }
        let rows = measures.map { measure in
            [measure.name] + Self.stores.map { text(median($0.0, measure.value)) }
        }
        print(TextTable.lines([["MEASURE", "LOCAL", "ETCD"]] + rows).joined(separator: "\n"))
        guard json else { return }
        let fields = Self.stores.flatMap { store in
            measures.map { "\"\(store.0)_\($0.key)\":\(text(median(store.0, $0.value)))" }
        }
        print("{\(fields.joined(separator: ","))}")
    }
}
