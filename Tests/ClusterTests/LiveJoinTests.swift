import Foundation
import Testing

/// What a viewer sees first, at every node of a real cluster.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct LiveJoinTests {
    @Test("Who watches again after a pause begins with the live picture at every node, and loses nothing after it (D7)")
    func watchAgain() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 29_300)
        defer { cluster.down() }
        try cluster.start(
            "device", "--id", "cam", "--test-pattern", "320x240@25", "--node", "1", "--log", cluster.file("d"))
        _ = try await cluster.primary(of: "cam/0")
        for round in ["first", "second"] {
            let viewers = try (1...3).map { node in
                try cluster.start(
                    "watch", "cam", "--node", "\(node)", "--seconds", "3", "--log", cluster.file("\(round)\(node)"))
            }
            for viewer in viewers { viewer.waitUntilExit() }
            // The pause is what is tested: longer than a camera's key frames are apart, shorter than a channel is kept.
            if round == "first" { try await Task.sleep(for: .seconds(10)) }
        }
        let sent = Frames(cluster.file("d"))
        let keys = sent.lines.filter { $0.key && $0.track == 0 }
        for node in 1...3 {
            let seen = Frames(cluster.file("second\(node)"))
            let first = try #require(seen.lines.first { $0.bytes > 0 && $0.key }, "node \(node) shows nothing")
            let newest = try #require(keys.last { $0.at_ns < first.at_ns })
            let age = Double(first.at_ns - (sent.lines.first { $0.seq == first.seq }?.at_ns ?? 0)) / 1e6
            // One key frame may be on its way.
            let before = keys.last { $0.seq < newest.seq }?.seq ?? newest.seq
            #expect(first.seq >= before, "node \(node) began \(age) ms late")
            #expect(seen.lines.count > 20)
            #expect(seen.lostCount == 0 && seen.doubledCount == 0 && seen.differing(from: sent) == 0)
        }
    }
}
