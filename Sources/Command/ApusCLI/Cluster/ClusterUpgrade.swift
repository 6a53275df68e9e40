import ApusContract
import ApusCore
import ApusLocal
import ApusNodeConfiguration
import ArgumentParser
import Foundation

/// `apus cluster upgrade`: restarts the nodes one after the other, with another binary.
struct ClusterUpgrade: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "upgrade", abstract: "Restart the nodes one after the other with another binary.",
        discussion: """
            Each node is drained, stopped, started with the binary, and verified before the next one is touched: it is \
            a member again, no node reports a fault, its shards are back, and their changes are confirmed by standbys. \
            If a check fails, the upgrade stops there with an error, and the remaining nodes are left as they are. \
            Without --binary, the nodes get the program that runs this command.
            """)
    @OptionGroup var directory: DirectoryOption
    @Option(help: "Start the nodes with this binary.")
    var binary: String?
    @Option(help: "Wait for at most this many seconds for each step of a node.")
    var timeout = 120
    @Flag(help: "Check the cluster and the binary, say what would be done, and change nothing.")
    var dryRun = false
    @OptionGroup var output: OutputOptions

    func validate() throws {
        guard timeout > 0 else { throw ValidationError("--timeout must be at least 1") }
    }

    func run() async throws {
        let local = try directory.cluster()
        try await local.directory.locked {
            let path = binary.map { URL(fileURLWithPath: $0).standardizedFileURL.path } ?? NodeProcess.executable
            let upgrade = ClusterUpgradeRun(
                cluster: local, program: path, build: try Self.build(of: path), timeout: .seconds(timeout),
                progress: output.progress)
            let report = try await dryRun ? upgrade.plan() : upgrade.run()
            let table = TextTable.lines(
                [["NODE", "BEFORE", "AFTER", "RESULT"]]
                    + report.nodes.map { [$0.node, $0.before, $0.after, $0.result] })
            try output.show(report, table)
            if let failure = report.failure { throw ApusError(.unavailable, failure) }
        }
    }

    /// The build of a program that can be started.
    private static func build(of path: String) throws(ApusError) -> String {
        guard FileManager.default.isExecutableFile(atPath: path) else {
            throw ApusError(.configurationInvalid, "\(path) is not a program that this user can start")
        }
        return try ProgramBuild.of(path)
    }
}

/// The course and result of an upgrade.
struct UpgradeReport: Encodable {
    struct Node: Encodable {
        var node: String
        /// The build that ran before, and the one that runs now; `-` if the node did not report it.
        var before: String
        var after: String
        /// `upgraded`, `planned`, `failed` or `untouched`.
        var result: String
    }
    var nodes: [Node]
    /// The check that failed, and why; nil if all succeeded.
    var failure: String?
}

/// One upgrade of a local cluster. Nothing of it is kept: an upgrade that stopped is continued by another one, which
/// restarts all nodes again.
struct ClusterUpgradeRun: Sendable {
    let cluster: LocalCluster
    let program: String
    let build: String
    /// Of each step.
    let timeout: Duration
    let progress: @Sendable (String) -> Void

    private static let pollInterval = Duration.milliseconds(100)
    /// The time that a drained node has to end by itself.
    private static let stopGrace = Duration.seconds(20)

    /// The checks before an upgrade, without the upgrade.
    func plan() async throws -> UpgradeReport {
        // What comes with a start, such as moves, ends by itself.
        try? await wait("the cluster is well") {
            let reports = await NodeStanding.gather(cluster)
            return Self.fault(reports) == nil ? try obstacle(reports) : nil
        }
        let reports = await NodeStanding.gather(cluster)
        return UpgradeReport(
            nodes: reports.map {
                .init(node: $0.status.name, before: Self.build(of: $0), after: build, result: "planned")
            }, failure: try obstacle(reports).map { "the cluster is not well: \($0)" })
    }

    func run() async throws -> UpgradeReport {
        var report = try await plan()
        for index in report.nodes.indices {
            (report.nodes[index].after, report.nodes[index].result) = (report.nodes[index].before, "untouched")
        }
        guard report.failure == nil else { return report }
        for (index, node) in cluster.mark.nodes.enumerated() {
            do {
                try await upgrade(node)
                (report.nodes[index].after, report.nodes[index].result) = (build, "upgraded")
            } catch let error as ApusError {
                let found = await NodeStanding.gather(node, in: cluster.directory)
                (report.nodes[index].after, report.nodes[index].result) = (Self.build(of: found), "failed")
                report.failure = "\(error.message); the nodes after \(node.name) were not touched"
                return report
            }
        }
        return report
    }

    // MARK: One node

    private func upgrade(_ node: StateDirectory.Node) async throws {
        let process = NodeProcess(node.name, in: cluster.directory)
        let before = await NodeStanding.gather(node, in: cluster.directory)
        progress("\(node.name): draining")
        try await drain(node)
        progress("\(node.name): restarting with \(build)")
        let grace = Self.stopGrace
        if try await !process.stop(grace: grace) {
            progress("\(node.name): it did not end within \(grace.components.seconds) s and was killed")
        }
        try await LocalPorts.requireFree(node, in: cluster.mark.network?.namespace(of: node.name))
        try process.start(program: program)
        try await wait("\(node.name) is a member again") {
            let report = await NodeStanding.gather(node, in: cluster.directory)
            guard report.process != .stopped else {
                let tail = process.logTail(lines: 15).joined(separator: "\n    ")
                throw ApusError(.internalFailure, "\(node.name) ended; the end of its log:\n    \(tail)")
            }
            guard report.status.incarnation > before.status.incarnation else { return "it does not answer" }
            guard report.status.state == "up" else { return "it is \(report.status.state)" }
            let found = Self.build(of: report)
            // A program from before builds were reported has none.
            return found == build || found == "-" ? nil : "it runs the build \(found), not \(build)"
        }
        progress("\(node.name): waiting for its shards")
        try await wait("the cluster is well with \(node.name)") {
            try obstacle(await NodeStanding.gather(cluster))
        }
        try remember(node)
        progress("\(node.name): upgraded")
    }

    /// The node is started with this program from now on.
    private func remember(_ node: StateDirectory.Node) throws(ApusError) {
        guard var mark = try cluster.directory.mark(),
            let index = mark.nodes.firstIndex(where: { $0.name == node.name })
        else { return }
        mark.nodes[index].program = program
        try cluster.directory.write(mark)
    }

    private func drain(_ node: StateDirectory.Node) async throws {
        try await cluster.beginDraining(node)
        try await wait("\(node.name) is drained") {
            let report = await NodeStanding.gather(node, in: cluster.directory)
            guard report.answered else { return "it does not answer" }
            guard report.status.shards.drained ?? (report.status.shards.owned == 0) else {
                return "it still holds \(report.status.shards.owned) shards"
            }
            return nil
        }
    }

    // MARK: Checks

    /// Waits until a check succeeds.
    ///
    /// - Parameter obstacle: The reason why it does not, now; nil if it does.
    /// - Throws: 10005 with the check and the last reason.
    private func wait(_ check: String, until obstacle: () async throws -> String?) async throws {
        let deadline = ContinuousClock.now + timeout
        while let reason = try await obstacle() {
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "the check \"\(check)\" failed: \(reason)")
            }
            try await Task.sleep(for: Self.pollInterval)
        }
    }

    /// The reason why a node must not be taken out of the cluster now; nil if one may be.
    private func obstacle(_ reports: [NodeStanding]) throws(ApusError) -> String? {
        guard reports.count > 1 else { return "an upgrade without interruption needs at least two nodes" }
        let configured = try ClusterReadiness(cluster: cluster).weights()
        // `weight` may have changed those of the configuration.
        let weights = zip(reports, configured).map { $0.status.weight.map { Int($0) } ?? $1 }
        return Self.obstacle(reports, weights: weights)
    }

    /// A node that does not answer, or that is unhealthy; nil if there is none.
    private static func fault(_ reports: [NodeStanding]) -> String? {
        for report in reports {
            guard report.answered else { return "\(report.status.name) is \(report.status.state)" }
            if let condition = (report.status.conditions ?? []).first(where: \.unhealthy) {
                return "\(report.status.name) reports \(condition.type): \(condition.message)"
            }
        }
        return nil
    }

    private static func obstacle(_ reports: [NodeStanding], weights: [Int]) -> String? {
        if let fault = fault(reports) { return fault }
        for report in reports {
            let (status, name) = (report.status, report.status.name)
            guard status.members.count == reports.count else {
                return "\(name) has \(status.members.count) members of \(reports.count) in its map"
            }
            if let alone = status.shards.alone, alone > 0 {
                return "\(name) acknowledges changes of \(alone) shards without a standby"
            }
            if let channel = status.channels.first(where: { $0.role == "primary" && $0.fed && !$0.protected }) {
                return "no standby confirms the frames of \(channel.channel) at \(name)"
            }
        }
        if let obstacle = ClusterReadiness.obstacle(reports, weights: weights) { return obstacle }
        let misplaced = reports.compactMap(\.status.shards.misplaced).max() ?? 0
        return misplaced > 0 ? "\(misplaced) shards are not at their place yet" : nil
    }

    private static func build(of report: NodeStanding) -> String { report.status.program?.build ?? "-" }
}
