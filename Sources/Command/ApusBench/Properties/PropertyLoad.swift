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

    private let sessions: LoadSessions
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

    init(_ stage: SignInStage, devices count: Int, apps appCount: Int) async throws {
        let (sessions, ledger) = (try await LoadSessions(stage, devices: count, apps: appCount), Ledger(count))
        (self.sessions, self.ledger) = (sessions, ledger)
        turns = sessions.devices.map { _ in Turn() }
        var tasks: [Task<Void, Never>] = []
        for (number, device) in sessions.devices.enumerated() {
            try await LoadSessions.repeated { () throws(ApusError) in
                try await sessions.app(number, 0).addUserProperty("mark", json: "-1", to: device.id)
            }
            tasks.append(
                Self.receive(sessions.app(number, 1).propertyChanges(of: device.id)) { event in
                    ledger.changes.withLock { $0[number].note(event) }
                })
        }
        for number in 0..<min(LoadSessions.accountCount, appCount) {
            tasks.append(
                Self.receive(sessions.apps[number].accountEvents(of: LoadSessions.account(number))) { event in
                    guard let number = Int(event.message.json) else { return }
                    ledger.alarms.withLock { $0[number, default: 0] += 1 }
                })
        }
        self.tasks = tasks
        // Every subscription has begun when its subscriber has received something.
        for number in sessions.devices.indices {
            try await LoadSessions.repeated { () throws(ApusError) in
                if let error = await write(number).error { throw error }
                if ledger.changes.withLock({ $0[number].counts.isEmpty }) {
                    throw ApusError(.deadlineExceeded, "a subscriber has received nothing")
                }
            }
        }
        ledger.changes.withLock { for index in $0.indices { $0[index] = Received() } }
    }

    private static func receive<Event: Sendable>(
        _ events: AsyncThrowingStream<Event, any Error>, _ body: @escaping @Sendable (Event) -> Void
    ) -> Task<Void, Never> {
        Task {
            do {
                for try await event in events { body(event) }
            } catch {
                BenchScope.say("a subscription ends: \(error)")
            }
        }
    }

    func close() {
        for task in tasks { task.cancel() }
        sessions.close()
    }

    // MARK: - Work

    private func write(_ device: Int, due: MonotonicTime = .now()) async -> Outcome {
        await turns[device].take()
        let outcome = await carryOut(device, due: due, isAlarm: false) { number throws(ApusError) in
            try await sessions.app(device, 0).writeProperty(
                of: sessions.devices[device].id, path: "ProUser.mark.val", json: "\(number)")
        }
        await turns[device].leave()
        return outcome
    }

    private func alarm(_ device: Int, due: MonotonicTime) async -> Outcome {
        await carryOut(device, due: due, isAlarm: true) { number throws(ApusError) in
            try await sessions.devices[device].session.reportEvent("alarm", json: "\(number)")
        }
    }

    private func carryOut(
        _ device: Int, due: MonotonicTime, isAlarm: Bool, _ body: (Int) async throws(ApusError) -> Void
    ) async -> Outcome {
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        var failure: ApusError?
        do throws(ApusError) { try await body(number) } catch { failure = error }
        return Outcome(
            device: device, number: number, isAlarm: isAlarm, milliseconds: (.now() - due).milliseconds,
            error: failure)
    }

    /// Writes at fixed times; of this many writes, one is an alarm (0: none).
    func run(rate: Double, seconds: Double, alarmEach: Int) async -> [Outcome] {
        await OpenLoop.run(rate: rate, seconds: seconds) { number, due in
            let device = number % self.sessions.devices.count
            guard alarmEach == 0 || number % alarmEach != 0 else { return await self.alarm(device, due: due) }
            return await self.write(device, due: due)
        }
    }

    func busySeconds() throws(ApusError) -> Double { try sessions.busySeconds() }

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
