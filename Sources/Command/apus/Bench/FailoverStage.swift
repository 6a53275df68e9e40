import ApusClient
import ApusCluster
import ApusContract
import ApusCore
import ApusMedia
import ApusSessions
import ApusStorage
import Foundation
import Logging
import NIOCore
import NIOPosix
import Synchronization

/// What a failover round plays on: a local cluster of real processes, publishers and viewers.
///
/// Isolation: used by the bench's one task; publishers and viewers live on their own event loops.
final class FailoverStage {
    let local: LocalCluster
    private let executable: String
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let log: Logger
    private let ownership: LocalOwnershipStore

    init(directory: String, executable: String, basePort: Int) async throws {
        self.executable = executable
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .error
        self.log = log
        try Self.run(executable, ["cluster", "up", "--nodes", "3", "--dir", directory, "--base-port", "\(basePort)"])
        local = try LocalCluster(directory: directory)
        ownership = try await LocalOwnershipStore(
            path: "\(local.directory.path)/shared/ownership.sqlite", cluster: local.cluster)
    }

    func down() async {
        try? Self.run(executable, ["cluster", "down", "--dir", local.directory.path])
        try? await group.shutdownGracefully()
    }

    static func run(_ executable: String, _ arguments: [String]) throws {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: executable)
        process.arguments = arguments
        process.standardOutput = FileHandle.nullDevice
        process.standardError = FileHandle.nullDevice
        try process.run()
        process.waitUntilExit()
        guard process.terminationStatus == 0 else {
            throw ApusError(
                .internalFailure, "apus \(arguments.joined(separator: " ")) ended with \(process.terminationStatus)")
        }
    }

    // MARK: Nodes

    func signal(_ node: NodeName, _ number: CInt) throws(ApusError) {
        guard NodeProcess(node.rawValue, in: local.directory).signal(number) else {
            throw ApusError(.internalFailure, "the node \(node) has no process to signal")
        }
    }

    /// The map as the store holds it.
    func map() async throws(ApusError) -> ClusterMap {
        guard let value = try await ownership.read() else {
            throw ApusError(.storageFailed, "the ownership store is empty")
        }
        return try ClusterMap(decoding: value.bytes, revision: value.revision, cluster: local.cluster)
    }

    /// Starts what does not run, and waits until every node is up and every shard is where it belongs.
    func heal() async throws {
        for node in local.mark.nodes {
            _ = NodeProcess(node.name, in: local.directory).signal(SIGCONT)
            if NodeProcess(node.name, in: local.directory).pid == nil {
                try Self.run(executable, ["cluster", "restart", node.name, "--dir", local.directory.path])
            }
        }
        try await rest(upCount: local.mark.nodes.count)
    }

    private func rest(upCount: Int) async throws {
        let deadline = MonotonicTime.now() + .seconds(60)
        while MonotonicTime.now() < deadline {
            let map = try await map()
            let placement = ShardPlacement(of: map)
            let isSettled =
                map.members.count { $0.state == .up } == upCount
                && map.shards.indices.allSatisfy {
                    map.shards[$0].owner == placement[$0].owner && map.shards[$0].standby == placement[$0].standby
                }
            if isSettled { return }
            try await Task.sleep(for: .milliseconds(100))
        }
        throw ApusError(.deadlineExceeded, "the cluster did not come to rest")
    }

    /// Drains a node and stops it; returns when every shard is where it belongs without it.
    func drain(_ node: NodeName) async throws {
        try Self.run(executable, ["cluster", "drain", node.rawValue, "--dir", local.directory.path])
        try await rest(upCount: local.mark.nodes.count - 1)
    }

    /// Device ids whose shards a node owns or stands by, as the round wants.
    func devices(
        _ count: Int, prefix: String, where fits: (_ owner: NodeName, _ standby: NodeName) -> Bool
    ) async throws(ApusError) -> [DeviceID] {
        let map = try await map()
        var found: [DeviceID] = []
        var number = 0
        while found.count < count, number < 100_000 {
            number += 1
            let device = DeviceID(unchecked: "\(prefix)-\(number)")
            let shard = ShardID(of: device)
            guard let owner = map.owner(of: shard), let standby = map.standby(of: shard) else { continue }
            if fits(owner.id.name, standby.id.name) { found.append(device) }
        }
        return found
    }

    // MARK: Clients

    func publisher(_ device: DeviceID, door: NodeName) async throws(ApusError) -> BenchPublisher {
        let session = try await session(.device, AccessID(unchecked: device.rawValue), device: device, door: door)
        return BenchPublisher(device: device, session: session)
    }

    func viewer(_ device: DeviceID, number: Int, door: NodeName) async throws(ApusError) -> BenchViewer {
        let access = AccessID(unchecked: "v\(number)-\(UInt32.random(in: 0...(.max)))")
        return BenchViewer(device: device, session: try await session(.app, access, device: nil, door: door))
    }

    private func session(
        _ role: Session.Role, _ access: AccessID, device: DeviceID?, door: NodeName
    ) async throws(ApusError) -> ClientSession {
        let token = try await local.mint(role: role, access: access, device: device)
        let first = try local.door(of: door.rawValue)
        let configuration = ClientConfiguration(
            doors: [first] + local.doors.filter { $0 != first }, authorityFile: local.authorityFile, token: token,
            role: role == .device ? .device : .app)
        let session = try ClientSession(configuration: configuration, eventLoop: group.next(), log: log)
        session.start()
        return session
    }
}

/// A camera of the bench: 25 frames a second, a key frame every 2 s; 1 Mb/s unless its frames are smaller.
final class BenchPublisher: Sendable {
    static let frameInterval = TimeAmount.milliseconds(40)
    let device: DeviceID
    private let session: ClientSession
    private let publisher: Publisher
    private let count = Mutex(0)
    private let isStopped = Mutex(false)
    private let pictureByteCount: Int
    private let keyByteCount: Int

    init(device: DeviceID, session: ClientSession, pictureByteCount: Int = 4_700, keyByteCount: Int = 20_000) {
        self.pictureByteCount = pictureByteCount
        self.keyByteCount = keyByteCount
        self.device = device
        self.session = session
        publisher = Publisher(session: session, limits: PublisherLimits())
    }

    /// Frames that were handed to the cluster.
    var sent: Int { count.withLock { $0 } }

    func start() {
        publisher.start()
        let delay = TimeAmount.milliseconds(Int64.random(in: 0..<40))
        session.eventLoop.scheduleRepeatedTask(initialDelay: delay, delay: Self.frameInterval) { [self] task in
            if isStopped.withLock({ $0 }) { return task.cancel() }
            let number = count.withLock { count in
                defer { count += 1 }
                return count
            }
            let isKey = number % 50 == 0
            publisher.send(
                track: 0, ptsMicroseconds: Int64(number) * 40_000, dtsDeltaMicroseconds: 0, flags: isKey ? .key : [],
                payload: Self.payload(device, number, byteCount: isKey ? keyByteCount : pictureByteCount))
        }
    }

    /// No more frames; those that were handed over still go out.
    func pause() { isStopped.withLock { $0 = true } }

    func stop() {
        pause()
        publisher.stop()
        session.close()
    }

    /// Content that follows from device and number, so that a viewer can check it.
    static func payload(_ device: DeviceID, _ number: Int, byteCount: Int) -> ByteBuffer {
        var random = SeededRandom(seed: StableHash.hash(device.rawValue, seed: UInt64(number)))
        var buffer = ByteBufferAllocator().buffer(capacity: byteCount)
        while buffer.readableBytes < byteCount { buffer.writeInteger(random.next()) }
        return buffer
    }
}

/// A viewer of the bench: notes every frame's arrival and checks its content.
final class BenchViewer: Sendable {
    struct Record: Sendable {
        var sequence: UInt64
        var at: MonotonicTime
    }

    private struct State {
        var records: [Record] = []
        var doubledCount = 0
        var wrongCount = 0
    }

    private let session: ClientSession
    private let player: Player
    private let state: Recorder

    private final class Recorder: Sendable {
        let device: DeviceID
        let state = Mutex(State())
        init(device: DeviceID) { self.device = device }

        func received(_ frame: MediaFrame) {
            let now = MonotonicTime.now()
            let sequence = frame.header.position.sequence
            let expected = BenchPublisher.payload(device, Int(sequence), byteCount: 32)
            let isRight =
                frame.payload.readableBytes >= 32
                && frame.payload.getSlice(at: frame.payload.readerIndex, length: 32) == expected
            state.withLock { state in
                if !isRight { state.wrongCount += 1 }
                if let last = state.records.last, sequence <= last.sequence { state.doubledCount += 1 }
                state.records.append(Record(sequence: sequence, at: now))
            }
        }
    }

    init(device: DeviceID, session: ClientSession) {
        self.session = session
        let recorder = Recorder(device: device)
        state = recorder
        player = Player(
            session: session, device: device,
            onFrame: { frame in
                if !frame.header.flags.contains(.repeated) { recorder.received(frame) }
            })
    }

    func start() { player.start() }

    func stop() {
        player.stop()
        session.close()
    }

    var records: [Record] { state.state.withLock { $0.records } }
    var newest: UInt64? { state.state.withLock { $0.records.last?.sequence } }
    var doubledCount: Int { state.state.withLock { $0.doubledCount } }
    var wrongCount: Int { state.state.withLock { $0.wrongCount } }

    /// Frames that are missing between the first and the last that came.
    var lostCount: Int {
        let records = records
        guard let first = records.first, let last = records.last else { return 0 }
        return Int(last.sequence - first.sequence) + 1 - records.count + doubledCount
    }

    /// The longest time between two arrivals that touches a window.
    func gap(from start: MonotonicTime, to end: MonotonicTime) -> Duration {
        let records = records
        var longest = Duration.zero
        for (previous, next) in zip(records, records.dropFirst()) where next.at >= start && previous.at <= end {
            longest = max(longest, next.at - previous.at)
        }
        // Silence that lasts to the end of the window counts too.
        if let last = records.last, last.at < end { longest = max(longest, end - last.at) }
        return longest
    }
}
