import ApusContract
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Kills the primary of the channel and checks the frames of the viewers.
struct DemoCheck: Sendable {
    let stage: DemoStage
    let output: OutputOptions
    /// The time-out of each step.
    var timeout = Duration.seconds(30)
    /// The number of frames that every viewer must receive before the kill, and again after it.
    var framesMin = 100

    /// - Throws: 10018 with the faults, 10005 with the step that timed out.
    func run() async throws {
        try await waitForFrames(framesMin, step: "frames at every viewer")
        let before = try await waitForProtection(notAt: nil)
        output.progress("The channel is at \(before.node), its standby at \(before.standby). Killing \(before.node).")
        let killed = MonotonicTime.now()
        NodeProcess(before.node, in: stage.cluster.directory).signal(SIGKILL)
        let after = try await waitForProtection(notAt: before.node)
        let took = Int((MonotonicTime.now() - killed).milliseconds)
        output.progress("The channel is at \(after.node), its standby at \(after.standby), \(took) ms after the kill.")
        try await waitForFrames(counts().map { $0 + framesMin }.max() ?? framesMin, step: "frames after the kill")

        // The camera stops first, so that its last frames can reach the viewers.
        try await stage.process(DemoStage.camera).stop()
        try await Task.sleep(for: .seconds(1))
        for name in stage.viewerNames { try await stage.process(name).stop() }
        try judge(killed: before.node, primary: after.node, took: took)
    }

    /// The result of a check without a fault.
    private struct Report: Encodable {
        struct Viewer: Encodable {
            var name: String
            var frames: Int
            /// The longest time between two frames.
            var gap_longest_ms: Int
        }
        /// The primary that was killed, and the one after it.
        var killed: String
        var primary: String
        /// From the kill until the channel had a primary with a standby again.
        var failover_ms: Int
        var sent_frames: Int
        var viewers: [Viewer]
    }

    private func judge(killed: String, primary: String, took: Int) throws {
        var sent = FrameTally(path: stage.frameLog(DemoStage.camera), keepsHashes: true)
        sent.update()
        var tallies = stage.viewerNames.map { FrameTally(path: stage.frameLog($0), keepsHashes: true) }
        var faults: [String] = []
        for (index, name) in stage.viewerNames.enumerated() {
            tallies[index].update()
            let tally = tallies[index]
            let differing = tally.differing(from: sent)
            // Frames that were numbered in the camera's last moment may not have been sent.
            let missing = Int64(clamping: sent.last?.seq ?? 0) - Int64(clamping: tally.last?.seq ?? 0)
            if tally.lost > 0 { faults.append("\(name) lost \(tally.lost) frames") }
            if tally.doubled > 0 { faults.append("\(name) got \(tally.doubled) duplicate frames") }
            if differing > 0 { faults.append("\(name) got \(differing) frames that differ from those that were sent") }
            if missing > Int64(framesMin) / 2 { faults.append("\(name) misses the last \(missing) frames") }
        }
        output.progress("The camera sent \(sent.frames) frames.")
        for line in DemoTable.viewers(stage, tallies) { output.progress(line) }
        guard faults.isEmpty else { throw ApusError(.internalFailure, faults.joined(separator: "; ")) }
        stage.markChecked()
        let viewers = zip(stage.viewerNames, tallies).map { name, tally in
            Report.Viewer(
                name: name, frames: tally.frames, gap_longest_ms: Int(tally.gapLongest.milliseconds))
        }
        try output.show(
            Report(
                killed: killed, primary: primary, failover_ms: took, sent_frames: sent.frames, viewers: viewers),
            ["Every viewer received every frame exactly once, bit for bit."])
    }

    private func counts() -> [Int] {
        stage.viewerNames.map { name in
            var tally = FrameTally(path: stage.frameLog(name), keepsHashes: false)
            tally.update()
            return tally.frames
        }
    }

    private func waitForFrames(_ count: Int, step: String) async throws {
        let deadline = ContinuousClock.now + timeout
        while true {
            try stage.requireClients()
            let counts = counts()
            if counts.allSatisfy({ $0 >= count }) { return }
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "\(step): viewers have \(counts), wanted \(count) each")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
    }

    private func waitForProtection(notAt node: String?) async throws -> (node: String, standby: String) {
        let deadline = ContinuousClock.now + timeout
        while true {
            let reports = await NodeStanding.gather(stage.cluster).filter { $0.status.name != node }
            if let found = stage.channel(in: reports), found.channel.protected, let standby = found.channel.standby,
                standby != node
            {
                return (found.node, standby)
            }
            guard ContinuousClock.now < deadline else {
                throw ApusError(
                    .deadlineExceeded,
                    "the channel has no primary with a standby:\n" + NodeStanding.table(reports).joined(separator: "\n")
                )
            }
            try await Task.sleep(for: .milliseconds(50))
        }
    }
}
