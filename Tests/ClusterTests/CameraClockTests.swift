import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// Cameras whose clocks are wrong, by way of Debian's faketime.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct CameraClockTests {
    private static let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
    private static var hasFaketime: Bool { FileManager.default.fileExists(atPath: library) }

    @Test(
        "A camera goes on the air after each restart, whatever its clock says, and its viewer goes on with it (IV-C1)",
        .enabled(if: hasFaketime, "Debian's package faketime is not installed"))
    func clocks() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 29_350)
        defer { cluster.down() }
        // The token is made by the cluster's clock: what is tested are the frames, not the sign-in.
        let token = try cluster.run("admin", "token", "--role", "device", "--device", "cam").output
            .trimmingCharacters(in: .whitespacesAndNewlines)
        var viewer: Process?
        for (run, offset) in ["+0", "-1h", "+2h", "+0"].enumerated() {
            let log = cluster.file("d\(run)")
            let camera = try cluster.start(
                ["device", "--id", "cam", "--test-pattern", "160x120@25", "--token", token, "--log", log],
                environment: [
                    "LD_PRELOAD": Self.library, "FAKETIME": offset, "FAKETIME_NO_CACHE": "1",
                    // Its name before and since version 0.9.11.
                    "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                ],
                // faketime moves the environment of the first program, and a Swift program then finds no arguments.
                launcher: ["/bin/bash", "-c", "exec -a apus \"$0\" \"$@\""])
            var seen = 0
            for _ in 0..<150 where seen < 25 {
                try await Task.sleep(for: .milliseconds(100))
                guard let epoch = Frames(log).lines.first?.epoch else { continue }
                // The cluster knows the camera now.
                if viewer == nil { viewer = try cluster.start("watch", "cam", "--log", cluster.file("w")) }
                seen = Frames(cluster.file("w")).lines.count { $0.epoch == epoch }
            }
            #expect(seen >= 25, "run \(run) under a clock of \(offset)")
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
