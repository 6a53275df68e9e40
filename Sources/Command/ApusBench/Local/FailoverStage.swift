import ApusClient
import ApusCluster
import ApusContract
import ApusCore
import ApusEtcd
import ApusLocal
import ApusMedia
import ApusSessions
import ApusStorage
import Foundation
import Logging
import NIOCore
import NIOPosix
import Synchronization

/// The environment of a failover round: a local cluster of real processes, publishers and viewers.
/// Isolation: used by the benchmark's one task. Publishers and viewers have their own event loops.
final class FailoverStage {
    let local: LocalCluster
    private let executable: String
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let log: Logger
    private let ownership: any OwnershipStore

    /// The differences of the cluster from the default of `apus cluster up`.
    struct Options: Sendable {
        var nodes = 3
        /// The cluster's name. Concurrent clusters need different names.
        var cluster = "local"
        /// The client addresses that the nodes advertise, in the order of the nodes; if empty, their listeners.
        var advertisedClients: [HostPort] = []
        /// The limit of open files of each node; nil means that of this process.
        var openFilesMax: Int?
        /// Each node has a network of its own. Requires root.
        var isIsolated = false
        /// The ownership is in three members of etcd.
        var hasEtcd = false
        /// The folder of the cluster's directory; nil means that of temporary files.
        var folder: String?
        /// The program of the nodes; nil means `apus`.
        var executable: String?
        init() {}
    }

    init(directory: String, executable: String, basePort: Int, options: Options = Options()) async throws {
        self.executable = executable
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .error
        self.log = log
        try Self.up(executable, directory: directory, basePort: basePort, options: options)
        local = try LocalCluster(directory: directory)
        ownership = try await Self.ownership(of: local)
    }

    /// Opens a cluster's ownership store while its nodes use it.
    ///
    /// - Parameter other: a cluster of this name in the same store, or beside it.
    static func ownership(
        of local: LocalCluster, other: ClusterID? = nil
    ) async throws(ApusError) -> any OwnershipStore {
        let cluster = other ?? local.cluster
        guard let stores = local.mark.stores else {
            let path = if let other { "\(local.directory.path)/\(other)" } else { try ownershipPath(of: local) }
            return try await LocalOwnershipStore(path: path, cluster: cluster)
        }
        var configuration = EtcdConfiguration()
        configuration.endpoints = stores.compactMap { EtcdEndpoint("http://\($0.clients)") }
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .critical
        return try await EtcdOwnershipStore(configuration, cluster: cluster, log: log)
    }

    /// The path of a cluster's ownership store: a file, with others next to it whose names begin with its name, or a
    /// folder.
    /// - Throws: 10022 if the first node's configuration names none.
    static func ownershipPath(of local: LocalCluster) throws(ApusError) -> String {
        let node = local.mark.nodes.first?.name ?? ""
        let text = String(
            decoding: FileManager.default.contents(atPath: local.directory.configurationFile(node)) ?? Data(),
            as: UTF8.self)
        let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
        guard let section = lines.firstIndex(of: "ownership:"), lines.indices.contains(section + 1),
            let value = lines[section + 1].split(separator: " ").last
        else { throw ApusError(.configurationInvalid, "\(node)'s configuration names no ownership store") }
        return "\(local.directory.path)/\(value)"
    }

    func down() async {
        await ownership.close()
        let purge = local.mark.network == nil ? [] : ["--purge"]
        try? Self.run(executable, ["cluster", "down", "--dir", local.directory.path] + purge)
        try? await group.shutdownGracefully()
    }

    private static func up(_ executable: String, directory: String, basePort: Int, options: Options) throws {
        var arguments = ["cluster", "up", "--dir", directory, "--cluster", options.cluster]
        if options.isIsolated { arguments.append("--isolated") }
        if options.hasEtcd { arguments.append("--etcd") }
        if options.advertisedClients.isEmpty {
            arguments += ["--nodes", "\(options.nodes)", "--base-port", "\(basePort)"]
        } else {
            let folder = "\(directory)-configs"
            try? FileManager.default.removeItem(atPath: folder)
            try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
            for (index, address) in options.advertisedClients.enumerated() {
                let node = NodeConfigurationFile.node(index + 1, basePort: basePort)
                let text = NodeConfigurationFile.text(node, cluster: options.cluster)
                try Data("\(text)advertise:\n  clients: \(address)\n".utf8).write(
                    to: URL(fileURLWithPath: "\(folder)/\(node.name).yaml"))
            }
            defer { try? FileManager.default.removeItem(atPath: folder) }
            return try run(executable, arguments + ["--configs", folder])
        }
        guard let openFilesMax = options.openFilesMax else { return try run(executable, arguments) }
        try run("/bin/sh", ["-c", "ulimit -n \(openFilesMax) && exec \"$0\" \"$@\"", executable] + arguments)
    }

    /// Runs a program to its end.
    /// - Throws: 10018 if its exit code is not 0.
    static func run(_ executable: String, _ arguments: [String]) throws {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: executable)
        process.arguments = arguments
        process.standardOutput = FileHandle.nullDevice
        let errors = Pipe()
        process.standardError = errors
        try process.run()
        // Read before the wait: a full pipe would block the program.
        let said = (try? errors.fileHandleForReading.readToEnd()) ?? Data()
        process.waitUntilExit()
        guard process.terminationStatus == 0 else {
            throw ApusError(
                .internalFailure,
                "apus \(arguments.joined(separator: " ")) ended with \(process.terminationStatus): "
                    + String(decoding: said.suffix(600), as: UTF8.self))
        }
    }

    // MARK: Nodes

    func signal(_ node: NodeName, _ number: CInt) throws(ApusError) {
        guard NodeProcess(node.rawValue, in: local.directory).signal(number) else {
            throw ApusError(.internalFailure, "the node \(node) has no process to signal")
        }
    }

    /// The map in the store.
    func map() async throws(ApusError) -> ClusterMap {
        guard let value = try await ownership.read() else {
            throw ApusError(.storageFailed, "the ownership store is empty")
        }
        return try ClusterMap(decoding: value.bytes, revision: value.revision, cluster: local.cluster)
    }

    /// Starts the nodes that are not running, and waits until every node is up and every shard is at its place.
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
        var settled: UInt64?
        while MonotonicTime.now() < deadline {
            let map = try await map()
            let isSettled =
                map.members.count { $0.state == .up } == upCount && ShardPlacement(of: map).isSettled(map)
            // Moves that began go on until every shard is at its place.
            if isSettled, settled == map.revision { return }
            settled = isSettled ? map.revision : nil
            try await Task.sleep(for: .milliseconds(isSettled ? 500 : 100))
        }
        throw ApusError(.deadlineExceeded, "the cluster did not become stable")
    }

    /// Drains a node and stops it. Returns when every shard is at its place without the node.
    func drain(_ node: NodeName) async throws {
        try Self.run(executable, ["cluster", "drain", node.rawValue, "--dir", local.directory.path])
        try await rest(upCount: local.mark.nodes.count - 1)
    }

    /// Device ids whose shards have a fitting owner and standby.
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

    /// A camera. It connects when it starts, and tries the endpoint of the given node first.
    func publisher(
        _ device: DeviceID, endpoint: NodeName, frames: BenchFrames = BenchFrames()
    ) async throws(ApusError) -> BenchPublisher {
        let end = ClientEnd()
        let session = try await session(
            .device, AccessID(unchecked: device.rawValue), device: device, endpoint: endpoint, end: end)
        return BenchPublisher(device: device, session: session, frames: frames, end: end)
    }

    /// A viewer. It connects when it starts, and tries the endpoint of the given node first.
    func viewer(
        _ device: DeviceID, number: Int, endpoint: NodeName, checksContent: Bool = true
    ) async throws(ApusError) -> BenchViewer {
        let access = AccessID(unchecked: "v\(number)-\(UInt32.random(in: 0...(.max)))")
        let end = ClientEnd()
        let session = try await session(.app, access, device: nil, endpoint: endpoint, end: end)
        return BenchViewer(device: device, session: session, end: end, checksContent: checksContent)
    }

    /// Lets each device sign in once at this address before the measurement: a viewer that plays a device before its
    /// first sign-in is refused with 8002.
    func bind(_ devices: [DeviceID], at address: HostPort) async throws {
        for device in devices {
            let access = AccessID(unchecked: device.rawValue)
            let configuration = ClientConfiguration(
                endpoints: [address], authorityFile: local.authorityFile,
                token: try await local.mint(role: .device, access: access, device: device), role: .device)
            let probe = try SignInProbe(configuration: configuration, resumes: false, eventLoop: group.next())
            for _ in 0..<100 where try await probe.run(for: .milliseconds(50)).signedIn > 0 { break }
        }
    }

    private func session(
        _ role: Session.Role, _ access: AccessID, device: DeviceID?, endpoint: NodeName, end: ClientEnd
    ) async throws(ApusError) -> ClientSession {
        let token = try await local.mint(role: role, access: access, device: device)
        let first = try local.endpoint(of: endpoint.rawValue)
        let configuration = ClientConfiguration(
            endpoints: [first] + local.endpoints.filter { $0 != first }, authorityFile: local.authorityFile,
            token: token,
            role: role == .device ? .device : .app)
        return try ClientSession(configuration: configuration, eventLoop: group.next(), log: log) { state, error in
            if state == .tokenFailed || state == .kicked { end.note(error ?? ApusError(.tokenInvalid)) }
        }
    }
}

/// The permanent end of a benchmark client: it was refused or kicked, and does not retry.
final class ClientEnd: Sendable {
    private let first = Mutex<ApusError?>(nil)

    /// The error that ended the client; nil while it is running.
    var error: ApusError? { first.withLock { $0 } }

    func note(_ error: ApusError) { first.withLock { $0 = $0 ?? error } }
}

/// The frames of a benchmark camera: 25 per second, with a key frame every 2 s. The default is 1 Mb/s.
struct BenchFrames: Sendable {
    static let interval = Duration.milliseconds(40)
    static let framesPerKey = 50
    var keyByteCount = 20_000
    var byteCount = 4_700

    /// A tenth of the default, for many viewers on the same machine as the nodes.
    static let light = BenchFrames(keyByteCount: 2_000, byteCount: 470)
}

/// A benchmark camera.
final class BenchPublisher: Sendable {
    static let frameInterval = TimeAmount.milliseconds(40)
    let device: DeviceID
    private let session: ClientSession
    private let publisher: Publisher
    private let frames: BenchFrames
    private let end: ClientEnd
    private let count = Mutex(0)
    private let keys = Mutex<[BenchViewer.Record]>([])
    private let isStopped = Mutex(false)

    init(device: DeviceID, session: ClientSession, frames: BenchFrames, end: ClientEnd) {
        self.device = device
        self.session = session
        self.frames = frames
        self.end = end
        publisher = Publisher(
            session: session, limits: PublisherLimits(),
            onEvent: { event in if case .ended(let error) = event { end.note(error) } })
    }

    /// The number of frames that were passed to the client library.
    var sent: Int { count.withLock { $0 } }
    /// The error that permanently ended the camera.
    var endError: ApusError? { end.error }

    /// The newest key frame that was passed to the client library before a time.
    func newestKey(before time: MonotonicTime) -> UInt64? {
        keys.withLock { $0.last { $0.at < time }?.sequence }
    }

    func start() {
        session.start()
        publisher.start()
        let delay = TimeAmount.milliseconds(Int64.random(in: 0..<40))
        session.eventLoop.scheduleRepeatedTask(initialDelay: delay, delay: Self.frameInterval) { [self] task in
            if isStopped.withLock({ $0 }) { return task.cancel() }
            let number = count.withLock { count in
                defer { count += 1 }
                return count
            }
            let isKey = number % BenchFrames.framesPerKey == 0
            if isKey { keys.withLock { $0.append(.init(epoch: 0, sequence: UInt64(number), at: .now())) } }
            publisher.send(
                track: 0, ptsMicroseconds: Int64(number) * 40_000, dtsDeltaMicroseconds: 0, flags: isKey ? .key : [],
                payload: Self.payload(device, number, byteCount: isKey ? frames.keyByteCount : frames.byteCount))
        }
    }

    /// Stops producing frames. Earlier frames are still sent.
    func pause() { isStopped.withLock { $0 = true } }

    func stop() {
        pause()
        publisher.stop()
        session.close()
    }

    /// The content is a function of device and number, so that a viewer can check it.
    static func payload(_ device: DeviceID, _ number: Int, byteCount: Int) -> ByteBuffer {
        var random = SeededRandom(seed: StableHash.hash(device.rawValue, seed: UInt64(number)))
        var buffer = ByteBufferAllocator().buffer(capacity: byteCount)
        while buffer.readableBytes < byteCount { buffer.writeInteger(random.next()) }
        return buffer
    }
}

/// A benchmark viewer, which records every frame's arrival and checks its content.
final class BenchViewer: Sendable {
    struct Record: Sendable {
        /// The publisher's epoch.
        var epoch: UInt32
        var sequence: UInt64
        var at: MonotonicTime
    }

    private struct State {
        var records: [Record] = []
        var doubledCount = 0
        var wrongCount = 0
        var staleCount = 0
        var term: Epoch?
        var startedAt = MonotonicTime.zero
    }

    private let session: ClientSession
    private let player: Player
    private let state: Recorder
    private let end: ClientEnd

    private final class Recorder: Sendable {
        let device: DeviceID
        let checksContent: Bool
        let state = Mutex(State())

        init(device: DeviceID, checksContent: Bool) {
            self.device = device
            self.checksContent = checksContent
        }

        func received(_ frame: MediaFrame) {
            let now = MonotonicTime.now()
            let position = frame.header.position
            let isRight = !checksContent || isExpected(frame)
            state.withLock { state in
                if !isRight { state.wrongCount += 1 }
                if let last = state.records.last {
                    if position.epoch < last.epoch {
                        state.staleCount += 1
                    } else if position.epoch == last.epoch, position.sequence <= last.sequence {
                        state.doubledCount += 1
                    }
                }
                if let term = state.term, frame.header.term < term { state.staleCount += 1 }
                state.term = max(state.term ?? frame.header.term, frame.header.term)
                state.records.append(Record(epoch: position.epoch, sequence: position.sequence, at: now))
            }
        }

        private func isExpected(_ frame: MediaFrame) -> Bool {
            let expected = BenchPublisher.payload(device, Int(frame.header.position.sequence), byteCount: 32)
            return frame.payload.readableBytes >= 32
                && frame.payload.getSlice(at: frame.payload.readerIndex, length: 32) == expected
        }
    }

    init(device: DeviceID, session: ClientSession, end: ClientEnd, checksContent: Bool = true) {
        self.session = session
        self.end = end
        let recorder = Recorder(device: device, checksContent: checksContent)
        state = recorder
        player = Player(
            session: session, device: device,
            onFrame: { frame in
                if !frame.header.flags.contains(.repeated) { recorder.received(frame) }
            }, onEvent: { event in if case .ended(let error) = event { end.note(error) } })
    }

    func start() {
        state.state.withLock { $0.startedAt = .now() }
        session.start()
        player.start()
    }

    func stop() {
        player.stop()
        session.close()
    }

    var startedAt: MonotonicTime { state.state.withLock { $0.startedAt } }
    var records: [Record] { state.state.withLock { $0.records } }
    var newest: UInt64? { state.state.withLock { $0.records.last?.sequence } }
    var newestAt: MonotonicTime? { state.state.withLock { $0.records.last?.at } }
    var doubledCount: Int { state.state.withLock { $0.doubledCount } }
    var wrongCount: Int { state.state.withLock { $0.wrongCount } }
    /// The number of frames of an older term or publisher's epoch than an earlier frame.
    var staleCount: Int { state.state.withLock { $0.staleCount } }
    /// The error that permanently ended the viewer.
    var endError: ApusError? { end.error }

    /// The number of missing frames between the first and the last frame, in each of the publisher's runs.
    var lostCount: Int {
        let records = records
        var lost = doubledCount
        for (previous, next) in zip(records, records.dropFirst()) where previous.epoch == next.epoch {
            lost += Int(next.sequence) - Int(previous.sequence) - 1
        }
        return max(0, lost)
    }

    /// The longest time between two arrivals that overlaps a window.
    func gap(from start: MonotonicTime, to end: MonotonicTime) -> Duration {
        let records = records
        var longest = Duration.zero
        for (previous, next) in zip(records, records.dropFirst()) where next.at >= start && previous.at <= end {
            longest = max(longest, next.at - previous.at)
        }
        // Silence until the end of the window also counts.
        if let last = records.last, last.at < end { longest = max(longest, end - last.at) }
        return longest
    }
}
