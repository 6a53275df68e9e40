import ApusCluster
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Faults of the nodes' shared store, and of their clocks.
extension FaultRounds {
    // MARK: A stopped store

    var stoppedStoreRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "stopped-store", says: "kill -9 the primary, another node stopped in a swap", bound: .kill)
        return (row, { number, result in try await stoppedStore(number, into: &result) })
    }

    private func stoppedStore(_ number: Int, into result: inout FaultResult) async throws {
        var stageOptions = FailoverStage.Options()
        // The two remaining nodes are a majority of the three that are not proven dead (D4).
        stageOptions.nodes = 4
        try await withStage(stageOptions) { stage in
            let names = Self.names(stage)
            let (stopped, victim) = (names[number % 4], names[(number + 1) % 4])
            let others = names.filter { $0 != stopped && $0 != victim }
            let cast = try await enter(on: stage, primary: victim, standbys: others, cameras: others, watchers: others)
            defer { cast.leave() }
            let node = try StateDirectory.node(stopped.rawValue, in: stage.local.mark)
            guard let pid = NodeProcess(node.name, in: stage.local.directory).pid else {
                throw ApusError(.internalFailure, "the node \(stopped) is not running")
            }
            // The hand-over of all shards of the node: a hundred swaps, one after the other.
            let local = stage.local
            async let asked: Void = drain(node, of: local)
            let holds = try await StoreFiles(of: stage.local).stop(pid, within: .seconds(2))
            result.figure("stopped with a lock", holds ? 1 : 0)
            // The other nodes detect that it is silent; then follows the failure that they must handle.
            try await Task.sleep(for: .seconds(1))
            let killedAt = MonotonicTime.now()
            try stage.signal(victim, SIGKILL)
            try await Task.sleep(for: .seconds(5))
            result.gaps(of: cast, from: killedAt, to: .now())
            kill(pid, SIGCONT)
            try await Task.sleep(for: .seconds(2))
            await asked
            try await finish(cast, into: &result)
        }
    }

    /// Asks a node to drain. Does not wait for a node that is stopped in the meantime.
    private func drain(_ node: StateDirectory.Node, of local: LocalCluster) async {
        guard let address = HostPort(node.http),
            let token = try? await local.mint(role: .admin, access: AccessID(unchecked: "operator"))
        else { return }
        let path = "/v1/nodes/\(node.name)/drain"
        _ = try? await NodeHTTP.send("POST", path, to: address, token: token, timeout: .seconds(1))
    }

    // MARK: A damaged store

    var damagedStoreRows: [(FaultRow, Round)] {
        StoreFiles.Damage.allCases.map { damage in
            let row = FaultRow(
                key: "store-\(damage.rawValue)", says: "ownership store \(damage.says), restored, kill -9",
                bound: FaultBound(gapP99: 120, gapMax: 250, saidMax: 5_000))
            return (row, { number, result in try await damagedStore(damage, number, into: &result) })
        }
    }

    private func damagedStore(
        _ damage: StoreFiles.Damage, _ number: Int, into result: inout FaultResult
    ) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let victim = names[number % names.count]
            let others = names.filter { $0 != victim }
            let store = try StoreFiles(of: stage.local)
            try store.keepCopy()
            // The map advances beyond the copy: a node leaves and returns.
            try await stage.drain(others[0])
            try await stage.heal()
            let cast = try await enter(on: stage, primary: victim, cameras: others, watchers: others)
            defer { cast.leave() }
            let map = try await stage.map()
            let damagedAt = MonotonicTime.now()
            try store.damage(damage)
            result.said(
                await HealthAnswer.timeUntil(stage.local.mark.nodes, since: damagedAt, timeout: .seconds(8)) {
                    $0.status == 503
                })
            result.gaps(of: cast, from: damagedAt, to: .now())
            do {
                try Self.restore(stage.local)
                let health = await HealthAnswer.timeUntil(
                    stage.local.mark.nodes, since: .now(), timeout: .seconds(10)
                ) { $0.status == 200 }
                if health.contains(nil) { result.failed("not every node is healthy after the restore") }
            } catch {
                result.failed("the store cannot be restored: \(error)")
            }
            guard let primary = map.owner(of: ShardID(of: cast.publishers[0].device))?.id.name else { return }
            let killedAt = MonotonicTime.now()
            try stage.signal(primary, SIGKILL)
            try await Task.sleep(for: .seconds(4))
            result.gaps(of: cast, from: killedAt, to: .now())
            try await finish(cast, into: &result)
            try NodeProcess(primary.rawValue, in: stage.local.directory).start()
            if try await !isOneCluster(stage.local, within: .seconds(15)) {
                result.failed("the restarted node is not in one cluster with the others")
            }
        }
    }

    /// True if every node is up and has all others as members, within a time.
    private func isOneCluster(_ local: LocalCluster, within timeout: Duration) async throws -> Bool {
        let deadline = MonotonicTime.now() + timeout
        while MonotonicTime.now() < deadline {
            let reports = await NodeStanding.gather(local)
            if reports.allSatisfy({ $0.status.state == "up" && $0.status.members.count == reports.count }) {
                return true
            }
            try await Task.sleep(for: .milliseconds(100))
        }
        return false
    }

    /// Restores the newest map on which the cluster's nodes agree.
    private static func restore(_ local: LocalCluster) throws {
        try FailoverStage.run(
            try BenchPrograms.apus(), ["admin", "ownership", "restore", "--dir", local.directory.path])
    }

    // MARK: Clocks

    var clockRows: [(FaultRow, Round)] {
        [
            (
                FaultRow(
                    key: "clock-camera", says: "a camera restarts an hour back", bound: FaultBound(firstMax: 5_000)),
                { number, result in try await cameraClock(number, into: &result) }
            ),
            (
                FaultRow(
                    key: "clock-node", says: "a node two hours ahead",
                    bound: FaultBound(firstMax: 3_000, saidMax: 10_000)),
                { number, result in try await nodeClock(number, into: &result) }
            ),
        ]
    }

    private func cameraClock(_ number: Int, into result: inout FaultResult) async throws {
        let wrong = try ClockFault.environment("-1h")
        try await withStage { stage in
            let names = Self.names(stage)
            let device = DeviceID(unchecked: "clock-\(number)")
            let token = try await stage.local.mint(
                role: .device, access: AccessID(unchecked: device.rawValue), device: device)
            var arguments = ["device", "--id", device.rawValue, "--test-pattern", "160x120@25", "--token", token]
            for endpoint in stage.local.endpoints { arguments += ["--connect", "\(endpoint)"] }
            arguments += ["--ca", stage.local.authorityFile]
            let apus = try BenchPrograms.apus()
            let first = try BenchProcess(apus, arguments)
            let viewer = try await stage.viewer(
                device, number: 0, endpoint: names[number % names.count], checksContent: false)
            try await Task.sleep(for: .seconds(1))
            viewer.start()
            defer { viewer.stop() }
            func wait(_ isSo: () -> Bool) async throws {
                let deadline = MonotonicTime.now() + .seconds(10)
                while !isSo(), MonotonicTime.now() < deadline { try await Task.sleep(for: .milliseconds(20)) }
            }
            try await wait { viewer.records.count >= 50 }
            first.end()
            let before = viewer.records.count
            if before < 50 { result.failed("no picture of a camera with the right clock") }
            let restartedAt = MonotonicTime.now()
            let launcher = ClockFault.launcher
            let second = try BenchProcess(
                launcher[0], Array(launcher.dropFirst()) + [apus] + arguments, environment: wrong)
            defer {
                second.end()
                ClockFault.clean(second.pid)
            }
            try await wait { viewer.records.count >= before + 25 || !second.isRunning }
            result.addRound(clients: 2)
            if !second.isRunning { result.end(ApusError(.stalePublisher, "the camera has exited")) }
            if let error = viewer.endError { result.end(error) }
            let records = viewer.records
            if records.count > before { result.first(records[before].at - restartedAt) } else { result.noPicture() }
            result.staleFrames(viewer.staleCount)
        }
    }

    private func nodeClock(_ number: Int, into result: inout FaultResult) async throws {
        let wrong = try ClockFault.environment("+2h")
        try await withStage { stage in
            let names = Self.names(stage)
            let (odd, others) = (names[number % 3], names.filter { $0 != names[number % 3] })
            let node = try StateDirectory.node(odd.rawValue, in: stage.local.mark)
            let process = NodeProcess(node.name, in: stage.local.directory)
            try await process.stop()
            try process.start(program: BenchPrograms.apus(), launcher: ClockFault.launcher, variables: wrong)
            // The process has its name once the launcher has executed it.
            let deadline = MonotonicTime.now() + .seconds(5)
            while process.pid == nil, MonotonicTime.now() < deadline { try await Task.sleep(for: .milliseconds(10)) }
            let pid = process.pid
            defer { if let pid { ClockFault.clean(pid) } }
            let restartedAt = MonotonicTime.now()
            try await stage.heal()
            // Every second client connects to the node with the wrong clock.
            let cast = try await enter(
                on: stage, primary: others[0], cameras: [odd, others[0]], watchers: [odd, others[1]])
            defer { cast.leave() }
            result.said(
                await HealthAnswer.timeUntil([node], since: restartedAt, timeout: .seconds(15)) {
                    $0.status == 503 || $0.conditions.contains { $0.contains("clock") }
                })
            try await finish(cast, into: &result)
        }
    }
}
