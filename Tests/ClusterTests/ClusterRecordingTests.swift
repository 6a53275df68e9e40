import ApusClient
import ApusContract
import ApusCore
import ApusCrypto
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Recordings of cameras in the cluster (IV-E2 to IV-E5, docs/cluster-recordings.md), at real nodes.
@Suite("Recordings in the cluster", .serialized, .timeLimit(.minutes(5)))
struct ClusterRecordingTests {
    /// A frame of a recording, as its segment has it.
    private struct Recorded: Hashable {
        var epoch: UInt32
        var sequence: UInt64
        var sha256: String
    }

    /// The frames of all segments of a play list, which any node serves.
    private static func frames(
        _ session: ClientSession, _ cluster: Cluster, node: Int, of device: String
    ) async throws -> [Recorded] {
        let source = ClientSession.RecordedSource(DeviceID(unchecked: device))
        let address = try await session.clusterRecordingAddress(
            of: source, from: Date(timeIntervalSinceNow: -3600), to: nil)
        let host = "http://127.0.0.1:\(cluster.httpPort(node))"
        let list = String(decoding: try await load(host + address.playList), as: UTF8.self)
        #expect(list.hasPrefix("#EXTM3U\n"), "\(list.prefix(200))")
        let base = (host + address.playList).split(separator: "/", omittingEmptySubsequences: false).dropLast()
            .joined(separator: "/")
        var found: [Recorded] = []
        var names: [String] = []
        for line in list.split(separator: "\n") where !line.hasPrefix("#") && !names.contains(String(line)) {
            names.append(String(line))
        }
        for name in names {
            let served = try await load("\(base)/\(name)")
            let object = try stored(name, cluster)
            #expect(object.starts(with: served), "\(name) is served as it is stored, without its footer")
            let count = try #require(
                SegmentFooter.byteCount(trailer: Array(object.suffix(SegmentFooter.trailerByteCount))), "\(name)")
            let footer = try SegmentFooter(decoding: Array(object.suffix(count)), objectByteCount: object.count)
            for frame in footer.frames {
                let digest = SHA256.hash(data: Array(object[frame.range]))
                found.append(
                    Recorded(
                        epoch: frame.position.epoch, sequence: frame.position.sequence,
                        sha256: Hexadecimal.text(digest)))
            }
        }
        return found
    }

    /// The object of a segment `HOUR-OBJECT.mp4`, as the directory of objects has it.
    private static func stored(_ name: String, _ cluster: Cluster) throws -> [UInt8] {
        let parts = name.dropLast(".mp4".count).split(separator: "-", maxSplits: 1)
        let suffix = "/\(parts[0])+/\(parts[1])"
        let files = try FileManager.default.subpathsOfDirectory(atPath: cluster.directory)
        let file = try #require(files.first { $0.hasSuffix(suffix) }, "\(name)")
        return [UInt8](try Data(contentsOf: URL(fileURLWithPath: cluster.file(file))))
    }

    private static func load(_ url: String) async throws -> Data {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/curl")
        process.arguments = ["-s", "-S", "--fail", "--max-time", "30", url]
        let output = Pipe()
        process.standardOutput = output
        try process.run()
        let data = output.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        try #require(process.terminationStatus == 0, "\(url)")
        return data
    }

    /// Compares a recording with the log of its camera, from the first recorded frame on.
    private static func check(_ found: [Recorded], _ log: String) throws {
        let sent = Frames(log).lines
        let first = try #require(found.map(\.sequence).min())
        let expected = sent.filter { $0.seq >= first }
        let known = Dictionary(found.map { ($0.sequence, $0.sha256) }) { first, _ in first }
        let missing = expected.filter { known[$0.seq] != $0.sha256 }.map(\.seq)
        #expect(missing.isEmpty, "\(missing.count) of \(expected.count) are missing: \(missing.prefix(20))")
        #expect(Set(found.map(\.sequence)).count == found.count, "frames are doubled")
        #expect(expected.count > 100)
    }

    @Test("The node of a camera is killed, twice: every frame is in the recording once (issue 45)")
    func killed() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 28_760)
        defer { cluster.down() }
        let log = cluster.file("cam.frames")
        let camera = try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--log", log)
        let primary = try await cluster.primary(of: "cam/0")
        let session = try cluster.session(node: primary % 3 + 1, token: try cluster.token("--role", "app"))
        let source = ClientSession.RecordedSource(DeviceID(unchecked: "cam"))
        let plan = try await eventually { () throws(ApusError) in
            try await session.record(source, .continuous, days: 7)
        }
        #expect(plan.status == .inUse)
        try await Task.sleep(for: .seconds(14))
        for _ in 0..<2 {
            let victim = try await cluster.primary(of: "cam/0")
            kill(try cluster.pid(victim), SIGKILL)
            try await Task.sleep(for: .seconds(2))
            // Every finished second can be read soon after the kill, at another node.
            let at = try #require(Frames(log).lines.last).seq
            let other = (1...3).first { $0 != victim } ?? 1
            let early = try await eventually { () throws(ApusError) in
                do { return try await Self.frames(session, cluster, node: other, of: "cam") } catch {
                    throw error as? ApusError ?? ApusError(.unavailable, "\(error)")
                }
            }
            #expect((early.map(\.sequence).max() ?? 0) + 50 >= at, "read soon after the kill")
            #expect(try cluster.run("cluster", "restart", "\(victim)").status == 0)
            try await Task.sleep(for: .seconds(6))
        }
        camera.end()
        try await Task.sleep(for: .seconds(7))
        let found = try await Self.frames(session, cluster, node: 1, of: "cam")
        try Self.check(found, log)
        // The log of no node keeps what is sealed.
        let times = try await session.clusterRecordings(
            of: source, from: Date(timeIntervalSinceNow: -3600), to: Date(timeIntervalSinceNow: 60))
        #expect(times.count == 1, "\(times)")
    }
}
