import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Synchronization

/// Devices with a user property that an app writes, each at another node, and a subscriber to each device's changes.
/// With alarms, devices report events too, and with changes of rights, apps invite others to use the devices. Each
/// account has two subscribers for these, at two nodes.
final class PropertyLoad: Sendable {
    enum Kind: Sendable { case write, alarm, right }

    /// Of this many requests one is an alarm, and one is a change of rights; 0: none.
    struct Mix: Sendable {
        var alarmEach = 0
        var rightEach = 0

        func kind(of number: Int) -> Kind {
            if alarmEach > 0, number % alarmEach == 0 { return .alarm }
            return rightEach > 0 && number % rightEach == rightEach / 2 ? .right : .write
        }
    }

    /// How a request ended.
    struct Outcome: Sendable {
        let device: Int
        let number: Int
        let kind: Kind
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
        /// The alarms and the changes of rights that each subscriber has received.
        let events: Mutex<[Received]>
        init(_ count: Int, subscribers: Int) {
            changes = Mutex(Array(repeating: Received(), count: count))
            events = Mutex(Array(repeating: Received(), count: subscribers))
        }
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
        let subscribers = min(2 * LoadSessions.accountCount, appCount)
        let sessions = try await LoadSessions(stage, devices: count, apps: appCount)
        let ledger = Ledger(count, subscribers: subscribers)
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
        for subscriber in 0..<subscribers {
            let events = sessions.apps[subscriber].accountEvents(of: LoadSessions.account(subscriber))
            tasks.append(Self.receive(events) { event in ledger.events.withLock { $0[subscriber].note(event) } })
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
        let outcome = await carryOut(device, due: due, .write) { number throws(ApusError) in
            try await sessions.app(device, 0).writeProperty(
                of: sessions.devices[device].id, path: "ProUser.mark.val", json: "\(number)")
        }
        await turns[device].leave()
        return outcome
    }

    private func alarm(_ device: Int, due: MonotonicTime) async -> Outcome {
        await carryOut(device, due: due, .alarm) { number throws(ApusError) in
            try await sessions.devices[device].session.reportEvent("alarm", json: "\(number)")
        }
    }

    /// Invites an account to use the device, and withdraws the invitation afterwards.
    private func changeRight(_ device: Int, due: MonotonicTime) async -> Outcome {
        await turns[device].take()
        let (app, id) = (sessions.app(device, 0), sessions.devices[device].id)
        let outcome = await carryOut(device, due: due, .right) { number throws(ApusError) in
            _ = try await app.share(id, with: Self.guest(number), control: false)
        }
        try? await LoadSessions.repeated { () throws(ApusError) in
            try await app.unshare(id, with: Self.guest(outcome.number))
        }
        await turns[device].leave()
        return outcome
    }

    private static func guest(_ number: Int) -> AccountID { AccountID(unchecked: "guest-\(number)") }

    private func carryOut(
        _ device: Int, due: MonotonicTime, _ kind: Kind, _ body: (Int) async throws(ApusError) -> Void
    ) async -> Outcome {
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        var failure: ApusError?
        do throws(ApusError) { try await body(number) } catch { failure = error }
        return Outcome(
            device: device, number: number, kind: kind, milliseconds: (.now() - due).milliseconds,
            error: failure)
    }

    /// Makes requests at fixed times.
    func run(rate: Double, seconds: Double, _ mix: Mix) async -> [Outcome] {
        await OpenLoop.run(rate: rate, seconds: seconds) { number, due in
            // One more after each round, so that the kinds of requests go around all devices.
            let count = self.sessions.devices.count
            let device = (number + number / count) % count
            switch mix.kind(of: number) {
            case .write: return await self.write(device, due: due)
            case .alarm: return await self.alarm(device, due: due)
            case .right: return await self.changeRight(device, due: due)
            }
        }
    }

    func busySeconds() throws(ApusError) -> Double { try sessions.busySeconds() }

    // MARK: - Check

    /// Compares what subscribers have received with what was acknowledged.
    func check(_ outcomes: [Outcome]) async throws -> [(String, String, Double)] {
        // What is still on its way arrives.
        try await Task.sleep(for: .seconds(5))
        let (changes, events) = (ledger.changes.withLock { $0 }, ledger.events.withLock { $0 })
        func acknowledged(_ kind: Kind) -> [Outcome] { outcomes.filter { $0.kind == kind && $0.error == nil } }
        // Of each acknowledged request, the subscribers that have not received its event.
        func lost(_ kind: Kind) -> Double {
            let misses = acknowledged(kind).map { outcome in
                events.indices.count {
                    $0 % LoadSessions.accountCount == outcome.device % LoadSessions.accountCount
                        && events[$0].counts[outcome.number] == nil
                }
            }
            return Double(misses.reduce(0, +))
        }
        let written = acknowledged(.write)
        let times = outcomes.map(\.milliseconds)
        for (text, count) in Dictionary(grouping: outcomes.compactMap(\.error), by: \.description) {
            BenchScope.say("\(count.count) failed: \(text)")
        }
        return [
            ("writes", "writes", Double(outcomes.count { $0.kind == .write })),
            ("alarms", "alarms", Double(outcomes.count { $0.kind == .alarm })),
            ("changes of rights", "rights", Double(outcomes.count { $0.kind == .right })),
            ("failed", "failed", Double(outcomes.count { $0.error != nil })),
            ("changes without an event", "lost", Double(written.count { changes[$0.device].counts[$0.number] == nil })),
            ("changes with two events", "twice", Double(changes.reduce(0) { $0 + $1.counts.count { $0.value > 1 } })),
            ("alarms without an event, of each subscriber", "alarms_lost", lost(.alarm)),
            ("changes of rights without an event, of each subscriber", "rights_lost", lost(.right)),
            (
                "alarms and changes of rights with two events, of each subscriber", "events_twice",
                Double(events.reduce(0) { $0 + $1.counts.count { $0.value > 1 } })
            ),
            (
                "events that say that others are missing", "missed",
                Double((changes + events).reduce(0) { $0 + $1.missed })
            ),
            ("events out of order", "unordered", Double(changes.reduce(0) { $0 + $1.unordered })),
            ("p50, ms", "p50_ms", FailoverResult.quantile(times, 0.5) ?? 0),
            ("p99, ms", "p99_ms", FailoverResult.quantile(times, 0.99) ?? 0),
            ("max, ms", "max_ms", times.max() ?? 0),
        ]
    }
}

extension PropertyLoad.Received {
    fileprivate mutating func note(_ event: ClientSession.TopicEvent<ClientAccountEvent>) {
        if event.missed { missed += 1 }
        let message = event.message
        switch (message.topic, message.name) {
        case (.alarm, _): if let number = Int(message.json) { counts[number, default: 0] += 1 }
        case (.share, "invited"):
            // Such as {"account":"guest-7","control":false}.
            let object = try? JSONSerialization.jsonObject(with: Data(message.json.utf8)) as? [String: Any]
            let name = object?["account"] as? String
            if let number = name?.split(separator: "-").last.flatMap({ Int($0) }) { counts[number, default: 0] += 1 }
        default: break
        }
    }

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
