import ApusCluster
import ApusCore
import ApusLocal
import ApusStorage
import Foundation

/// Dialogs in all states, and the kills. A round brings the dialogs into their states, kills a node, and drives each
/// dialog to its end. Each node is, at each kill, the owner's node of some dialogs, the standby of others, and that of
/// the connections of others.
final class DialogKillLoad: Sendable {
    /// The dialogs that are brought into their state at once.
    private static let concurrency = 24
    /// From the first timer that is set to the kill.
    private static let timerTime = Duration.milliseconds(3300)
    /// From the states that end soon to the kill.
    private static let shortTime = Duration.milliseconds(600)
    private static let settleTime = Duration.milliseconds(500)
    /// The rounds without a kill, which answers are compared with.
    static let calmRounds = 3

    private let stage: SignInStage
    private let nodes: [String]
    private let devices: [DialogKillDevice]
    private let store: any OwnershipStore
    private let ledger = DialogKillLedger()

    init(_ stage: SignInStage, dialogs: Int) async throws {
        let nodes = stage.local.mark.nodes.map(\.name)
        devices = try await CallLoad.each(dialogs) { try await DialogKillDevice($0, nodes, stage) }
        store = try await FailoverStage.ownership(of: stage.local)
        (self.stage, self.nodes) = (stage, nodes)
    }

    func close() { for device in devices { device.close() } }

    func run(kills: Int, down: Duration) async throws -> DialogKillResult {
        var result = DialogKillResult()
        for number in 0..<Self.calmRounds { try await round(number, kill: nil, down, &result) }
        for number in 0..<kills {
            let node = nodes[number % nodes.count]
            try await round(Self.calmRounds + number, kill: node, down, &result)
            BenchScope.say("killed \(node) (\(number + 1)/\(kills))")
        }
        // What comes twice may come late.
        try await Task.sleep(for: .seconds(3))
        let values = ledger.values
        for device in devices {
            let asked = device.asked
            for (action, count) in asked.actions {
                result.lateTwice += max(0, count - (values.actionsMax[device.id]?[action] ?? 0))
            }
            result.lateTwice += asked.directives.values.reduce(0) { $0 + $1 - 1 }
        }
        result.lateness = values.lateness
        await store.close()
        return result
    }

    // MARK: - A round

    private func round(
        _ number: Int, kill node: String?, _ down: Duration, _ result: inout DialogKillResult
    ) async throws {
        let gate = KillGate(permits: Self.concurrency)
        let kinds = DialogKillKind.allCases
        let scripts = devices.enumerated().map { index, device in
            DialogKillScript(
                // Each device has another kind in the next round.
                kind: kinds[(index + number) % kinds.count], device: device,
                place: Double((index * 7919 + number * 31) % devices.count) / Double(devices.count), gate: gate,
                ledger: ledger)
        }
        _ = ledger.takeSpans()
        var roles: [DeviceID: Set<DialogKillRole>] = [:]
        let outcomes = try await withThrowingTaskGroup(of: (DialogKillScript, DialogKillMiss?).self) { group in
            var started = 0
            func start(_ isWanted: (DialogKillKind) -> Bool) async throws {
                for script in scripts where isWanted(script.kind) {
                    started += 1
                    group.addTask { (script, await script.run()) }
                }
                while gate.preparedCount < started { try await Task.sleep(for: .milliseconds(5)) }
            }
            try await start { !$0.isShort }
            let timersAt = MonotonicTime.now()
            try await start { $0 == .timer }
            try await Task.sleep(for: max(.zero, timersAt + (Self.timerTime - Self.shortTime) - .now()))
            try await start { $0.isShort && $0 != .timer }
            if let node { roles = try await self.roles(of: node) }
            let kill = max(timersAt + Self.timerTime, .now() + .milliseconds(150))
            gate.announce(kill)
            try await Task.sleep(for: max(.zero, kill - .now()))
            if let node {
                try stage.kill(node)
                try await Task.sleep(for: down)
                try await restart()
            }
            return try await group.reduce(into: [(DialogKillScript, DialogKillMiss?)]()) { $0.append($1) }
        }
        try await Task.sleep(for: Self.settleTime)
        for (script, miss) in outcomes { result.add(script.kind, roles[script.device.id] ?? [], miss) }
        let spans = ledger.takeSpans()
        if node == nil { result.calm += spans } else { result.add(spans, roles) }
    }

    /// What the node is to each dialog.
    private func roles(of node: String) async throws -> [DeviceID: Set<DialogKillRole>] {
        guard let value = try await store.read() else { return [:] }
        let map = try ClusterMap(decoding: value.bytes, revision: value.revision, cluster: stage.local.cluster)
        var roles: [DeviceID: Set<DialogKillRole>] = [:]
        for device in devices {
            let shard = ShardID(of: device.id)
            roles[device.id] = await device.roles(
                of: node, owner: map.owner(of: shard)?.id.name.rawValue,
                standby: map.standby(of: shard)?.id.name.rawValue, stage)
        }
        return roles
    }

    /// Off the threads of tasks: it waits for a program.
    private func restart() async throws {
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
            Thread.detachNewThread { [stage] in continuation.resume(with: Result { try stage.restart() }) }
        }
    }
}
