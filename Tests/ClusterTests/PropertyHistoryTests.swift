import ApusClient
import ApusContract
import ApusCore
import ApusHistory
import ApusLocal
import ApusSessions
import Foundation
import Logging
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// Writers, readers and devices of thing models, while nodes are killed, stopped and cut off, and devices sleep and
/// start again. The history of each leaf must be linearizable.
@Suite("Histories of thing models (IV-D3, IV-D4, IV-D8, IV-D9)", .serialized, .timeLimit(.minutes(5)))
struct PropertyHistoryTests {
    private static let devices = ["cam-0", "cam-1"]
    /// How many faults there are, one after the other.
    private static let faultCount = 10

    @Test(
        "Random faults under writers, readers and devices that sleep and restart: each leaf is linearizable",
        .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
    func linearizable() async throws {
        let cluster = IsolatedClusterTests.Isolated()
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "3")
        let local = try LocalCluster(directory: cluster.directory)
        let load = PropertyLoad(
            nodes: local.mark.nodes.compactMap { HostPort($0.http) },
            token: try await local.mint(role: .app, access: AccessID(unchecked: "writer"), device: nil))
        var devices: [PropertyDevice] = []
        for name in Self.devices {
            devices.append(try await PropertyDevice(name, of: local, load: load))
        }
        defer { for device in devices { device.close() } }
        try await load.prepare(Self.devices)
        try load.start(Self.devices)
        for device in devices { device.start() }
        try await Task.sleep(for: .seconds(1))
        var generator = SystemRandomNumberGenerator()
        var faults: [String] = []
        for number in 0..<Self.faultCount {
            let node = "\(Int.random(in: 1...3, using: &generator))"
            // Each kind twice.
            let fault = ["kill", "pause", "partition", "cut", "sleep"][number % 5]
            faults.append("\(fault) \(node)")
            switch fault {
            case "kill":
                try cluster.verb("kill", node)
                try await Task.sleep(for: .seconds(1))
                try cluster.verb("restart", node)
            case "pause":
                try cluster.verb("pause", node)
                try await Task.sleep(for: .milliseconds(Int.random(in: 100...2_000, using: &generator)))
                // A node that was stopped while it wrote records is ended by the others (`records.lock_timeout`).
                if try cluster.run("resume", node).status != 0 { try cluster.verb("restart", node) }
            case "partition":
                let others = ["1", "2", "3"].filter { $0 != node }.joined(separator: ",")
                try cluster.verb("partition", node, others)
                try await Task.sleep(for: .seconds(2))
                try cluster.verb("heal")
            case "cut":
                try cluster.verb("cut", node == "1" ? "1-2" : "1-\(node)")
                try await Task.sleep(for: .seconds(2))
                try cluster.verb("heal")
            default:
                for device in devices { await device.sleepAndRestart() }
            }
            try await Task.sleep(for: .seconds(1))
        }
        for device in devices { await device.stop() }
        await load.stop()
        try await load.readAll(Self.devices)
        #expect(load.refusals.isEmpty, "\(load.refusals.prefix(5))")

        let history = load.history
        for (name, operations) in Dictionary(grouping: history, by: \.entity) {
            let verdict = LinearizabilityChecker().check(operations)
            #expect(verdict == .linearizable, "\(name) after \(faults): \(verdict)")
            let changes = operations.filter { $0.request != .read }
            // A history in which nothing happened proves nothing.
            #expect(changes.count { $0.outcome == .ok } > 100, "\(name): \(changes.count) changes")
            #expect(operations.count { $0.request == .read && $0.outcome != .unknown } > 100, "\(name)")
        }
        #expect(history.contains { if case .mismatch = $0.outcome { true } else { false } })
        #expect(Set(history.map(\.entity)).count == Self.devices.count * PropertyLeaf.allCases.count)
    }
}

/// A leaf of each root that has values.
private enum PropertyLeaf: String, CaseIterable {
    /// The device writes it, apps read it.
    case state = "ProReadonly.count.stVal"
    /// Apps write it, and the device reports what it has received.
    case setting = "ProWritable.level.setVal"
    /// Apps write it.
    case user = "ProUser.note.val"

    func entity(of device: String) -> String { "\(device) \(rawValue)" }
}

/// The clients of all leaves, and their history.
///
/// Concurrency model: a task for each client; what they share is behind a `Mutex`.
private final class PropertyLoad: Sendable {
    private struct Entry {
        var operation: RegisterOperation
        /// The version that a refused write has named.
        var conflict: UInt64?
    }

    private struct State {
        var entries: [Entry] = []
        /// The value of each version that was seen, by leaf.
        var values: [String: [UInt64: UInt64]] = [:]
        var refusals: [String] = []
        var tasks: [Task<Void, Never>] = []
    }

    private struct Answer: Decodable {
        var json: String?
        var version: String?
        var code: Int?
        var detail: String?
    }

    private static let operationTimeout = Duration.seconds(10)
    private static let attemptTimeout = Duration.milliseconds(700)

    private let nodes: [HostPort]
    private let token: String
    private let state = Mutex(State())
    private let isStopped = Atomic(false)
    /// Values are distinct, as the checker wants them.
    private let next = Atomic<UInt64>(1)

    init(nodes: [HostPort], token: String) { (self.nodes, self.token) = (nodes, token) }

    var refusals: [String] { state.withLock { $0.refusals } }
    var hasStopped: Bool { isStopped.load(ordering: .relaxed) }
    func newValue() -> UInt64 { next.add(1, ordering: .relaxed).oldValue }

    /// The operations. A write that was refused for a version whose value is known has found that value.
    var history: [RegisterOperation] {
        state.withLock { state in
            state.entries.map { entry in
                guard let conflict = entry.conflict, let found = state.values[entry.operation.entity]?[conflict],
                    case .compareAndSwap(let expected, _) = entry.operation.request, found != expected
                else { return entry.operation }
                var operation = entry.operation
                operation.outcome = .mismatch(found)
                return operation
            }
        }
    }

    // MARK: Recording

    func invoked(_ client: Int, _ entity: String, _ request: RegisterOperation.Request) -> Int {
        state.withLock { state in
            state.entries.append(
                Entry(
                    operation: RegisterOperation(
                        client: client, entity: entity, request: request, invokedAt: .now())))
            return state.entries.count - 1
        }
    }

    func returned(_ index: Int, _ outcome: RegisterOperation.Outcome, version: UInt64? = nil) {
        state.withLock { state in
            let now = MonotonicTime.now()
            state.entries[index].operation.outcome = outcome
            state.entries[index].operation.returnedAt = now
            guard let version else { return }
            let operation = state.entries[index].operation
            let value: UInt64
            switch (operation.request, outcome) {
            case (.read, .value(let found)): value = found
            case (.write(let new), .ok), (.compareAndSwap(_, let new), .ok): value = new
            default: return state.entries[index].conflict = version
            }
            state.values[operation.entity, default: [:]][version] = value
        }
    }

    // MARK: Clients

    /// Adds the user properties.
    func prepare(_ devices: [String]) async throws {
        for device in devices {
            try await eventually { () throws(ApusError) in
                let answer = try await NodeHTTP.send(
                    "POST", "/v1/devices/\(device)/user-properties/note", to: self.nodes[0], token: self.token,
                    body: #"{"json":"0"}"#, timeout: .seconds(2))
                guard answer.status == 200 else {
                    throw ApusError(.internalFailure, "\(answer.status) \(answer.text)")
                }
            }
        }
    }

    /// Two clients that write and read for each leaf of apps, and one that reads for each leaf of devices.
    func start(_ devices: [String]) throws {
        var tasks: [Task<Void, Never>] = []
        for (number, device) in devices.enumerated() {
            for (index, leaf) in [PropertyLeaf.state, .setting, .setting, .user, .user].enumerated() {
                let client = number * 8 + index
                tasks.append(Task { await self.run(client, device, leaf) })
            }
        }
        state.withLock { $0.tasks = tasks }
    }

    /// Ends the clients, after the operations in progress.
    func stop() async {
        isStopped.store(true, ordering: .relaxed)
        for task in state.withLock({ $0.tasks }) { await task.value }
    }

    /// Reads each leaf once, so that every acknowledged change must be visible.
    func readAll(_ devices: [String]) async throws {
        for device in devices {
            for leaf in PropertyLeaf.allCases {
                let known = await read(100, device, leaf, timeout: .seconds(30))
                try #require(known != nil, "\(device) \(leaf) could not be read")
            }
        }
    }

    private typealias Known = (value: UInt64, version: UInt64)

    private func run(_ client: Int, _ device: String, _ leaf: PropertyLeaf) async {
        var known: Known?
        while !hasStopped {
            switch leaf == .state ? 0 : Int.random(in: 0..<4) {
            case 0:
                known = await read(client, device, leaf) ?? known
            case 1:
                await write(newValue(), if: nil, client, device, leaf)
                known = nil
            default:
                if let found = known {
                    await write(newValue(), if: found, client, device, leaf)
                    known = nil
                } else {
                    known = await read(client, device, leaf)
                }
            }
            try? await Task.sleep(for: .milliseconds(20))
        }
    }

    private func read(
        _ client: Int, _ device: String, _ leaf: PropertyLeaf, timeout: Duration = operationTimeout
    ) async -> Known? {
        let index = invoked(client, leaf.entity(of: device), .read)
        let path = "/v1/devices/\(device)/properties?path=\(leaf.rawValue)"
        guard let answer = await send("GET", path, nil, client, timeout: timeout),
            let value = answer.json.flatMap({ UInt64($0) }), let version = answer.version.flatMap({ UInt64($0) })
        else { return nil }
        returned(index, .value(value), version: version)
        return (value, version)
    }

    /// - Parameter known: what the leaf must have; nil: anything.
    private func write(
        _ value: UInt64, if known: Known?, _ client: Int, _ device: String, _ leaf: PropertyLeaf
    ) async {
        let request = known.map { RegisterOperation.Request.compareAndSwap(expected: $0.value, new: value) }
        let index = invoked(client, leaf.entity(of: device), request ?? .write(value))
        let condition = known.map { #","ifVersion":"\#($0.version)""# } ?? ""
        let body = #"{"path":"\#(leaf.rawValue)","json":"\#(value)"\#(condition)}"#
        guard let answer = await send("POST", "/v1/devices/\(device)/properties", body, client) else { return }
        guard answer.code == 10_030 else {
            // The leaf has the version that the model has afterwards.
            return returned(index, .ok, version: answer.version.flatMap { UInt64($0) })
        }
        let version = answer.detail?.split(separator: " ").last.flatMap { UInt64($0.prefix { $0.isNumber }) }
        returned(index, .failed, version: version)
    }

    /// - Returns: the answer, which may be a conflict; nil if nobody knows whether the request was carried out.
    private func send(
        _ method: String, _ path: String, _ body: String?, _ client: Int, timeout: Duration = operationTimeout
    ) async -> Answer? {
        let answer = await NodeHTTP.sendRepeatedly(
            method, path, to: nodes, first: client, token: token, key: body == nil ? nil : UUID().uuidString,
            body: body, attemptTimeout: Self.attemptTimeout, timeout: timeout)
        guard let answer else { return nil }
        let fields = try? JSONDecoder().decode(Answer.self, from: Data(answer.body))
        guard let fields, answer.status == 200 || fields.code == 10_030 else {
            let text = "\(method) \(path): \(answer.status) \(answer.text)"
            state.withLock { $0.refusals.append(text) }
            return nil
        }
        return fields
    }
}

/// A device that counts in its state, and reports each value of its setting that it has received.
private final class PropertyDevice: Sendable {
    private static let timeout = Duration.seconds(10)

    private let name: String
    private let configurations: [ClientConfiguration]
    private let load: PropertyLoad
    private let session: Mutex<ClientSession>
    private let tasks = Mutex<[Task<Void, Never>]>([])

    init(_ name: String, of local: LocalCluster, load: PropertyLoad) async throws {
        (self.name, self.load) = (name, load)
        let token = try await local.mint(
            role: .device, access: AccessID(unchecked: name), device: DeviceID(unchecked: name))
        let endpoints = local.endpoints
        let configurations = endpoints.indices.map { first in
            ClientConfiguration(
                endpoints: Array(endpoints[first...] + endpoints[..<first]), authorityFile: local.authorityFile,
                token: token, role: .device)
        }
        self.configurations = configurations
        let session = try Self.session(configurations[0])
        self.session = Mutex(session)
        for (path, json) in [("ProReadonly.count", #"{"stVal":0}"#), ("ProWritable.level", #"{"setVal":0}"#)] {
            try await eventually { () throws(ApusError) in try await session.reportProperty(path: path, json: json) }
        }
    }

    private static func session(_ configuration: ClientConfiguration) throws(ApusError) -> ClientSession {
        let session = try ClientSession(
            configuration: configuration, eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        session.start()
        return session
    }

    private var current: ClientSession { session.withLock { $0 } }

    func start() {
        tasks.withLock {
            $0 = [Task { await self.count() }, Task { await self.follow() }]
        }
    }

    private func count() async {
        let entity = PropertyLeaf.state.entity(of: name)
        while !load.hasStopped, !Task.isCancelled {
            let value = load.newValue()
            let index = load.invoked(200, entity, .write(value))
            if (try? await current.reportProperty(path: PropertyLeaf.state.rawValue, json: "\(value)")) != nil {
                load.returned(index, .ok)
            }
            try? await Task.sleep(for: .milliseconds(20))
        }
    }

    private func follow() async {
        while !load.hasStopped, !Task.isCancelled {
            for pending in (try? await current.pendingProperties()) ?? [] {
                try? await current.reportProperty(
                    path: pending.path, json: pending.json, receivedVersion: pending.version)
            }
            try? await Task.sleep(for: .milliseconds(30))
        }
    }

    /// Falls asleep, wakes, and starts again as a new process would, at another node.
    func sleepAndRestart() async {
        try? await current.setAsleep(true)
        try? await Task.sleep(for: .milliseconds(500))
        try? await current.setAsleep(false)
        guard let next = try? Self.session(configurations.randomElement() ?? configurations[0]) else { return }
        session.withLock { session in
            session.close()
            session = next
        }
    }

    func stop() async {
        let tasks = tasks.withLock { tasks in
            for task in tasks { task.cancel() }
            return tasks
        }
        for task in tasks { await task.value }
    }

    func close() { current.close() }
}
