import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus-bench cluster-faults`: faults of nodes, of the network between them, of etcd and of the disk, under cameras,
/// viewers and clients that change entities. The histories of these clients are checked for linearizability.
struct BenchClusterFaultsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cluster-faults",
        abstract: "Cause faults of nodes, networks, etcd and disks, and check every client's history.",
        discussion: """
            Requires root, and the packages iproute2, nftables and etcd-server. Each node has a network of its own. The
            clients reach all nodes in every fault.
            """)

    @Option(help: "Use this number of nodes, 3 to 9.") var nodes = 3
    @Option(help: "Run this number of episodes; the faults take turns.") var episodes = 100
    @Option(help: "Cause these faults, separated by commas: \(allFaults.joined(separator: ", ")).")
    var faults = allFaults.joined(separator: ",")
    @Option(help: "Use this number of cameras.") var cameras = 8
    @Option(help: "Use this number of viewers.") var viewers = 40
    @Option(help: "Use this number of registers in each episode, with two clients each.") var registers = 6
    @Option(help: "Write histories with violations to this folder.") var keep = NSTemporaryDirectory()
    @Flag(help: "Print one JSON object as the last line.") var json = false

    private static let allFaults = ClusterFault.allCases.map(\.rawValue)

    func validate() throws {
        guard (3...9).contains(nodes) else { throw ValidationError("--nodes must be 3 to 9") }
        guard episodes > 0, cameras > 0, viewers > 0, registers > 0 else {
            throw ValidationError("numbers must be positive")
        }
        _ = try chosenFaults()
    }

    private func chosenFaults() throws -> [ClusterFault] {
        try faults.split(separator: ",").map { text in
            guard let fault = ClusterFault(rawValue: String(text)) else {
                throw ValidationError("'\(text)' is not a fault.")
            }
            return fault
        }.filter { $0.nodesMin <= nodes }
    }

    func run() async throws {
        let executable = try BenchPrograms.registers()
        let options = ClusterFaultRun.Options(
            nodes: nodes, episodes: episodes, faults: try chosenFaults(), cameras: cameras, viewers: viewers,
            registers: registers, keep: keep)
        let results = try await BenchScope.run { scope in
            let disk = try Self.makeDisk(scope)
            var stageOptions = FailoverStage.Options()
            stageOptions.nodes = options.nodes
            (stageOptions.isIsolated, stageOptions.hasEtcd) = (true, true)
            (stageOptions.folder, stageOptions.executable) = (disk, executable)
            return try await scope.withStage(basePort: 7400, name: "cluster-faults", options: stageOptions) { stage in
                let watch = try await MapWatch(stage.local)
                let following = Task { await watch.run() }
                defer { following.cancel() }
                let run = try await ClusterFaultRun(
                    options: options, place: ClusterFaultStage(stage: stage, executable: executable), watch: watch)
                return try await run.run()
            }
        }
        print(ClusterFaultResult.table(results))
        for result in results {
            for miss in result.misses { print("MISSED  \(result.fault.rawValue): \(miss)") }
        }
        if json { print(try ClusterFaultResult.json(results, nodes: nodes)) }
        if results.contains(where: { !$0.misses.isEmpty }) { throw ExitCode.failure }
    }

    /// A file system in memory for the cluster's directory, so that it can be full. The members of etcd write some
    /// 100 MB a minute to it, because every episode changes the map many times.
    private static func makeDisk(_ scope: BenchScope) throws -> String {
        let path = "\(NSTemporaryDirectory())/apus-bench-\(getpid())-disk"
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        try FailoverStage.run("/usr/bin/env", ["mount", "-t", "tmpfs", "-o", "size=4g,mode=700", "apus-bench", path])
        scope.onEnd {
            try? FailoverStage.run("/usr/bin/env", ["umount", path])
            try? FileManager.default.removeItem(atPath: path)
        }
        return path
    }
}
