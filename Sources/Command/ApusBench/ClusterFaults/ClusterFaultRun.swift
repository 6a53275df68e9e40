import ApusCluster
import ApusCore
import ApusHistory
import ApusLocal
import ApusSessions
import Foundation

/// The episodes of `apus-bench cluster-faults`, on one cluster.
///
/// Cameras and viewers stay through all episodes. The registers and their clients are new in each.
///
/// Isolation: used by the benchmark's one task.
final class ClusterFaultRun {
    struct Options: Sendable {
        var nodes: Int
        var episodes: Int
        var faults: [ClusterFault]
        var cameras: Int
        var viewers: Int
        var registers: Int
        /// The folder for histories that are not linearizable.
        var keep: String
    }

    /// How long the load runs before a fault.
    private static let lead = Duration.seconds(1)
    /// How long it runs after the end of a fault.
    private static let tail = Duration.milliseconds(1_500)

    private let options: Options
    private let place: ClusterFaultStage
    private let watch: MapWatch
    private let tokens: [String]
    private var cast = FailoverCast()
    private var results: [ClusterFault: ClusterFaultResult] = [:]
    /// The loads of all episodes, whose registers are read again at the end.
    private var loads: [(fault: ClusterFault, load: RegisterLoad)] = []

    init(options: Options, place: ClusterFaultStage, watch: MapWatch) async throws {
        self.options = options
        self.place = place
        self.watch = watch
        var tokens: [String] = []
        for number in 0..<8 {
            tokens.append(
                try await place.stage.local.mint(
                    role: .app, access: AccessID(unchecked: "registers-\(number)"),
                    account: AccountID(unchecked: "registers-\(number)"), lifetime: .seconds(24 * 3600)))
        }
        self.tokens = tokens
    }

    /// Runs all episodes. An error in one is a failure of its fault, and the next one follows.
    func run() async throws -> [ClusterFaultResult] {
        try await place.stage.heal()
        try await enter()
        defer { cast.leave() }
        for number in 0..<options.episodes {
            let fault = options.faults[number % options.faults.count]
            var result = results[fault] ?? ClusterFaultResult(fault: fault)
            do {
                try await episode(number, fault, &result)
            } catch let error as ApusError where error.code == .cancelled {
                throw error
            } catch {
                result.failed("episode \(number): \(error)")
                await place.clear()
                do {
                    try await place.end(fault)
                } catch {
                    // What was measured before is still reported.
                    result.failed("no episodes after \(number): \(error)")
                    results[fault] = result
                    break
                }
            }
            results[fault] = result
        }
        await readAgain()
        return options.faults.compactMap { results[$0] }
    }

    private func enter() async throws {
        let names = place.nodes.map { NodeName(unchecked: $0) }
        let devices = try await place.stage.devices(options.cameras, prefix: "cam") { _, _ in true }
        for (index, device) in devices.enumerated() {
            cast.publishers.append(
                try await place.stage.publisher(device, endpoint: names[index % names.count], frames: .light))
        }
        for publisher in cast.publishers { publisher.start() }
        try await Task.sleep(for: .milliseconds(300))
        for number in 0..<options.viewers {
            let channel = number % devices.count
            // Not at the node of the camera alone.
            let endpoint = names[(number + number / devices.count) % names.count]
            cast.add(
                try await place.stage.viewer(devices[channel], number: number, endpoint: endpoint), of: channel)
        }
        try await cast.waitUntilSettled(frames: 50, within: .seconds(20))
    }

    // MARK: One episode

    private func episode(_ number: Int, _ fault: ClusterFault, _ result: inout ClusterFaultResult) async throws {
        let load = RegisterLoad(
            "e\(number)", registers: options.registers,
            nodes: place.stage.local.mark.nodes.compactMap { HostPort($0.http) }, tokens: tokens)
        let before = try await place.stage.map()
        let victims = place.victims(of: fault)
        let ids = victims.nodes.compactMap { before.member(named: NodeName(unchecked: $0))?.id }
        load.start()
        try await Task.sleep(for: Self.lead)
        var window = FrameWindow(cast)
        let faultAt = MonotonicTime.now()
        let sign = Self.followConditions(of: fault, at: place.stage.local.mark.nodes, since: faultAt)
        defer { sign.cancel() }
        try await place.make(fault, victims)
        let duration = fault.duration()
        try await Task.sleep(for: max(.zero, duration - (MonotonicTime.now() - faultAt)))
        try await place.end(fault)
        try await Task.sleep(for: Self.tail)
        await load.stop()
        try await load.readAll()
        try await cast.waitUntilLive(within: .seconds(10))
        window.end(cast, now: .now())

        result.addEpisode()
        result.saw(window)
        let detected = fault.ends ? watch.death(of: ids, since: faultAt).map { $0 - faultAt } : await sign.value
        if fault.detectMax != nil || !fault.conditions.isEmpty { result.detected(detected) }
        // Records have no space in a full disk.
        let served = load.serveTime(since: faultAt) { fault != .fullDisk || !$0.isRecorded }
        result.served(served)
        result.falseDeath(try await falseDeaths(before, except: fault.ends ? ids : []))
        for error in load.refusals { result.failed("episode \(number): \(error)") }
        judge(load, number, &result)
        loads.append((fault, load))
        say(number, fault, victims, duration, detected, served, window, load)
    }

    /// Finds the time until a node shows a condition that is a sign of the fault; nil after ten seconds, or if the
    /// fault has none.
    private static func followConditions(
        of fault: ClusterFault, at nodes: [StateDirectory.Node], since: MonotonicTime
    ) -> Task<Duration?, Never> {
        Task { await timeUntilCondition(fault, at: nodes, since: since) }
    }

    private static func timeUntilCondition(
        _ fault: ClusterFault, at nodes: [StateDirectory.Node], since: MonotonicTime
    ) async -> Duration? {
        guard !fault.conditions.isEmpty else { return nil }
        while MonotonicTime.now() - since < .seconds(10), !Task.isCancelled {
            for node in nodes {
                let answer = await HealthAnswer.ask(node, timeout: .milliseconds(200))
                if let answer, !answer.conditions.isDisjoint(with: fault.conditions) {
                    return MonotonicTime.now() - since
                }
            }
            try? await Task.sleep(for: .milliseconds(10))
        }
        return nil
    }

    /// Members of another incarnation than before, without a reason.
    private func falseDeaths(_ before: ClusterMap, except victims: [NodeID]) async throws -> Int {
        let now = try await place.stage.map()
        return before.members.count { member in
            member.state.isAlive && !victims.contains(member.id)
                && now.member(named: member.id.name)?.id != member.id
        }
    }

    // MARK: Histories

    private func judge(_ load: RegisterLoad, _ number: Int, _ result: inout ClusterFaultResult) {
        let counts = load.counts
        result.changed(acknowledged: counts.acknowledged, unknown: counts.unknown)
        note(LinearizabilityChecker().check(load.history.operations), of: load, "episode \(number)", &result)
    }

    private func note(
        _ verdict: LinearizabilityChecker.Verdict, of load: RegisterLoad, _ what: String,
        _ result: inout ClusterFaultResult
    ) {
        result.judged(verdict)
        guard verdict != .linearizable else { return }
        let file = "\(options.keep)/apus-\(what.replacingOccurrences(of: " ", with: "-")).history"
        try? HistoryFile.write(load.history.operations, to: file)
        if case .violation(let violation) = verdict {
            BenchScope.say("\(what), \(result.fault.rawValue): \(violation)")
        }
        BenchScope.say("the history is in \(file)")
    }

    /// Every acknowledged change of every episode must be there after all others.
    private func readAgain() async {
        for (fault, load) in loads {
            var result = results[fault] ?? ClusterFaultResult(fault: fault)
            do {
                try await load.readAll()
                note(
                    LinearizabilityChecker().check(load.history.operations), of: load,
                    "\(load.registers.first?.name ?? "") at the end", &result)
            } catch {
                result.failed("at the end: \(error)")
            }
            results[fault] = result
        }
    }

    private func say(
        _ number: Int, _ fault: ClusterFault, _ victims: ClusterFaultStage.Victims, _ duration: Duration,
        _ detected: Duration?, _ served: Duration?, _ window: FrameWindow, _ load: RegisterLoad
    ) {
        func text(_ time: Duration?) -> String { time.map { "\(Int($0.milliseconds)) ms" } ?? "-" }
        let who = (victims.nodes + [victims.other].compactMap { $0 }).joined(separator: ",")
        BenchScope.say(
            "\(number + 1)/\(options.episodes) \(fault.rawValue) \(who) \(text(duration)): detected \(text(detected)), "
                + "served \(text(served)), gap \(text(window.gaps.max())) from \(text(window.longestFrom)) on, "
                + "lost \(window.lost), doubled \(window.doubled), ended \(window.ended), "
                + "\(load.history.operationCount) operations")
    }
}
