import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// The events of a device's timers that a session has received.
private final class HeardTimers: Sendable {
    struct Event: Sendable {
        var message: ClientTimerChanged
        var missed: Bool
        /// Unix milliseconds of this machine, which is the machine of the nodes.
        var atMs: Int64

        var text: String { "\(message.kind) \(message.timer.id)" }
    }

    private let events = Mutex<[Event]>([])
    private let task = Mutex<Task<Void, Never>?>(nil)

    init(_ session: ClientSession, _ device: DeviceID) {
        let changes = session.timerChanges(of: device)
        let task = Task { [weak self] in
            do {
                for try await event in changes {
                    let at = Int64(Date().timeIntervalSince1970 * 1000)
                    self?.events.withLock {
                        $0.append(Event(message: event.message, missed: event.missed, atMs: at))
                    }
                }
            } catch {}
        }
        self.task.withLock { $0 = task }
    }

    /// Waits until all of these hear what the session changes. They begin with the next event.
    static func begin(_ all: [HeardTimers], by session: ClientSession, _ device: DeviceID) async throws {
        try await eventually("the subscriptions hear") {
            let timer = try? await session.setTimer(.seconds(3600), on: device)
            if let timer { _ = try? await session.cancelTimers(timer.id, of: device) }
            try await Task.sleep(for: .milliseconds(50))
            return all.allSatisfy { !$0.all.isEmpty }
        }
        let last = try await session.setTimer(.seconds(3600), on: device)
        _ = try await session.cancelTimers(of: device)
        try await eventually("the last of these events has come") {
            all.allSatisfy { $0.texts.last == "cancelled \(last.id)" }
        }
        for heard in all { heard.events.withLock { $0 = [] } }
    }

    func end() { task.withLock { $0?.cancel() } }

    var all: [Event] { events.withLock { $0 } }
    var texts: [String] { all.map(\.text) }
    func count(_ kind: ClientTimerEventKind) -> Int { all.count { $0.message.kind == kind } }

    /// How late the timers rang, in milliseconds, by their ids.
    var lateness: [UInt32: Int64] {
        var found: [UInt32: Int64] = [:]
        for event in all where event.message.kind == .ringing {
            found[event.message.timer.id] = event.atMs - event.message.timer.dueMs
        }
        return found
    }

    func waitFor(_ count: Int, _ kind: ClientTimerEventKind) async throws {
        try await eventually("\(count) events \(kind)") { self.count(kind) >= count }
    }
}

/// How late this machine is: the longest time by which a sleep of this process was too long.
private final class MachineLateness: Sendable {
    private let longest = Mutex(Duration.zero)
    private let task = Mutex<Task<Void, Never>?>(nil)

    init() {
        let measuring = Task { [weak self] in
            let clock = ContinuousClock()
            while !Task.isCancelled {
                let start = clock.now
                guard (try? await Task.sleep(for: .milliseconds(10))) != nil else { return }
                let late = clock.now - start - .milliseconds(10)
                self?.longest.withLock { $0 = max($0, late) }
            }
        }
        task.withLock { $0 = measuring }
    }

    func end() { task.withLock { $0?.cancel() } }

    /// A bound in milliseconds for what takes a few turns of processes: on a quiet machine the given one.
    func bound(_ milliseconds: Int64) -> Int64 {
        milliseconds + Int64(longest.withLock { $0 }.milliseconds) * 4
    }
}

@Suite("Timers in a cluster (VA-2)", .serialized, .timeLimit(.minutes(4)))
struct TimerTests {
    /// The cluster of the tests that end no node.
    private static func shared() throws -> Cluster { try SharedCluster.cluster(basePort: 21_400) }

    /// The account's device `cam`, which is at a node, and an app at another.
    private static func sessions(
        _ cluster: Cluster, _ cam: DeviceID, account: String, nodes: (device: Int, app: Int) = (1, 2)
    ) async throws -> (device: ClientSession, app: ClientSession) {
        let device = try cluster.session(
            node: nodes.device,
            token: try cluster.token("--role", "device", "--device", cam.rawValue, "--account", account),
            role: .device)
        let app = try cluster.session(
            node: nodes.app, token: try cluster.token("--role", "app", "--account", account))
        _ = try await eventually { () throws(ApusError) in try await device.timers(of: cam) }
        _ = try await eventually { () throws(ApusError) in try await app.timers(of: cam) }
        return (device, app)
    }

    @Test("A device and apps at other nodes set, pause, hear, stop and cancel timers, also over REST and the verbs")
    func threeNodes() async throws {
        let cluster = try Self.shared()
        let cam = DeviceID(unchecked: "timer-cam")
        let (device, app) = try await Self.sessions(cluster, cam, account: "timers")
        defer { for session in [device, app] { session.close() } }
        let (heard, own, machine) = (HeardTimers(app, cam), HeardTimers(device, cam), MachineLateness())
        defer {
            machine.end()
            for heard in [heard, own] { heard.end() }
        }
        try await HeardTimers.begin([heard, own], by: app, cam)

        let tea = try await device.setTimer(.seconds(1), label: "tea", on: cam)
        let long = try await app.setTimer(.seconds(600), on: cam)
        let alarm = try await app.setAlarm(at: Date(timeIntervalSinceNow: 3600), label: "wake up", on: cam)
        #expect(tea.kind == .timer && tea.status == .running && alarm.kind == .alarm)
        let paused = try await device.pauseTimer(long.id, of: cam)
        #expect(paused.status == .paused && paused.due == nil && paused.remaining ?? .zero > .seconds(590))
        await fails(.badParameter) { () throws(ApusError) in _ = try await app.pauseTimer(alarm.id, of: cam) }
        try await own.waitFor(1, .ringing)
        try await heard.waitFor(1, .ringing)
        let late = try #require(own.lateness[UInt32(tea.id)])
        #expect((0...machine.bound(500)).contains(late), "it rang \(late) ms late")
        let listed = try await app.timers(of: cam)
        #expect(listed.map(\.id) == [tea.id, alarm.id, long.id])
        #expect(listed.map(\.status) == [.ringing, .running, .paused] && listed[0].label == "tea")
        await fails(.versionConflict) { () throws(ApusError) in _ = try await app.pauseTimer(tea.id, of: cam) }

        #expect(try await device.stopRinging(on: cam).map(\.id) == [tea.id])
        #expect(try await app.stopRinging(on: cam).isEmpty)
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await app.resumeTimer(tea.id, of: cam) }
        #expect(try await app.resumeTimer(long.id, of: cam).status == .running)
        #expect(try await device.cancelTimers(long.id, of: cam).map(\.status) == [.ended])
        try await heard.waitFor(1, .cancelled)
        let ids = (tea.id, long.id, alarm.id)
        let expected = [
            "started \(ids.0)", "started \(ids.1)", "started \(ids.2)", "updated \(ids.1)", "ringing \(ids.0)",
            "stopped \(ids.0)", "updated \(ids.1)", "cancelled \(ids.1)",
        ]
        #expect(heard.texts == expected)
        try await own.waitFor(1, .cancelled)
        #expect(own.texts == expected)
        for (before, after) in zip(heard.all, heard.all.dropFirst()) {
            #expect(after.message.previousVersion == before.message.version && !after.missed)
        }
        try restAndVerbs(cluster, cam, alarm: alarm.id)
        try await bounds(app, cam)
    }

    /// A repetition of a request is harmless at every node, and the verbs see the same timers.
    private func restAndVerbs(_ cluster: Cluster, _ cam: DeviceID, alarm: Int) throws {
        let token = try cluster.token("--role", "app", "--account", "timers")
        let path = "/v1/devices/\(cam)/timers"
        var answers: [PlainHTTP.Answer] = []
        for node in 1...3 {
            let rest = try #require(PlainHTTP(port: cluster.httpPort(node)))
            answers.append(
                try #require(
                    rest.exchange("POST", path, token: token, id: "once", body: #"{"durationMs":"500000"}"#)))
        }
        #expect(answers.allSatisfy { $0.status == 200 && $0.body == answers[0].body }, "\(answers)")
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))
        let list = try #require(rest.exchange("GET", path, token: token))
        #expect(list.status == 200 && list.body.components(separatedBy: "\"id\"").count == 3, "\(list.body)")
        for (method, target, body, status, code) in [
            ("POST", path, #"{"durationMs":"1","dueMs":"2"}"#, 400, "21031"), ("POST", path, "{}", 400, "21031"),
            ("POST", path, #"{"durationMs":"-5"}"#, 400, "21031"), ("DELETE", "\(path)/none", nil, 400, "21031"),
            ("DELETE", "\(path)/999", nil, 404, "8002"),
        ] {
            let answer = try #require(rest.exchange(method, target, token: token, body: body))
            #expect(answer.status == status && answer.body.contains(code), "\(method) \(target) \(answer)")
        }
        let environment = ["APUS_TOKEN": token]
        func verb(_ words: String..., expecting text: String) throws {
            let arguments = ["timers"] + words + ["--dir", cluster.directory]
            let outcome = try Cluster.run(arguments, environment: environment)
            #expect(outcome.status == 0 && outcome.output.contains(text), "\(words): \(outcome.all)")
        }
        try verb("list", cam.rawValue, expecting: "wake up")
        try verb("set", cam.rawValue, "--after", "10m", "--label", "eggs", expecting: "eggs")
        try verb("cancel", cam.rawValue, "\(alarm)", "--json", expecting: "TIMER_STATUS_ENDED")
        try verb("stop", cam.rawValue, expecting: "Nothing rings")
    }

    private func bounds(_ app: ClientSession, _ cam: DeviceID) async throws {
        _ = try await app.cancelTimers(of: cam)
        await fails(.badParameter) { () throws(ApusError) in
            try await app.setTimer(.seconds(1), label: String(repeating: "x", count: 65), on: cam)
        }
        await fails(.badParameter) { () throws(ApusError) in
            try await app.setAlarm(at: Date(timeIntervalSinceNow: -1), on: cam)
        }
        for _ in 0..<32 {
            // Changes wait while too many events do.
            try await eventually { () throws(ApusError) in _ = try await app.setTimer(.seconds(3600), on: cam) }
        }
        #expect(try await app.timers(of: cam).count == 32)
        await fails(.overloaded) { () throws(ApusError) in try await app.setTimer(.seconds(3600), on: cam) }
        #expect(try await app.cancelTimers(of: cam).count == 32)
    }

    @Test("A timer that rings can be cancelled, and then there is nothing to stop")
    func cancelWhileRinging() async throws {
        let cluster = try Self.shared()
        let cam = DeviceID(unchecked: "cancel-cam")
        let (device, app) = try await Self.sessions(cluster, cam, account: "timers-cancel")
        defer { for session in [device, app] { session.close() } }
        let heard = HeardTimers(device, cam)
        defer { heard.end() }
        try await HeardTimers.begin([heard], by: app, cam)
        let timer = try await app.setTimer(.milliseconds(300), on: cam)
        try await heard.waitFor(1, .ringing)
        #expect(try await app.cancelTimers(timer.id, of: cam).map(\.id) == [timer.id])
        #expect(try await device.stopRinging(on: cam).isEmpty)
        try await heard.waitFor(1, .cancelled)
        #expect(heard.texts == ["started \(timer.id)", "ringing \(timer.id)", "cancelled \(timer.id)"])
        #expect(try await app.timers(of: cam).isEmpty)
    }

    @Test("Another account sees no timer and hears none, also after the device was handed over to it")
    func otherAccount() async throws {
        let cluster = try Self.shared()
        let cam = DeviceID(unchecked: "owned-cam")
        let (device, app) = try await Self.sessions(cluster, cam, account: "timers-owner")
        let other = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", "timers-other"))
        defer { for session in [device, app, other] { session.close() } }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await other.timers(of: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in try await other.setTimer(.seconds(1), on: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in try await other.stopRinging(on: cam) }
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await device.timers(of: DeviceID(unchecked: "timer-cam"))
        }
        do {
            for try await _ in other.timerChanges(of: cam) {}
            Issue.record("another account subscribes")
        } catch {
            #expect((error as? ApusError)?.code == .illegalRelation)
        }

        let heard = HeardTimers(app, cam)
        defer { heard.end() }
        try await HeardTimers.begin([heard], by: app, cam)
        try await app.setTimer(.seconds(2), label: "secret", on: cam)
        try await app.setTimer(.seconds(600), on: cam)
        try await app.transfer(cam, to: AccountID(unchecked: "timers-other"))
        let found = try await eventually { () throws(ApusError) in try await other.timers(of: cam) }
        #expect(found.isEmpty)
        let otherHeard = HeardTimers(other, cam)
        defer { otherHeard.end() }
        try await HeardTimers.begin([otherHeard], by: other, cam)
        let own = try await other.setTimer(.seconds(3), on: cam)
        try await otherHeard.waitFor(1, .ringing)
        #expect(otherHeard.texts == ["started \(own.id)", "ringing \(own.id)"])
        #expect(heard.count(.ringing) == 0, "it does not ring for the former account either")
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await app.timers(of: cam) }
    }

    @Test("Timers whose owner is killed before they are due ring once, and at most 500 ms and the failover late")
    func ownerDies() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 21_440)
        defer { cluster.down() }
        let cam = DeviceID(unchecked: "cam")
        let owner = try cluster.owner(of: cam.rawValue)
        let others = (1...3).filter { $0 != owner }
        let (device, app) = try await Self.sessions(
            cluster, cam, account: "local", nodes: (others[0], others[1]))
        defer { for session in [device, app] { session.close() } }
        let heard = HeardTimers(device, cam)
        defer { heard.end() }
        try await HeardTimers.begin([heard], by: app, cam)
        let machine = MachineLateness()
        defer { machine.end() }
        let start = ContinuousClock.now
        let ids = try await Self.set(10, every: .milliseconds(200), after: .seconds(1), app, cam)
        try await Task.sleep(until: start + .milliseconds(1_900))
        kill(try cluster.pid(owner), SIGKILL)
        let killedMs = Int64(Date().timeIntervalSince1970 * 1000)
        try await heard.waitFor(ids.count, .ringing)
        // Whatever rings twice does so within this time.
        try await Task.sleep(for: .seconds(2))
        let late = heard.lateness
        print("lateness in ms, by timer: \(late.sorted { $0.key < $1.key }.map(\.value))")
        #expect(heard.all.filter { $0.message.kind == .ringing }.map { Int($0.message.timer.id) } == ids)
        let undisturbed = heard.all.filter { $0.message.kind == .ringing && $0.atMs < killedMs }
        #expect(undisturbed.allSatisfy { (0...machine.bound(500)).contains($0.atMs - $0.message.timer.dueMs) })
        // The death is noticed at once, since the address refuses connections.
        #expect(late.values.allSatisfy { (0...machine.bound(2_500)).contains($0) }, "\(late)")
        #expect(late[UInt32(ids[9])] ?? .max <= machine.bound(1_500), "the last one was due 900 ms after the death")
        #expect(Set(try await app.timers(of: cam).map(\.status)) == [.ringing])
        #expect(try await app.stopRinging(on: cam).count == ids.count)
    }

    private static func set(
        _ count: Int, every interval: Duration, after first: Duration, _ app: ClientSession, _ cam: DeviceID
    ) async throws -> [Int] {
        let start = Date()
        var ids: [Int] = []
        for number in 0..<count {
            let due = first + interval * number
            let at = start.addingTimeInterval(due.milliseconds / 1000)
            ids.append(try await app.setAlarm(at: at, on: cam).id)
        }
        return ids
    }

    @Test("Timers that become due while all nodes are dead ring once when these start again")
    func allNodesDie() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 21_480)
        defer { cluster.down() }
        let cam = DeviceID(unchecked: "cam")
        let (device, app) = try await Self.sessions(cluster, cam, account: "local")
        defer { for session in [device, app] { session.close() } }
        let heard = HeardTimers(app, cam)
        defer { heard.end() }
        try await HeardTimers.begin([heard], by: app, cam)
        let short = try await app.setTimer(.seconds(2), label: "tea", on: cam)
        let long = try await app.setTimer(.seconds(600), on: cam)
        let paused = try await app.setTimer(.seconds(8), on: cam)
        try await app.pauseTimer(paused.id, of: cam)
        try await heard.waitFor(1, .updated)
        let version = heard.all.last?.message.version ?? 0
        for node in 1...3 { kill(try cluster.pid(node), SIGKILL) }
        try await Task.sleep(for: .seconds(3))
        #expect(heard.count(.ringing) == 0)
        // The verb waits until the nodes have exchanged their shards. The timer rings before.
        let startedMs = Int64(Date().timeIntervalSince1970 * 1000)
        try cluster.start("cluster", "up")
        try await eventually("the timer rings") {
            (try? await app.timers(of: cam).first)?.status == .ringing
        }
        print("rings within \(Int64(Date().timeIntervalSince1970 * 1000) - startedMs) ms of the start of the nodes")
        let listed = try await eventually { () throws(ApusError) in try await app.timers(of: cam) }
        #expect(listed.map(\.id) == [short.id, long.id, paused.id] && listed[0].label == "tea")
        #expect(listed.map(\.status) == [.ringing, .running, .paused])
        try await Task.sleep(for: .seconds(1))
        // The device's session may come back later than that of the app.
        let silenced = try await eventually { () throws(ApusError) in try await device.stopRinging(on: cam) }
        #expect(silenced.map(\.id) == [short.id])
        try await heard.waitFor(1, .stopped)
        // There is one event, that it rings, between the last one before the deaths and the one that it was stopped.
        let stopped = try #require(heard.all.last?.message)
        #expect(stopped.kind == .stopped && stopped.version == version + 2, "\(heard.texts)")
        #expect(heard.count(.ringing) <= 1)
    }
}
