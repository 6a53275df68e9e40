import ApusCluster
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Faults of nodes: crashes, a machine without spare CPU, a process without descriptors.
extension FaultRounds {
    // MARK: Crashes

    var crashRows: [(FaultRow, Round)] {
        [
            ("SIGABRT", SIGABRT, "abort"), ("SIGSEGV", SIGSEGV, "bad access"), ("SIGBUS", SIGBUS, "bus error"),
            ("SIGILL", SIGILL, "trap, as fatalError raises it"),
        ].map { name, signal, what in
            let row = FaultRow(
                key: "crash-\(name.lowercased())", says: "\(name) at the primary (\(what))", bound: .kill)
            return (row, { number, result in try await crash(signal, number, into: &result) })
        }
    }

    private func crash(_ signal: CInt, _ number: Int, into result: inout FaultResult) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let victim = names[number % names.count]
            let others = names.filter { $0 != victim }
            let cast = try await enter(on: stage, primary: victim, cameras: [victim], watchers: others)
            defer { cast.leave() }
            let crashedAt = MonotonicTime.now()
            try stage.signal(victim, signal)
            try await Task.sleep(for: .seconds(3))
            result.gaps(of: cast, from: crashedAt, to: .now())
            try await finish(cast, into: &result)
            // A process that is still writing its backtrace is killed.
            NodeProcess(victim.rawValue, in: stage.local.directory).killAll()
        }
    }

    // MARK: A machine without CPU

    var cpuRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "cpu", says: "kill -9 the primary, \(options.hogs) CPU hogs",
            bound: FaultBound(gapMax: 1_500, seenMax: 1_000))
        return (row, { number, result in try await withoutCPU(number, into: &result) })
    }

    private func withoutCPU(_ number: Int, into result: inout FaultResult) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let victim = names[number % names.count]
            let others = names.filter { $0 != victim }
            let cast = try await enter(on: stage, primary: victim, cameras: [victim], watchers: others)
            defer { cast.leave() }
            let watch = try await MemberWatch(stage.local)
            async let _: Void = watch.run()
            let hogs = try BenchHogs(options.hogs, scope: scope)
            defer { hogs.stop() }
            // Long enough for a starved process to miss its deadlines.
            try await Task.sleep(for: .seconds(5))
            guard let id = await watch.id(of: victim) else { throw ApusError(.storageFailed, "no map") }
            try await watch.willEnd(victim)
            let killedAt = MonotonicTime.now()
            try stage.signal(victim, SIGKILL)
            result.seen(await watch.timeUntilDead(id, since: killedAt, timeout: .seconds(10)))
            try await Task.sleep(for: .seconds(4))
            result.gaps(of: cast, from: killedAt, to: .now())
            result.falseDeaths(watch.falseDeaths.count)
            hogs.stop()
            try await finish(cast, into: &result)
        }
    }

    // MARK: No descriptors

    /// The limit of open files of each node in this kind.
    private static let openFilesMax = 512

    var descriptorRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "descriptors", says: "connects up to the limit of \(Self.openFilesMax) files",
            bound: FaultBound(
                gapMax: 250, figures: ["healthz max ms": 1_000, "cpu added percent": 50, "log lines": 100]))
        return (row, { number, result in try await descriptors(number, into: &result) })
    }

    private func descriptors(_ number: Int, into result: inout FaultResult) async throws {
        var stageOptions = FailoverStage.Options()
        stageOptions.openFilesMax = Self.openFilesMax
        try await withStage(stageOptions) { stage in
            let node = stage.local.mark.nodes[number % stage.local.mark.nodes.count]
            let name = NodeName(unchecked: node.name)
            let cast = try await enter(on: stage, primary: name, cameras: [name], watchers: [name])
            defer { cast.leave() }
            guard let pid = NodeProcess(node.name, in: stage.local.directory).pid else {
                throw ApusError(.internalFailure, "the node \(name) is not running")
            }
            let logBefore = lineCount(stage.local.directory.logFile(node.name))
            let idle = try await cpuShare(of: pid, over: .seconds(2))
            let flood = try ConnectFlood(
                try stage.local.endpoint(of: node.name), count: Self.openFilesMax + 200)
            let start = MonotonicTime.now()
            async let latency = healthLatency(node, for: .seconds(8))
            let busy = try await cpuShare(of: pid, over: .seconds(8))
            result.figure("healthz max ms", await latency)
            result.figure("cpu added percent", (busy - idle) * 100)
            result.gaps(of: cast, from: start, to: .now())
            result.figure("log lines", Double(lineCount(stage.local.directory.logFile(node.name)) - logBefore))
            await flood.stop()
            try await finish(cast, into: &result)
        }
    }

    private func lineCount(_ path: String) -> Int {
        (FileManager.default.contents(atPath: path) ?? Data()).count { $0 == UInt8(ascii: "\n") }
    }

    /// The number of cores that a process uses over a time.
    private func cpuShare(of pid: pid_t, over span: Duration) async throws -> Double {
        let before = ProcessUse.cpu(pid) ?? .zero
        try await Task.sleep(for: span)
        return ((ProcessUse.cpu(pid) ?? before) - before) / span
    }

    /// The longest response time of `/healthz`, in milliseconds. A time-out counts as 2,000.
    private func healthLatency(_ node: StateDirectory.Node, for span: Duration) async -> Double {
        let end = MonotonicTime.now() + span
        var longest = 0.0
        while MonotonicTime.now() < end {
            let start = MonotonicTime.now()
            let answer = await HealthAnswer.ask(node)
            longest = max(longest, answer == nil ? 2_000 : (MonotonicTime.now() - start).milliseconds)
            try? await Task.sleep(for: .milliseconds(100))
        }
        return longest
    }
}
