import ApusCluster
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Plays the rounds of each kind of fault. Every round has a cluster of its own: a fault leaves nothing behind.
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
        /// Names of the rows to play; nil: all.
        var rows: Set<String>?
        /// Rounds of each row; nil: as the kind needs.
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

    // MARK: What the kinds share

    /// A fresh cluster for one round.
    func withStage(
        _ stageOptions: FailoverStage.Options = FailoverStage.Options(), _ body: (FailoverStage) async throws -> Void
    ) async throws {
        try await scope.withStage(basePort: options.basePort, options: stageOptions) { stage in
            try await stage.heal()
            try await body(stage)
        }
    }

    /// Cameras and viewers whose channels have a node as primary; all of them watch before this returns.
    ///
    /// - Parameters:
    ///   - cameras: where cameras connect first.
    ///   - watchers: where viewers connect first, in turn.
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
                try await stage.publisher(device, door: cameras[index % cameras.count], frames: frames))
        }
        for publisher in cast.publishers { publisher.start() }
        try await Task.sleep(for: .milliseconds(300))
        for (index, device) in devices.enumerated() {
            for number in 0..<options.viewers {
                // A pause between clients: what is measured comes after their start.
                try await Task.sleep(for: .milliseconds(20))
                let door = watchers[(index + number) % watchers.count]
                cast.add(try await stage.viewer(device, number: number, door: door), of: index)
            }
        }
        try await cast.waitUntilSettled(frames: 40, within: .seconds(20))
        return cast
    }

    /// Stops the cameras, waits for the last frames and counts.
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
    /// Waits until every viewer that did not end for good has so many frames, or the time is over.
    func waitUntilSettled(frames: Int, within timeout: Duration) async throws {
        let deadline = MonotonicTime.now() + timeout
        while MonotonicTime.now() < deadline,
            !viewers.allSatisfy({ $0.viewer.endError != nil || $0.viewer.records.count >= frames })
        {
            try await Task.sleep(for: .milliseconds(50))
        }
    }

    /// Waits until every viewer that did not end for good has had frames for a second, or the time is over.
    func waitUntilLive(within timeout: Duration) async throws {
        let deadline = MonotonicTime.now() + timeout
        var liveSince: MonotonicTime?
        // Frames that were under way when the fault came are not meant.
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
