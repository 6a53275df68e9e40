import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Synchronization

/// Devices with a user property that an app writes, each at another node, and a subscriber to each device's changes.
/// With alarms, devices report events too.
final class PropertyLoad: Sendable {
    /// How a write or an alarm ended.
    struct Outcome: Sendable {
        let device: Int
        let number: Int
        let isAlarm: Bool
        let milliseconds: Double
        let error: ApusError?
    }

    /// What a subscriber has received of one device.
    struct Received: Sendable {
        /// How often each number.
        var counts: [Int: Int] = [:]
        /// Events that say that others before them are missing.
        var missed = 0
        /// Events whose version is not above that of the event before.
        var unordered = 0
        var version: UInt64 = 0
    }

    private struct Device: Sendable {
        let id: DeviceID
        let session: ClientSession
    }

    private let stage: SignInStage
    private let devices: [Device]
    private let apps: [ClientSession]
    private let tasks: [Task<Void, Never>]
    private let ledger: Ledger
    private let numbers = Atomic<Int>(0)
    /// The writes of one device are one after the other.
    private let turns: [Turn]

    private final class Ledger: Sendable {
        let changes: Mutex<[Received]>
        let alarms = Mutex<[Int: Int]>([:])
        init(_ count: Int) { changes = Mutex(Array(repeating: Received(), count: count)) }
    }

    private actor Turn {
        private var isTaken = false
        private var waiting: [CheckedContinuation<Void, Never>] = []
        func take() async {
            guard isTaken else {
                isTaken = true
                return
            }
            await withCheckedContinuation { waiting.append($0) }
        }
        func leave() {
            if waiting.isEmpty { isTaken = false } else { waiting.removeFirst().resume() }
        }
    }

    /// A node limits the requests of each account.
    private static let accountCount = 8

    init(_ stage: SignInStage, devices count: Int, apps appCount: Int) async throws {
        self.stage = stage
        let nodes = stage.local.mark.nodes.map(\.name)
        let ledger = Ledger(count)
        var (devices, apps, tasks) = ([Device](), [ClientSession](), [Task<Void, Never>]())
        for number in 0..<count {
            let id = DeviceID(unchecked: "device-\(number)")
            devices.append(
                Device(
                    id: id,
                    session: try await stage.session(
                        .device, AccessID(unchecked: id.rawValue), account: Self.account(number), device: id,
                        first: nodes[number % nodes.count])))
        }
        for number in 0..<appCount {
            apps.append(
                try await stage.session(
                    .app, AccessID(unchecked: "app-\(number)"), account: Self.account(number), device: nil,
                    first: nodes[(number / Self.accountCount + number + 1) % nodes.count]))
        }
        (self.devices, self.apps, self.ledger) = (devices, apps, ledger)
        turns = devices.map { _ in Turn() }
        for (number, device) in devices.enumerated() {
            let app = Self.app(of: apps, number, 0)
            try await Self.repeated { () throws(ApusError) in
                try await app.addUserProperty("mark", json: "-1", to: device.id)
            }
            let changes = Self.app(of: apps, number, 1).propertyChanges(of: device.id)
            tasks.append(
                Task {
                    do {
                        for try await event in changes {
                            ledger.changes.withLock { $0[number].note(event) }
                        }
                    } catch {
                        BenchScope.say("the changes of a device end: \(error)")
                    }
                })
        }
        for number in 0..<min(Self.accountCount, appCount) {
            let events = apps[number].accountEvents(of: Self.account(number))
            tasks.append(
                Task {
                    do {
                        for try await event in events {
                            guard let number = Int(event.message.json) else { continue }
                            ledger.alarms.withLock { $0[number, default: 0] += 1 }
                        }
                    } catch {
                        BenchScope.say("the events of an account end: \(error)")
                    }
                })
        }
        self.tasks = tasks
        // Every subscription has begun when its subscriber has received something.
        for number in devices.indices {
            try await Self.repeated { () throws(ApusError) in
                if let error = await write(number).error { throw error }
                if ledger.changes.withLock({ $0[number].counts.isEmpty }) {
                    throw ApusError(.deadlineExceeded, "a subscriber has received nothing")
                }
            }
        }
        ledger.changes.withLock { for index in $0.indices { $0[index] = Received() } }
    }

    private static func account(_ number: Int) -> AccountID { AccountID(unchecked: "account-\(number % accountCount)") }

    /// An app of the device's account.
    private static func app(of apps: [ClientSession], _ device: Int, _ number: Int) -> ClientSession {
        let own = apps.count / accountCount
        return apps[device % accountCount + accountCount * (number % max(1, own))]
    }

    private static func repeated(_ body: () async throws(ApusError) -> Void) async throws {
        var last = ApusError(.unavailable)
        for _ in 0..<200 {
            do throws(ApusError) { return try await body() } catch { last = error }
            try await Task.sleep(for: .milliseconds(50))
        }
        throw last
    }

    func close() {
        for task in tasks { task.cancel() }
        for session in apps + devices.map(\.session) { session.close() }
    }

    // MARK: - Work

    private func write(_ device: Int, due: MonotonicTime = .now()) async -> Outcome {
        await turns[device].take()
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        var failure: ApusError?
        do throws(ApusError) {
            try await Self.app(of: apps, device, 0).writeProperty(
                of: devices[device].id, path: "ProUser.mark.val", json: "\(number)")
        } catch {
            failure = error
        }
        await turns[device].leave()
        return Outcome(
            device: device, number: number, isAlarm: false, milliseconds: (.now() - due).milliseconds, error: failure)
    }

    private func alarm(_ device: Int, due: MonotonicTime) async -> Outcome {
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        var failure: ApusError?
        do throws(ApusError) {
            try await devices[device].session.reportEvent("alarm", json: "\(number)")
        } catch {
            failure = error
        }
        return Outcome(
            device: device, number: number, isAlarm: true, milliseconds: (.now() - due).milliseconds, error: failure)
    }

    /// Writes at fixed times; of this many writes, one is an alarm (0: none).
    func run(rate: Double, seconds: Double, alarmEach: Int) async -> [Outcome] {
        await OpenLoop.run(rate: rate, seconds: seconds) { number, due in
            let device = number % self.devices.count
            guard alarmEach == 0 || number % alarmEach != 0 else { return await self.alarm(device, due: due) }
            return await self.write(device, due: due)
        }
    }

    func busySeconds() throws(ApusError) -> Double {
        var sum = 0.0
        for node in stage.local.mark.nodes { sum += try stage.busySeconds(of: node.name) }
        return sum
    }

    // MARK: - Check

    /// Compares what subscribers have received with what was acknowledged.
    func check(_ outcomes: [Outcome]) async throws -> [(String, String, Double)] {
        // What is still on its way arrives.
        try await Task.sleep(for: .seconds(5))
        let (changes, alarms) = (ledger.changes.withLock { $0 }, ledger.alarms.withLock { $0 })
        let written = outcomes.filter { !$0.isAlarm && $0.error == nil }
        let raised = outcomes.filter { $0.isAlarm && $0.error == nil }
        let times = outcomes.map(\.milliseconds)
        for (text, count) in Dictionary(grouping: outcomes.compactMap(\.error), by: \.description) {
            BenchScope.say("\(count.count) failed: \(text)")
        }
        return [
            ("writes", "writes", Double(outcomes.count { !$0.isAlarm })),
            ("alarms", "alarms", Double(outcomes.count(where: \.isAlarm))),
            ("failed", "failed", Double(outcomes.count { $0.error != nil })),
            ("changes without an event", "lost", Double(written.count { changes[$0.device].counts[$0.number] == nil })),
            ("changes with two events", "twice", Double(changes.reduce(0) { $0 + $1.counts.count { $0.value > 1 } })),
            ("alarms without an event", "alarms_lost", Double(raised.count { alarms[$0.number] == nil })),
            ("alarms with two events", "alarms_twice", Double(alarms.count { $0.value > 1 })),
            ("events that say that others are missing", "missed", Double(changes.reduce(0) { $0 + $1.missed })),
            ("events out of order", "unordered", Double(changes.reduce(0) { $0 + $1.unordered })),
            ("p50, ms", "p50_ms", FailoverResult.quantile(times, 0.5) ?? 0),
            ("p99, ms", "p99_ms", FailoverResult.quantile(times, 0.99) ?? 0),
            ("max, ms", "max_ms", times.max() ?? 0),
        ]
    }
}

extension PropertyLoad.Received {
    fileprivate mutating func note(_ event: ClientSession.TopicEvent<ClientPropertyChanged>) {
        if event.missed { missed += 1 }
        if event.message.version <= version { unordered += 1 }
        version = max(version, event.message.version)
        // The leaf, such as {"val":7}.
        let leaf = try? JSONSerialization.jsonObject(with: Data(event.message.json.utf8), options: .fragmentsAllowed)
        let value = (leaf as? [String: Any])?["val"] ?? leaf
        if let number = value as? Int { counts[number, default: 0] += 1 }
    }
}
