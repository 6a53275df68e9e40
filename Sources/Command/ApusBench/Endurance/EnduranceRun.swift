import ApusCluster
import ApusContract
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The two long runs of `apus-bench endurance`.
struct EnduranceRun: Sendable {
    struct Options: Sendable {
        var span: Duration
        var hogs: Int
        var lossPercent: Int
        var kills: Int
        var channels: Int
        var viewers: Int
        var basePort: Int
    }

    let options: Options
    let scope: BenchScope
    let report: EnduranceReport

    // MARK: Quiet

    /// Runs a cluster with two cameras, next to two clusters under load.
    func quiet() async throws {
        try await scope.withStage(basePort: options.basePort, name: "quiet") { stage in
            try await withLoad("load-1", basePort: options.basePort + 100) {
                try await withLoad("load-2", basePort: options.basePort + 200) { try await quiet(on: stage) }
            }
        }
    }

    /// Runs the body next to a cluster with cameras and viewers.
    private func withLoad(_ name: String, basePort: Int, _ body: () async throws -> Void) async throws {
        var stageOptions = FailoverStage.Options()
        stageOptions.cluster = name
        try await scope.withStage(basePort: basePort, name: name, options: stageOptions) { stage in
            try await stage.heal()
            let cast = try await enter(on: stage, channels: options.channels, viewers: options.viewers)
            defer { cast.leave() }
            let watch = try await MemberWatch(stage.local)
            async let _: Void = watch.run()
            try await body()
            for node in watch.falseDeaths { report.falseDeath("\(name): \(node)") }
        }
    }

    private func quiet(on stage: FailoverStage) async throws {
        try await stage.heal()
        let cast = try await enter(on: stage, channels: 2, viewers: 2)
        defer { cast.leave() }
        let watch = try await MemberWatch(stage.local)
        async let _: Void = watch.run()
        let ports = stage.local.mark.nodes.compactMap { HostPort($0.transport)?.port }
        let loss =
            options.lossPercent > 0
            ? try HeartbeatLoss(percent: options.lossPercent, ports: ports, scope: scope) : nil
        let hogs = try BenchHogs(options.hogs, scope: scope)
        defer { hogs.stop() }
        report.note("quiet begins: \(options.hogs) hogs, \(options.lossPercent) % of heartbeats lost")
        let start = MonotonicTime.now()
        var (kills, falseDeaths) = (0, 0)
        while MonotonicTime.now() - start < options.span {
            try await Task.sleep(for: .seconds(1))
            for node in watch.falseDeaths.dropFirst(falseDeaths) { report.falseDeath("\(node)") }
            falseDeaths = watch.falseDeaths.count
            // The kills are in the middle of equal parts of the time.
            let due = (MonotonicTime.now() - start) * Double(options.kills) / options.span + 0.5
            if kills < options.kills, Double(kills + 1) <= due {
                try await killOne(number: kills, of: stage, watch)
                kills += 1
            }
            if let loss { report.lostHeartbeats(try loss.lostCount()) }
        }
        report.note("quiet ends")
        for publisher in cast.publishers { publisher.pause() }
        try await cast.waitUntilCaughtUp()
        report.count(cast)
        countMissing(cast)
    }

    private func killOne(number: Int, of stage: FailoverStage, _ watch: MemberWatch) async throws {
        let nodes = stage.local.mark.nodes
        let victim = NodeName(unchecked: nodes[number % nodes.count].name)
        guard let id = await watch.id(of: victim) else { return report.failed("the map cannot be read") }
        try await watch.willEnd(victim)
        let killedAt = MonotonicTime.now()
        try stage.signal(victim, SIGKILL)
        report.killed("\(id)", seen: await watch.timeUntilDead(id, since: killedAt, timeout: .seconds(30)))
        do { try await stage.heal() } catch { report.failed("after the kill of \(id): \(error)") }
    }

    // MARK: Rolling

    /// Kills and restarts every node in turn.
    func rolling() async throws {
        try await scope.withStage(basePort: options.basePort, name: "rolling") { stage in
            try await stage.heal()
            let cast = try await enter(on: stage, channels: options.channels, viewers: options.viewers)
            defer { cast.leave() }
            let watch = try await MemberWatch(stage.local)
            async let _: Void = watch.run()
            let hogs = try BenchHogs(options.hogs, scope: scope)
            defer { hogs.stop() }
            report.note("rolling begins: \(options.hogs) hogs")
            let start = MonotonicTime.now()
            var number = 0
            while MonotonicTime.now() - start < options.span {
                try await roll(number: number, on: stage, cast, watch)
                number += 1
                report.count(cast)
            }
            report.note("rolling ends")
            for node in watch.falseDeaths { report.falseDeath("\(node)") }
            for publisher in cast.publishers { publisher.pause() }
            try await cast.waitUntilCaughtUp()
            report.count(cast)
            countMissing(cast)
        }
    }

    private func roll(
        number: Int, on stage: FailoverStage, _ cast: FailoverCast, _ watch: MemberWatch
    ) async throws {
        let nodes = stage.local.mark.nodes
        let victim = NodeName(unchecked: nodes[number % nodes.count].name)
        guard let id = await watch.id(of: victim) else { return report.failed("the map cannot be read") }
        try await watch.willEnd(victim)
        let killedAt = MonotonicTime.now()
        try stage.signal(victim, SIGKILL)
        async let seen = watch.timeUntilDead(id, since: killedAt, timeout: .seconds(10))
        let protected = await timeUntilProtected(cast, without: victim, since: killedAt, on: stage)
        report.killed("\(id)", seen: await seen)
        try await Task.sleep(for: .seconds(1))
        let gap = cast.viewers.map { $0.viewer.gap(from: killedAt, to: .now()) }.max() ?? .zero
        report.protected("\(id)", after: protected, gap: gap)
        do { try await stage.heal() } catch { report.failed("after the kill of \(id): \(error)") }
        try await Task.sleep(for: .seconds(1))
    }

    /// The time until every channel has a primary whose frames a standby confirms; nil after ten seconds.
    private func timeUntilProtected(
        _ cast: FailoverCast, without victim: NodeName, since: MonotonicTime, on stage: FailoverStage
    ) async -> Duration? {
        let wanted = Set(cast.publishers.map { "\($0.device)/0" })
        while MonotonicTime.now() - since < .seconds(10) {
            let reports = await NodeStanding.gather(stage.local)
            let found = reports.flatMap(\.status.channels).filter {
                $0.role == "primary" && $0.protected && $0.primary != victim.rawValue && $0.standby != victim.rawValue
                    && $0.standby != nil
            }
            if wanted.isSubset(of: found.map(\.channel)) { return MonotonicTime.now() - since }
            try? await Task.sleep(for: .milliseconds(20))
        }
        return nil
    }

    // MARK: Both

    private func enter(on stage: FailoverStage, channels: Int, viewers: Int) async throws -> FailoverCast {
        let names = stage.local.mark.nodes.map { NodeName(unchecked: $0.name) }
        let devices = try await stage.devices(channels, prefix: "e") { _, _ in true }
        let cast = FailoverCast()
        for (index, device) in devices.enumerated() {
            cast.publishers.append(try await stage.publisher(device, endpoint: names[index % names.count]))
        }
        for publisher in cast.publishers { publisher.start() }
        for (index, device) in devices.enumerated() {
            for number in 0..<viewers {
                try await Task.sleep(for: .milliseconds(20))
                let endpoint = names[(index + number) % names.count]
                cast.add(try await stage.viewer(device, number: number, endpoint: endpoint), of: index)
            }
        }
        try await cast.waitUntilSettled(frames: 25, within: .seconds(30))
        return cast
    }

    private func countMissing(_ cast: FailoverCast) {
        for entry in cast.viewers where entry.viewer.endError == nil {
            report.missing(max(0, cast.publishers[entry.channel].sent - 1 - Int(entry.viewer.newest ?? 0)))
        }
    }
}
