import ApusClient
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// `apus-bench sessions`: the memory and CPU time of idle device sessions at a node, and what happens to sessions and
/// streams when a node with many sessions dies.
struct BenchSessionsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions",
        abstract: "Measure the memory of idle device sessions, and their return after a node's death.",
        discussion: """
            A cluster of three nodes. All sessions are at the first one; the entities of their devices are spread over \
            all three. This process holds the clients, and needs as many open files as there are sessions.
            """)

    @Option(help: "Open this number of device sessions at one node.") var sessions = 15_000
    @Option(help: "Have this number of device sessions at the node that is killed.") var lost = 5_000
    @Option(help: "Kill a node in this number of rounds.") var kills = 3
    @Option(help: "Stream from this number of cameras while a node is killed, at the other nodes.") var channels = 8
    @Option(help: "Use this number of viewers per camera.") var viewers = 5
    @Option(help: "Set the first port of the cluster.") var basePort = 29_200
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// Sessions that connect at once.
    private static let batchCount = 64
    /// How long the cluster is left alone before memory and CPU time are measured.
    private static let idle = Duration.seconds(20)

    func validate() throws {
        guard sessions >= 0, lost > 0, channels > 0, viewers > 0 else {
            throw ValidationError("numbers must be positive")
        }
    }

    func run() async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        // Those that come back must not delay the measurement of those that stay.
        let streaming = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        var result = SessionsResult()
        if sessions > 0 {
            try await withStage(group) { stage in try await measureIdle(on: stage, into: &result) }
        }
        for round in 0..<kills {
            try await withStage(group) { stage in
                try await kill(round, on: stage, stage.with(streaming), into: &result)
            }
        }
        for group in [group, streaming] { try await group.shutdownGracefully() }
        print(result.table)
        if json { print(try result.json()) }
        for miss in result.misses { print("MISSED  \(miss)") }
        if !result.misses.isEmpty { throw ExitCode.failure }
    }

    private func withStage(
        _ group: MultiThreadedEventLoopGroup, _ body: (SignInStage) async throws -> Void
    ) async throws {
        let stage = try SignInStage(
            executable: try BenchPrograms.apus(), nodes: 3,
            directory: "\(NSTemporaryDirectory())/apus-sessions-\(getpid())", basePort: basePort, group: group)
        defer { stage.down() }
        try await body(stage)
    }

    // MARK: Idle sessions

    private func measureIdle(on stage: SignInStage, into result: inout SessionsResult) async throws {
        let names = stage.local.mark.nodes.map(\.name)
        var devices: [BenchDevice] = []
        defer { for device in devices { device.close() } }
        try await Task.sleep(for: Self.idle)
        // Of nodes without clients: what they allocate once counts as well.
        let before = try MemorySample(stage, names)
        let beganAt = MonotonicTime.now()
        let busy = try stage.busySeconds(of: names[0])
        try await open(sessions, at: names[0], of: stage, into: &devices)
        let (passed, used) = (MonotonicTime.now() - beganAt, try stage.busySeconds(of: names[0]) - busy)
        // A node that has no room sends the others on.
        let counts = try names.map { name in
            let endpoint = try stage.local.endpoint(of: name)
            return devices.count { $0.endpoint == endpoint }
        }
        result.opened(counts, seconds: passed.milliseconds / 1000, nodeSeconds: used)
        say("\(devices.count) sessions after \(Int(passed.milliseconds / 1000)) s")
        try await Task.sleep(for: Self.idle)
        result.grew(from: before, to: try MemorySample(stage, names))
        let (idleFrom, idleBusy) = (MonotonicTime.now(), try stage.busySeconds(of: names[0]))
        try await Task.sleep(for: Self.idle)
        let idle = (MonotonicTime.now() - idleFrom).milliseconds / 1000
        result.idled(seconds: idle, nodeSeconds: try stage.busySeconds(of: names[0]) - idleBusy)
        result.ended(devices.count { !$0.isOnline })
        let pki = "\(stage.local.directory.path)/pki"
        result.tlsByteCount = try TLSMemory.byteCount(
            certificateFile: "\(pki)/clients.pem", keyFile: "\(pki)/clients.key",
            authorityFile: stage.local.authorityFile, count: 1_000)
    }

    /// Opens sessions, some at once.
    ///
    /// - Throws: 10005 if one is not open after 30 s.
    private func open(
        _ count: Int, at node: String, of stage: SignInStage, into devices: inout [BenchDevice]
    ) async throws {
        let first = devices.count
        for start in stride(from: 0, to: count, by: Self.batchCount) {
            var batch: [BenchDevice] = []
            for number in start..<min(start + Self.batchCount, count) {
                batch.append(try await BenchDevice(first + number, at: node, of: stage))
            }
            devices += batch
            let deadline = MonotonicTime.now() + .seconds(30)
            while !batch.allSatisfy(\.isOnline) {
                guard MonotonicTime.now() < deadline else {
                    throw ApusError(.deadlineExceeded, "a session did not open after \(devices.count)")
                }
                try await Task.sleep(for: .milliseconds(2))
            }
        }
    }

    // MARK: A node's death

    /// - Parameter streaming: the stage of the cameras and viewers.
    private func kill(
        _ round: Int, on stage: SignInStage, _ streaming: SignInStage, into result: inout SessionsResult
    ) async throws {
        let names = stage.local.mark.nodes.map(\.name)
        let victim = names[round % names.count]
        let others = names.filter { $0 != victim }
        let cast = try await streaming.startCameras(channels, at: others)
        defer { cast.leave() }
        for number in 0..<channels * viewers {
            let camera = cast.publishers[number % channels].device
            cast.add(
                try await streaming.viewer(camera, number, at: others[(number / channels) % others.count]),
                of: number % channels)
        }
        var devices: [BenchDevice] = []
        defer { for device in devices { device.close() } }
        try await open(lost, at: victim, of: stage, into: &devices)
        try await cast.waitUntilWatched(frames: 25)
        try await Task.sleep(for: .seconds(3))
        let killedAt = MonotonicTime.now()
        try stage.kill(victim)
        let backs = try await Self.backs(of: devices, since: killedAt)
        try await Task.sleep(for: .seconds(1))
        let endedAt = MonotonicTime.now()
        let gaps = cast.viewers.map { $0.viewer.gap(from: killedAt, to: endedAt) }
        for (entry, gap) in zip(cast.viewers, gaps) where gap > .seconds(1) {
            say("a viewer of \(cast.publishers[entry.channel].device) had a gap of \(Int(gap.milliseconds)) ms")
        }
        let frames = cast.viewers.reduce(into: (lost: 0, doubled: 0)) {
            $0.lost += $1.viewer.lostCount
            $0.doubled += $1.viewer.doubledCount
        }
        result.killed(
            backs: backs, of: devices.count, gaps: gaps, lost: frames.lost, doubled: frames.doubled)
        say("kill \(round + 1)/\(kills): \(result.killLine)")
    }

    /// The times until sessions were at another node; those that are at none after 30 s are left out.
    private static func backs(of devices: [BenchDevice], since killedAt: MonotonicTime) async throws -> [Duration] {
        while MonotonicTime.now() - killedAt < .seconds(30) {
            try await Task.sleep(for: .milliseconds(250))
            let backs = devices.compactMap { $0.connected(since: killedAt) }
            if backs.count == devices.count { return backs }
        }
        return devices.compactMap { $0.connected(since: killedAt) }
    }

    private func say(_ line: String) { BenchScope.say(line) }
}

/// A device that is signed in and does nothing.
///
/// Concurrency model: its session calls back on its event loop; what others read is behind a `Mutex`.
final class BenchDevice: Sendable {
    private final class Link: Sendable {
        let isOnline = Mutex(false)
        let connection = Mutex<(at: MonotonicTime, endpoint: HostPort)?>(nil)
    }

    private let link: Link
    private let session: ClientSession

    init(_ number: Int, at node: String, of stage: SignInStage) async throws(ApusError) {
        let name = "device-\(number)"
        // As in a cluster with many accounts, none of which reaches its share of a node.
        let account = AccountID(unchecked: "account-\(number % 64)")
        let link = Link()
        self.link = link
        session = try await stage.session(
            .device, AccessID(unchecked: name), account: account, device: DeviceID(unchecked: name), first: node
        ) { state, _ in
            link.isOnline.withLock { $0 = state == .online }
        }
        session.watchConnections { endpoint in link.connection.withLock { $0 = (.now(), endpoint) } }
    }

    var isOnline: Bool { link.isOnline.withLock { $0 } }

    /// How long after this time its newest connection was made; nil if it is older.
    func connected(since time: MonotonicTime) -> Duration? {
        link.connection.withLock { connection in
            connection.flatMap { $0.at > time ? $0.at - time : nil }
        }
    }

    /// The node of its newest connection.
    var endpoint: HostPort? { link.connection.withLock { $0?.endpoint } }

    func close() { session.close() }
}
