import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// Cameras whose clocks are wrong, by way of Tests/Tools/wrong_clock.c.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct CameraClockTests {
    @Test(
        "A camera goes on the air after each restart, whatever its clock says, and its viewer goes on with it (IV-C1)",
        .enabled(if: WrongClock.isBuilt, "Tests/Tools/wrong_clock.c is not built"))
    func clocks() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 29_350)
        defer { cluster.down() }
        // The token is made by the cluster's clock: what is tested are the frames, not the sign-in.
        let token = try cluster.run("admin", "token", "--role", "device", "--device", "cam").output
            .trimmingCharacters(in: .whitespacesAndNewlines)
        var viewer: Process?
        for (run, hours) in [0, -1, 2, 0].enumerated() {
            let log = cluster.file("d\(run)")
            let camera = try cluster.start(
                ["device", "--id", "cam", "--test-pattern", "160x120@25", "--token", token, "--log", log],
                environment: ["LD_PRELOAD": WrongClock.library, "APUS_CLOCK_OFFSET": "\(hours * 3600)"])
            var seen = 0
            for _ in 0..<150 where seen < 25 {
                try await Task.sleep(for: .milliseconds(100))
                guard let epoch = Frames(log).lines.first?.epoch else { continue }
                // The cluster knows the camera now.
                if viewer == nil { viewer = try cluster.start("watch", "cam", "--log", cluster.file("w")) }
                seen = Frames(cluster.file("w")).lines.count { $0.epoch == epoch }
            }
            #expect(seen >= 25, "run \(run) under a clock of \(hours) h")
            // As a camera that loses its power.
            kill(camera.processIdentifier, SIGKILL)
            camera.waitUntilExit()
        }
        viewer?.terminate()
        viewer?.waitUntilExit()
        let runs = (0..<4).map { Frames(cluster.file("d\($0)")) }
        let epochs = runs.compactMap { $0.lines.first?.epoch }
        #expect(epochs.count == 4 && epochs == epochs.sorted() && Set(epochs).count == 4, "\(epochs)")
        for run in runs {
            let epoch = run.lines.first?.epoch
            #expect(run.lines.allSatisfy { $0.epoch == epoch })
            var seen = Frames(cluster.file("w"))
            seen.lines.removeAll { $0.epoch != epoch }
            #expect(seen.lostCount == 0 && seen.doubledCount == 0 && seen.differing(from: run) == 0)
        }
    }
}
