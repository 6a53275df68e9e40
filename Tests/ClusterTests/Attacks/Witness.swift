import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The good clients of a cluster while somebody attacks it: a camera, a viewer and a flow through the relay, and an
/// operator who asks for the node's health. None of them may notice.
final class Witness {
    /// What the good clients may lose and the node may take, over the whole attack.
    struct Bounds {
        /// The longest that `/healthz` may take.
        var health = Duration.seconds(1)
        /// By how much the node's resident memory may have grown at its worst.
        var residentMiB = 300
        /// Log lines of the node.
        var logLines = 400
    }

    private let cluster: Cluster
    private let messageCount: Int
    private let viewer: Process
    private let relay: Process
    private let linesBefore: Int
    private let residentBefore: Int
    private var residentMax = 0
    private var healthLongest = Duration.zero
    private var unhealthyCount = 0

    /// Starts the good clients at the first node, and waits until they have what they came for.
    ///
    /// - Parameter seconds: how long the flow through the relay lasts; it must end by itself.
    init(_ cluster: Cluster, device: String = "good", relaySeconds seconds: Int = 12) async throws {
        self.cluster = cluster
        messageCount = seconds * 45
        try cluster.start("device", "--id", device, "--test-pattern", "320x240@25", "--log", cluster.file("good.sent"))
        // A device that nobody has met yet cannot be watched.
        let sent = cluster.file("good.sent")
        let began = await waited(.seconds(10)) { Frames(sent).lines.count > 5 }
        try #require(began != nil, "the good camera sent nothing before the attack")
        viewer = try cluster.start(
            ["watch", device, "--seconds", "120", "--log", cluster.file("good.seen")],
            output: cluster.file("good.viewer"), errors: cluster.file("good.viewer.errors"))
        // 50 messages a second, each there and back before the next.
        relay = try cluster.start(
            ["relay", "check", "--count", "\(messageCount)", "--interval", "20"], output: cluster.file("good.relay"),
            errors: cluster.file("good.relay.errors"))
        let path = cluster.file("good.seen")
        let first = await waited(.seconds(10)) { Frames(path).lines.count > 25 }
        try #require(first != nil, "the good viewer saw nothing before the attack")
        linesBefore = Cluster.text(cluster.file("n1/log")).utf8.count { $0 == UInt8(ascii: "\n") }
        residentBefore = try cluster.residentMiB(1)
    }

    /// One look at the node; to be called all through the attack.
    func look() throws {
        let node = NodeView(1, of: cluster)
        let began = ContinuousClock().now
        if node.get("/healthz")?.status != 200 { unhealthyCount += 1 }
        healthLongest = max(healthLongest, ContinuousClock().now - began)
        residentMax = max(residentMax, try cluster.residentMiB(1))
    }

    /// Looks every 100 ms until the body's work is done or the time is over.
    func watch(for span: Duration, until isDone: () -> Bool = { false }) async throws {
        let end = ContinuousClock().now + span
        while ContinuousClock().now < end, !isDone() {
            try look()
            try await Task.sleep(for: .milliseconds(100))
        }
    }

    /// Ends the good clients and says what they missed.
    func testify(_ bounds: Bounds = Bounds(), sourceLocation: SourceLocation = #_sourceLocation) async throws {
        try look()
        // The flow is waited for; it says what came back.
        let relay = relay
        _ = await waited(.seconds(30), every: .milliseconds(50)) { !relay.isRunning }
        let said = Cluster.text(cluster.file("good.relay")) + Cluster.text(cluster.file("good.relay.errors"))
        #expect(said.contains("\(messageCount) of \(messageCount) messages"), "\(said)", sourceLocation: sourceLocation)
        viewer.terminate()
        viewer.waitUntilExit()
        let (sent, seen) = (Frames(cluster.file("good.sent")), Frames(cluster.file("good.seen")))
        let logged = Cluster.text(cluster.file("n1/log")).utf8.count { $0 == UInt8(ascii: "\n") } - linesBefore
        #expect(
            seen.lostCount == 0 && seen.doubledCount == 0,
            "\(seen.gaps); \(Cluster.text(cluster.file("good.viewer.errors")))", sourceLocation: sourceLocation)
        #expect(seen.differing(from: sent) == 0, sourceLocation: sourceLocation)
        // The viewer was still there at the end of the attack.
        let behind = Int(sent.lines.last?.seq ?? 0) - Int(seen.lines.last?.seq ?? 0)
        #expect(behind < 50, "the viewer ended \(behind) frames before its camera", sourceLocation: sourceLocation)
        #expect(unhealthyCount == 0, "of /healthz", sourceLocation: sourceLocation)
        #expect(healthLongest <= bounds.health, "/healthz", sourceLocation: sourceLocation)
        #expect(
            residentMax - residentBefore <= bounds.residentMiB, "MiB, from \(residentBefore)",
            sourceLocation: sourceLocation)
        #expect(logged <= bounds.logLines, "log lines", sourceLocation: sourceLocation)
    }
}

extension Cluster {
    /// The resident memory of a node.
    func residentMiB(_ node: Int) throws -> Int {
        let line = Self.text("/proc/\(try pid(node))/status").split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return (Int(line?.split(separator: " ").dropFirst().first ?? "") ?? 0) / 1024
    }
}
