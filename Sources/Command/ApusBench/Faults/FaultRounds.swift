import ApusCluster
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Runs the rounds of each kind of fault. Every round has its own cluster, so no fault affects a later round.
struct FaultRounds: Sendable {
    struct Options: Sendable {
        var channels: Int
        var viewers: Int
        var wayViewers: Int
        var roundTrips: [Int]
        var refusedShare: Double
        var crowd: Int
        var thousand: Int
        var hogs: Int
        var basePort: Int
        /// The names of the rows to run; nil means all.
        var rows: Set<String>?
        /// The number of rounds of each row; nil means the default of the kind.
        var repeats: Int?
    }

    let options: Options
    let scope: BenchScope

    func play(_ kind: BenchFaultsCommand.Kind) async throws -> [FaultResult] {
        let count = options.repeats ?? kind.repeats
        var results: [FaultResult] = []
        for (row, round) in rows(of: kind) where options.rows?.contains(row.key) ?? true {
            var result = FaultResult(row: row)
            for number in 0..<count {
                do {
                    try await round(number, &result)
                } catch let error where !Task.isCancelled {
                    result.failed("a round failed: \(error)")
                }
                try Task.checkCancellation()
                BenchScope.say("\(row.key) \(number + 1)/\(count): \(result.line)")
            }
            results.append(result)
        }
        return results
    }

    typealias Round = (_ number: Int, _ result: inout FaultResult) async throws -> Void

    private func rows(of kind: BenchFaultsCommand.Kind) -> [(FaultRow, Round)] {
        switch kind {
        case .ways: wayRows
        case .crowd: [crowdRow]
        case .cpu: [cpuRow]
        case .stoppedStore: [stoppedStoreRow]
        case .damagedStore: damagedStoreRows
        case .clocks: clockRows
        case .crashes: crashRows
        case .descriptors: [descriptorRow]
        case .thousand: [thousandRow]
        case .rejoin: rejoinRows
        case .twins: [twinRow]
        }
    }

    // MARK: Shared by the kinds

    /// Runs one round on a new cluster.
    func withStage(
        _ stageOptions: FailoverStage.Options = FailoverStage.Options(), _ body: (FailoverStage) async throws -> Void
    ) async throws {
        try await scope.withStage(basePort: options.basePort, options: stageOptions) { stage in
            try await stage.heal()
            try await body(stage)
        }
    }

    /// Adds cameras and viewers whose channels have the given primary. Returns when all viewers receive frames.
    /// - Parameters:
    ///   - cameras: the nodes to which cameras connect first.
    ///   - watchers: the nodes to which viewers connect first, in turn.
    func enter(
        on stage: FailoverStage, primary: NodeName, standbys: [NodeName]? = nil, cameras: [NodeName],
        watchers: [NodeName], frames: BenchFrames = BenchFrames()
    ) async throws -> FailoverCast {
        let devices = try await stage.devices(options.channels, prefix: "f\(UInt16.random(in: 0...(.max)))") {
            $0 == primary && (standbys?.contains($1) ?? true)
        }
        let cast = FailoverCast()
        for (index, device) in devices.enumerated() {
            cast.publishers.append(
                try await stage.publisher(device, endpoint: cameras[index % cameras.count], frames: frames))
        }
        for publisher in cast.publishers { publisher.start() }
        try await Task.sleep(for: .milliseconds(300))
        for (index, device) in devices.enumerated() {
            for number in 0..<options.viewers {
                // A pause between clients: the measurement starts after all have started.
                try await Task.sleep(for: .milliseconds(20))
                let endpoint = watchers[(index + number) % watchers.count]
                cast.add(try await stage.viewer(device, number: number, endpoint: endpoint), of: index)
            }
        }
        try await cast.waitUntilSettled(frames: 40, within: .seconds(20))
        return cast
    }

    /// Stops the cameras, waits for the last frames, and counts the results.
    func finish(_ cast: FailoverCast, into result: inout FaultResult) async throws {
        for publisher in cast.publishers { publisher.pause() }
        try await cast.waitUntilCaughtUp()
        result.count(cast)
    }

    static func names(_ stage: FailoverStage) -> [NodeName] {
        stage.local.mark.nodes.map { NodeName(unchecked: $0.name) }
    }
}

extension FailoverCast {
    /// Waits until every viewer that was not ended has this many frames, or the time-out has passed.
    func waitUntilSettled(frames: Int, within timeout: Duration) async throws {
        let deadline = MonotonicTime.now() + timeout
        while MonotonicTime.now() < deadline,
            !viewers.allSatisfy({ $0.viewer.endError != nil || $0.viewer.records.count >= frames })
        {
            try await Task.sleep(for: .milliseconds(50))
        }
    }

    /// Waits until every viewer that was not ended has received frames for a second, or the time-out has passed.
    func waitUntilLive(within timeout: Duration) async throws {
        let deadline = MonotonicTime.now() + timeout
        var liveSince: MonotonicTime?
        // Frames that were in transit at the time of the fault do not count.
        try await Task.sleep(for: .seconds(1))
        while MonotonicTime.now() < deadline {
            try await Task.sleep(for: .milliseconds(50))
            let now = MonotonicTime.now()
            let isLive = viewers.allSatisfy {
                $0.viewer.endError != nil || ($0.viewer.newestAt.map { now - $0 < .milliseconds(500) } ?? false)
            }
            liveSince = isLive ? liveSince ?? now : nil
            if let liveSince, now - liveSince >= .seconds(1) { return }
        }
    }
}
