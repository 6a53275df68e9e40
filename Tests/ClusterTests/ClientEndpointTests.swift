import ApusClient
import ApusCore
import Foundation
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// Bad input at the client endpoint: a clear number for the one, nothing at all for the others (IV-A6, D13).
@Suite(.serialized, .timeLimit(.minutes(5)))
struct ClientEndpointTests {
    @Test("Bad clients get their number, cost a bounded amount, and leave a good viewer unharmed")
    func badClients() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_300)
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25", "--log", cluster.file("d"))
        try await Task.sleep(for: .seconds(1))
        let good = try cluster.start("watch", "cam", "--seconds", "25", "--log", cluster.file("w"))
        let before = try residentKiB(of: 1, cluster)

        try refusals(cluster)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let raw = RawEndpoint(port: cluster.endpointPort(1), authority: cluster.file("pki/ca.pem"), group: group)
        #expect(try await raw.closesAfter(tls: false, bytes: Array("GET / HTTP/1.0\r\n\r\n".utf8)))
        #expect(try await raw.closesAfter(tls: true, bytes: Array(repeating: 0x41, count: 4096)))
        // A header that claims 4 GiB; a request before the hello.
        #expect(try await raw.closesAfter(tls: true, bytes: [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0]))
        #expect(try await raw.closesAfter(tls: true, bytes: [0, 0, 0, 8, 0x10, 0, 0, 3, 0, 0, 0, 1]))
        #expect(try await raw.closesAfter(tls: true, bytes: [0, 0, 0, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0xff]))
        let idle = try await raw.openWithoutHandshake(2000)
        let late = try cluster.run("watch", "cam", "--seconds", "3", "--log", cluster.file("late"))
        #expect(late.status == 0, "\(late.all)")
        #expect(Frames(cluster.file("late")).lines.count > 25)
        for channel in idle { try? await channel.close() }
        try await group.shutdownGracefully()

        good.terminate()
        good.waitUntilExit()
        let seen = Frames(cluster.file("w"))
        #expect(seen.lines.count > 100)
        #expect(seen.lostCount == 0 && seen.doubledCount == 0)
        #expect(try residentKiB(of: 1, cluster) - before < 300_000)
    }

    @Test("A second player of a channel in one session ends with 21021, and the first goes on (IV-C14)")
    func secondPlayer() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_340)
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25")
        let session = try cluster.session(node: 1, token: try cluster.token("--role", "app"))
        defer { session.close() }
        let cam = DeviceID(unchecked: "cam")
        // A player of a device that is not known yet ends.
        try await eventually { () throws(ApusError) in try await session.readProperty(of: cam) }
        let frameCount = Atomic(0)
        let ended = Mutex<ApusError?>(nil)
        let first = Player(session: session, device: cam) { _ in
            frameCount.add(1, ordering: .relaxed)
        }
        first.start()
        defer { first.stop() }
        for _ in 0..<200 where frameCount.load(ordering: .relaxed) < 10 { try await Task.sleep(for: .milliseconds(50)) }
        let second = Player(session: session, device: cam) { _ in
        } onEvent: { event in
            if case .ended(let error) = event { ended.withLock { $0 = error } }
        }
        second.start()
        for _ in 0..<100 where ended.withLock({ $0 == nil }) { try await Task.sleep(for: .milliseconds(50)) }
        #expect(ended.withLock { $0?.code } == .connectionExists)
        let before = frameCount.load(ordering: .relaxed)
        try await Task.sleep(for: .seconds(1))
        #expect(before >= 10 && frameCount.load(ordering: .relaxed) > before + 10)
    }

    private func refusals(_ cluster: Cluster) throws {
        let foreign = try cluster.run("admin", "token", "--role", "app", "--account", "other")
        let token = foreign.output.trimmingCharacters(in: .whitespacesAndNewlines)
        let cases: [(arguments: [String], number: String)] = [
            (["watch", "cam", "--token", "not.a.token"], "12001"),
            (["watch", "cam", "--token", String(token.dropLast(8)) + "AAAAAAAA"], "12001"),
            (["watch", "cam", "--token", token], "8003"),
            (["watch", "nobody"], "8002"),
        ]
        for (arguments, number) in cases {
            let outcome = try Cluster.run(arguments + ["--seconds", "10", "--dir", cluster.directory])
            #expect(outcome.status != 0 && outcome.errors.contains(number), "\(arguments): \(outcome.all)")
        }
    }

    private func residentKiB(of node: Int, _ cluster: Cluster) throws -> Int {
        let pid = Cluster.text(cluster.file("n\(node)/pid")).trimmingCharacters(in: .whitespacesAndNewlines)
        let line = Cluster.text("/proc/\(pid)/status").split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return Int(line?.split(separator: " ").dropFirst().first ?? "") ?? 0
    }
}

/// Everyday faults say what is wrong and what to do.
@Suite(.serialized, .timeLimit(.minutes(3)))
struct FaultTests {
    @Test("A clip that cannot be published is named with 10026", arguments: ["missing", "text", "folder"])
    func clips(_ what: String) throws {
        let folder = NSTemporaryDirectory() + "/apus-clip-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let path = what == "folder" ? folder : "\(folder)/clip.mp4"
        if what == "text" { try "no video".write(toFile: path, atomically: true, encoding: .utf8) }
        let cluster = try Cluster(nodes: 1, basePort: 28_400)
        defer { cluster.down() }
        let outcome = try cluster.run("device", "--id", "cam", "--file", path, "--seconds", "10")
        #expect(
            outcome.status != 0 && outcome.errors.contains("10026") && outcome.errors.contains(path), "\(outcome.all)")
    }

    @Test("A port in use, a foreign folder and a full disk are said with their numbers")
    func surroundings() throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_500)
        defer { cluster.down() }
        let other = NSTemporaryDirectory() + "/apus-other-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: other) }
        let taken = try Cluster.run(["cluster", "up", "--nodes", "1", "--dir", other, "--base-port", "28500"])
        #expect(taken.status != 0 && taken.all.contains("28500"), "\(taken.all)")
        let foreign = try Cluster.run(["cluster", "up", "--nodes", "1", "--dir", "/usr", "--base-port", "28510"])
        #expect(foreign.status != 0 && foreign.all.contains("10020"), "\(foreign.all)")
        try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25")
        // The camera, which was only just started, is not known yet at first.
        let deadline = Date(timeIntervalSinceNow: 10)
        var full: Cluster.Outcome
        repeat {
            full = try cluster.run("watch", "cam", "--seconds", "8", "--record", "/dev/full")
        } while full.errors.contains("8002") && Date() < deadline
        #expect(full.status != 0 && full.errors.contains("10021"), "\(full.all)")
    }

    @Test("A viewer without an endpoint in reach says so")
    func noRoute() throws {
        let cluster = try Cluster(nodes: 1, basePort: 28_600)
        defer { cluster.down() }
        let outcome = try Cluster.run([
            "watch", "cam", "--connect", "127.0.0.1:9", "--ca", cluster.file("pki/ca.pem"), "--token", "x", "--seconds",
            "3",
        ])
        #expect(outcome.errors.contains("127.0.0.1:9"), "\(outcome.all)")
    }
}
