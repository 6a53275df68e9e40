import ApusCluster
import ApusContract
import ApusCore
import ApusLocal
import ApusTraversal
import ArgumentParser
import Foundation

/// `apus-bench relay-failover`: kills a node that relays for many clients.
/// One client holds a second, warm allocation at the next node, and switches to it when no data comes back any more;
/// its longest silence is reported. Each of the other clients has a ticket (RFC 8016) and presents it to the node with
/// its mirror, or to another node, which has to ask for the mirror. Each client must then reach its peer over its old
/// channel.
struct BenchRelayFailoverCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "relay-failover", abstract: "Kill a node that relays, and report how its clients recover.")

    @Option(help: "Use this number of allocations at the killed node.") var allocations = 1_000
    @Option(help: "Run this number of rounds, each with a new cluster.") var repeats = 3
    @Option(help: "Set the first port of the cluster.") var basePort = 27_900
    @Flag(help: "Drain the node instead of killing it, and follow its redirects.") var drain = false
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// The allocations of one user; the default limit is 64 per node.
    private static let allocationsPerUser = 32

    func validate() throws {
        guard (1...10_000).contains(allocations) else { throw ValidationError("--allocations must be 1 to 10000") }
        guard (1...100).contains(repeats) else { throw ValidationError("--repeats must be 1 to 100") }
    }

    func run() async throws {
        var result = RelayFailoverResult(allocations: allocations)
        let apus = try BenchPrograms.apus()
        for round in 1...repeats {
            let directory = "\(NSTemporaryDirectory())/apus-relay-failover-\(getpid())"
            let stage = try await FailoverStage(directory: directory, executable: apus, basePort: basePort)
            do {
                try await play(on: stage, into: &result)
            } catch {
                await stage.down()
                throw error
            }
            await stage.down()
            try? FileManager.default.removeItem(atPath: directory)
            FileHandle.standardError.write(Data("round \(round)/\(repeats): \(result.line)\n".utf8))
        }
        print(result.table)
        if json { print(try result.json()) }
        guard result.isClean else { throw ExitCode.failure }
    }

    private func play(on stage: FailoverStage, into result: inout RelayFailoverResult) async throws {
        try await stage.heal()
        let endpoints = stage.local.mark.nodes.compactMap { $0.relay.flatMap { HostPort($0) } }
        guard endpoints.count == 3 else { throw ApusError(.internalFailure, "not every node relays") }
        let access = try RelayAccess(stage.local)
        let echo = try EchoPeer()
        defer { echo.stop() }
        try await wait("the first node's relay has a standby") {
            await report(stage, 0)?.standby == stage.local.mark.nodes[1].name
        }
        let clients = try (0..<allocations).map { number in
            let issued = access.issue(user: "bench-\(number / Self.allocationsPerUser)", lifetime: 3600)
            return try MovableClient(endpoints[0], issued, peer: echo.address)
        }
        let warm = try WarmClient(
            endpoints[0], endpoints[1], access.issue(user: "warm", lifetime: 3600), peer: echo.address)
        defer { warm.stop() }
        try await wait("the mirrors are at the standby") { await report(stage, 1)?.mirrors == allocations }
        try await Task.sleep(for: .milliseconds(500))
        let killedAt = MonotonicTime.now()
        let first = stage.local.mark.nodes[0].name
        if drain {
            try FailoverStage.run(
                try BenchPrograms.apus(), ["cluster", "drain", first, "--stay", "--dir", stage.local.directory.path])
        } else {
            try stage.signal(NodeName(unchecked: first), SIGKILL)
        }
        for (number, client) in clients.enumerated() {
            // Every fourth client connects to a node without its mirror.
            let isAsked = number % 4 == 3
            let start = MonotonicTime.now()
            do throws(ApusError) {
                if drain { try client.followAlternate() } else { try client.goOn(at: endpoints[isAsked ? 2 : 1]) }
                result.revived(after: MonotonicTime.now() - start, isAsked: isAsked)
            } catch {
                result.failed(error)
            }
        }
        result.allRevived(after: MonotonicTime.now() - killedAt)
        for client in clients where try !client.reachesPeer() { result.unreachable += 1 }
        try await Task.sleep(for: .milliseconds(200))
        result.silent(warm.longestSilence)
        if drain {
            try await wait("the drained node has but the warm client's allocation") {
                await report(stage, 0)?.allocations == 1
            }
        }
    }

    private func report(_ stage: FailoverStage, _ index: Int) async -> NodeStatus.Relay? {
        await NodeStanding.gather(stage.local.mark.nodes[index], in: stage.local.directory).status.relay
    }

    private func wait(_ what: String, until isSo: () async -> Bool) async throws {
        let deadline = MonotonicTime.now() + .seconds(20)
        while await !isSo() {
            guard MonotonicTime.now() < deadline else { throw ApusError(.deadlineExceeded, "not seen: \(what)") }
            try await Task.sleep(for: .milliseconds(50))
        }
    }
}

/// The results of the rounds.
struct RelayFailoverResult {
    let allocations: Int
    private var rounds = 0
    private var silences: [Double] = []
    private var held: [Double] = []
    private var asked: [Double] = []
    private var totals: [Double] = []
    private var failures: [String] = []
    /// The number of clients whose allocation was taken over but does not reach its peer.
    var unreachable = 0

    init(allocations: Int) { self.allocations = allocations }

    var isClean: Bool { failures.isEmpty && unreachable == 0 }

    mutating func revived(after span: Duration, isAsked: Bool) {
        if isAsked { asked.append(span.milliseconds) } else { held.append(span.milliseconds) }
    }

    mutating func failed(_ error: ApusError) { failures.append("\(error)") }

    mutating func allRevived(after span: Duration) { totals.append(span.milliseconds) }

    mutating func silent(_ span: Duration) {
        rounds += 1
        silences.append(span.milliseconds)
    }

    var line: String {
        "silence of the warm client \(Self.text(silences, 1)) ms at most; went on at the standby in "
            + "\(Self.text(held, 0.5)) ms (p99 \(Self.text(held, 0.99))), elsewhere in \(Self.text(asked, 0.5)) ms "
            + "(p99 \(Self.text(asked, 0.99))); \(failures.count) failed, \(unreachable) unreachable"
            + (failures.first.map { ": \($0)" } ?? "")
    }

    var table: String {
        let head = ["CLIENT", "COUNT", "P50 ms", "P99 ms", "MAX ms", "FAILED"]
        func row(_ name: String, _ values: [Double], _ failed: Int) -> [String] {
            [
                name, "\(values.count)", Self.text(values, 0.5), Self.text(values, 0.99), Self.text(values, 1),
                "\(failed)",
            ]
        }
        return TextTable.lines([
            head, row("second allocation: longest silence", silences, 0),
            row("ticket, at the standby: Refresh", held, failures.count + unreachable),
            row("ticket, at another node: Refresh", asked, 0),
            row("all \(allocations) tickets, one after another, from the kill", totals, 0),
        ]).joined(separator: "\n")
    }

    func json() throws -> String {
        var values: [String: Double] = [
            "rounds": Double(rounds), "allocations": Double(allocations), "failed": Double(failures.count),
            "unreachable": Double(unreachable), "revived": Double(held.count + asked.count),
        ]
        for (name, list) in [("warm_silence", silences), ("standby", held), ("elsewhere", asked), ("all", totals)] {
            values["\(name)_p50_ms"] = FailoverResult.quantile(list, 0.5)
            values["\(name)_p99_ms"] = FailoverResult.quantile(list, 0.99)
            values["\(name)_max_ms"] = FailoverResult.quantile(list, 1)
        }
        return String(
            decoding: try JSONSerialization.data(withJSONObject: values, options: [.sortedKeys]), as: UTF8.self)
    }

    private static func text(_ values: [Double], _ share: Double) -> String {
        FailoverResult.quantile(values, share).map { String(format: "%.1f", $0) } ?? "-"
    }
}
