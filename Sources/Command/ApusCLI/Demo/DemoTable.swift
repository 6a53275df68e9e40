import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Redraws nodes, channels and viewers every second, until cancelled.
struct DemoTable: Sendable {
    let stage: DemoStage
    /// The console's; nil if no node has made one.
    let link: SignInLink?

    func run() async throws {
        var tallies = stage.viewerNames.map { FrameTally(path: stage.frameLog($0), keepsHashes: false) }
        let isTerminal = isatty(STDOUT_FILENO) == 1
        while !Task.isCancelled {
            try stage.requireClients()
            for index in tallies.indices { tallies[index].update() }
            let reports = await NodeStanding.gather(stage.cluster)
            var lines = NodeStanding.table(reports) + [""]
            lines += Self.viewers(stage, tallies)
            if let link { lines += [""] + link.lines }
            lines += [
                "", "Another link: `apus admin sign-in --dir \(stage.cluster.directory.path)`.",
                "Kill a node with `apus cluster kill N --dir \(stage.cluster.directory.path)`. Ctrl-C ends it.",
            ]
            // On a terminal: move the cursor home, clear, and print everything in one write.
            Console.say(
                isTerminal ? "\u{1B}[H\u{1B}[2J" + lines.joined(separator: "\n") : lines.joined(separator: "\n") + "\n")
            try await Task.sleep(for: .seconds(1))
        }
    }

    /// The viewers' table.
    static func viewers(_ stage: DemoStage, _ tallies: [FrameTally]) -> [String] {
        var rows = [["VIEWER", "FIRST NODE", "FRAMES", "LOST", "TWICE", "LONGEST GAP"]]
        for (name, tally) in zip(stage.viewerNames, tallies) {
            rows.append([
                name, stage.endpoint(name).name, "\(tally.frames)", "\(tally.lost)", "\(tally.doubled)",
                "\(Int(tally.gapLongest.milliseconds)) ms",
            ])
        }
        return TextTable.lines(rows)
    }
}
