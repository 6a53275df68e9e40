import ApusClient
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Synchronization

/// Accounts with an app and a device each, which call one after the other, and accounts whose device calls three apps.
///
/// A party is on one call at a time, and an account places a limited number of calls a minute, so a rate needs many of
/// them. Each app is at another node than its device.
final class CallLoad: Sendable {
    private struct Pair: Sendable {
        let app: CallBenchClient
        let device: CallBenchClient
        let id: DeviceID
    }

    private struct Family: Sendable {
        let device: CallBenchClient
        let apps: [CallBenchClient]
    }

    /// The apps of an account whose device calls them.
    private static let familyAppCount = 3
    /// The sign-ins, and the calls of ``connect(_:)``, that are in progress.
    private static let concurrency = 32

    private let stage: SignInStage
    private let pairs: [Pair]
    private let families: [Family]
    private let hasMedia: Bool
    /// By number, pairs and then families: who is on a call.
    private let busy: Mutex<[Bool]>
    private let idle = Mutex(0.0)

    /// - Parameter hasMedia: both sides report that they have media, as those of a real call do.
    init(_ stage: SignInStage, pairs pairCount: Int, families familyCount: Int, hasMedia: Bool) async throws {
        (self.stage, self.hasMedia) = (stage, hasMedia)
        let nodes = stage.local.mark.nodes.map(\.name)
        pairs = try await Self.each(pairCount) { number in
            let (account, id) = ("account-\(number)", DeviceID(unchecked: "device-\(number)"))
            return Pair(
                app: try await Self.app("app-\(number)", account, stage, nodes[number % nodes.count]),
                device: try await Self.device(id, account, stage, nodes[(number + 1) % nodes.count]), id: id)
        }
        families = try await Self.each(familyCount) { number in
            let (account, id) = ("family-\(number)", DeviceID(unchecked: "bell-\(number)"))
            var apps: [CallBenchClient] = []
            for index in 0..<Self.familyAppCount {
                apps.append(
                    try await Self.app("app-\(number)-\(index)", account, stage, nodes[(number + index) % nodes.count]))
            }
            return Family(device: try await Self.device(id, account, stage, nodes[number % nodes.count]), apps: apps)
        }
        busy = Mutex(Array(repeating: false, count: pairCount + familyCount))
    }

    private static func app(
        _ access: String, _ account: String, _ stage: SignInStage, _ node: String
    ) async throws -> CallBenchClient {
        CallBenchClient(
            try await stage.session(
                .app, AccessID(unchecked: access), account: AccountID(unchecked: account), device: nil, first: node))
    }

    private static func device(
        _ id: DeviceID, _ account: String, _ stage: SignInStage, _ node: String
    ) async throws -> CallBenchClient {
        CallBenchClient(
            try await stage.session(
                .device, AccessID(unchecked: id.rawValue), account: AccountID(unchecked: account), device: id,
                first: node))
    }

    /// Makes a number of things, some at a time.
    static func each<Value: Sendable>(
        _ count: Int, _ make: @escaping @Sendable (Int) async throws -> Value
    ) async throws -> [Value] {
        try await withThrowingTaskGroup(of: (Int, Value).self) { group in
            var values: [Int: Value] = [:]
            for number in 0..<count {
                if number >= concurrency, let (number, value) = try await group.next() { values[number] = value }
                group.addTask { (number, try await make(number)) }
            }
            for try await (number, value) in group { values[number] = value }
            return (0..<count).compactMap { values[$0] }
        }
    }

    // MARK: - Clients

    private var clients: [CallBenchClient] {
        pairs.flatMap { [$0.app, $0.device] } + families.flatMap { $0.apps + [$0.device] }
    }

    /// Runs the body while all clients take calls.
    func run<Result: Sendable>(_ body: @escaping @Sendable () async throws -> Result) async throws -> Result {
        let clients = clients
        defer { for client in clients { client.session.close() } }
        return try await withThrowingTaskGroup(of: Result?.self) { group in
            defer { group.cancelAll() }
            for client in clients {
                group.addTask {
                    await client.run()
                    return nil
                }
            }
            group.addTask {
                while (try? await Task.sleep(for: .milliseconds(200))) != nil {
                    let now = MonotonicTime.now()
                    for client in clients { client.expire(at: now) }
                }
                return nil
            }
            group.addTask {
                _ = try await Self.each(clients.count) { try await clients[$0].ready() }
                // The sign-ins' last work is over after this.
                try await Task.sleep(for: .seconds(3))
                try await self.measureIdle()
                return try await body()
            }
            while let result = try await group.next() {
                if let result { return result }
            }
            throw ApusError(.cancelled)
        }
    }

    private func measureIdle() async throws {
        let (start, before) = (MonotonicTime.now(), try nodeSeconds())
        try await Task.sleep(for: .seconds(3))
        let share = (try nodeSeconds() - before) / ((.now() - start).milliseconds / 1000)
        idle.withLock { $0 = share }
    }

    /// CPU time of the nodes while nobody calls, in seconds for each second.
    var idleShare: Double { idle.withLock { $0 } }

    private func nodeSeconds() throws(ApusError) -> Double {
        var sum = 0.0
        for node in stage.local.mark.nodes { sum += try stage.busySeconds(of: node.name) }
        return sum
    }

    // MARK: - Rates

    /// Places calls at fixed times, whatever they take, and waits until all have ended.
    func steady(rate: Double, seconds: Double) async throws -> CallPart {
        try await place(rate: rate, seconds: seconds, of: pairs.count, from: 0) { await self.call($0) }
    }

    /// The same with calls of a device to three apps of its account.
    func forks(rate: Double, seconds: Double) async throws -> CallPart {
        try await place(rate: rate, seconds: seconds, of: families.count, from: pairs.count) {
            await self.fork($0 - self.pairs.count)
        }
    }

    /// The same with media: each side sends a frame.
    func media(rate: Double, seconds: Double) async throws -> CallPart {
        try await place(rate: rate, seconds: seconds, of: pairs.count, from: 0) { await self.mediaCall($0) }
    }

    private func place(
        rate: Double, seconds: Double, of callerCount: Int, from first: Int,
        _ call: @escaping @Sendable (Int) async -> CallOutcome
    ) async throws -> CallPart {
        let (nodes, own) = (try nodeSeconds(), try BenchProcess.busySeconds(of: getpid()))
        let start = MonotonicTime.now()
        var part = await withTaskGroup(of: CallOutcome.self) { group in
            for number in 0..<Int(rate * seconds) {
                let due = start + .nanoseconds(Int64(Double(number) * 1e9 / rate))
                let wait = due - .now()
                if wait > .zero, (try? await Task.sleep(for: wait)) == nil { break }
                let caller = first + number % callerCount
                group.addTask {
                    let lateness = (.now() - due).milliseconds
                    guard self.takes(caller) else {
                        return CallOutcome(lateness: lateness, failure: "the caller's last call has not ended")
                    }
                    defer { self.busy.withLock { $0[caller] = false } }
                    var outcome = await call(caller)
                    outcome.lateness = lateness
                    return outcome
                }
            }
            return await group.reduce(into: CallPart()) { $0.add($1) }
        }
        try Task.checkCancellation()
        part.seconds = (.now() - start).milliseconds / 1000
        part.serverSeconds = try nodeSeconds() - nodes - idleShare * part.seconds
        part.clientSeconds = try BenchProcess.busySeconds(of: getpid()) - own
        return part
    }

    private func takes(_ caller: Int) -> Bool {
        busy.withLock { busy in
            guard !busy[caller] else { return false }
            busy[caller] = true
            return true
        }
    }

    // MARK: - Calls

    private func call(_ number: Int) async -> CallOutcome {
        await Self.outcome { step, times throws(ApusError) in
            let pair = self.pairs[number]
            let id = try await self.connect(pair, reportsMedia: self.hasMedia, &step, &times)
            step = "hang-up"
            try await Self.hangUp(id, by: pair.app, reaching: pair.device, &times)
        }
    }

    private func mediaCall(_ number: Int) async -> CallOutcome {
        await Self.outcome { step, times throws(ApusError) in
            let pair = self.pairs[number]
            let id = try await pair.app.session.startCall(to: [.device(pair.id)]).id
            step = "ring"
            _ = try await pair.device.next(.ring, of: id)
            step = "accept"
            let accept = MonotonicTime.now()
            try Self.check(try await pair.device.session.acceptCall(id))
            let called = CallBenchSide(pair.device.session, id)
            defer { called.stop() }
            _ = try await pair.app.next(.accepted, of: id)
            let calling = CallBenchSide(pair.app.session, id)
            defer { calling.stop() }
            step = "media"
            let last = max(try await called.firstFrame(), try await calling.firstFrame())
            times[.firstFrames] = (last - accept).milliseconds
            step = "connect"
            for client in [pair.device, pair.app] { try Self.check(try await client.session.reportCallConnected(id)) }
            step = "hang-up"
            try await Self.hangUp(id, by: pair.app, reaching: pair.device, &times)
        }
    }

    private func fork(_ number: Int) async -> CallOutcome {
        await Self.outcome { step, times throws(ApusError) in
            let family = self.families[number]
            let start = MonotonicTime.now()
            let id = try await family.device.session.startCall(to: []).id
            step = "ring"
            var last = start
            for app in family.apps { last = max(last, try await app.next(.ring, of: id).time) }
            times[.allRing] = (last - start).milliseconds
            step = "accept"
            let accept = MonotonicTime.now()
            let winner = number % family.apps.count
            try Self.check(try await family.apps[winner].session.acceptCall(id))
            step = "stop"
            last = accept
            for (index, app) in family.apps.enumerated() where index != winner {
                let end = try await app.next(.ended, of: id)
                guard end.error?.code == .answeredByOthers else { throw end.error ?? ApusError(.peerHungUp) }
                last = max(last, end.time)
            }
            times[.stopped] = (last - accept).milliseconds
            _ = try await family.device.next(.accepted, of: id)
            step = "hang-up"
            try await Self.hangUp(id, by: family.device, reaching: family.apps[winner], &times)
        }
    }

    private static func outcome(
        _ body: (inout String, inout [CallMeasure: Double]) async throws(ApusError) -> Void
    ) async -> CallOutcome {
        var (step, outcome) = ("start", CallOutcome())
        do throws(ApusError) {
            try await body(&step, &outcome.times)
        } catch {
            outcome.failure = "\(step) \(error.code.number)"
        }
        return outcome
    }

    private func connect(
        _ pair: Pair, reportsMedia: Bool, _ step: inout String, _ times: inout [CallMeasure: Double]
    ) async throws(ApusError) -> String {
        let start = MonotonicTime.now()
        let id = try await pair.app.session.startCall(to: [.device(pair.id)]).id
        times[.placed] = (.now() - start).milliseconds
        step = "ring"
        times[.ring] = (try await pair.device.next(.ring, of: id).time - start).milliseconds
        step = "ringing"
        times[.ringing] = (try await pair.app.next(.ringing, of: id).time - start).milliseconds
        step = "accept"
        let accept = MonotonicTime.now()
        try Self.check(try await pair.device.session.acceptCall(id))
        times[.accepted] = (try await pair.app.next(.accepted, of: id).time - accept).milliseconds
        guard reportsMedia else { return id }
        step = "connect"
        for client in [pair.device, pair.app] { try Self.check(try await client.session.reportCallConnected(id)) }
        return id
    }

    private static func hangUp(
        _ id: String, by client: CallBenchClient, reaching peer: CallBenchClient, _ times: inout [CallMeasure: Double]
    ) async throws(ApusError) {
        let hangUp = MonotonicTime.now()
        try await client.session.hangUpCall(id)
        let end = try await peer.next(.ended, of: id)
        guard end.error?.code == .peerHungUp else { throw end.error ?? ApusError(.cancelled) }
        times[.ended] = (end.time - hangUp).milliseconds
    }

    private static func check(_ call: ClientSession.Call) throws(ApusError) {
        guard call.isAccepted, !call.isEnded else { throw call.error ?? ApusError(.callUnknown) }
    }

    // MARK: - Calls in progress

    /// Calls of each pair that end before the memory is measured.
    private static let endedCallCount = 2
    /// How long nodes keep the state of a call that has ended (`calls.ended_time`), and some time for the last ones.
    private static let endedTime = Duration.seconds(63)

    /// Places a call of each pair, lets all of them go on for a time, and ends them.
    func memory() async throws -> CallMemory {
        var memory = CallMemory()
        // The sign-ins have left free memory in the nodes' heaps. These calls take it: their states are kept for a
        // minute.
        for _ in 0..<Self.endedCallCount { _ = try await Self.each(pairs.count) { await self.call($0) } }
        let (fillEnd, before) = (MonotonicTime.now(), try residentBytes())
        let connected = try await Self.each(pairs.count) { number -> (CallOutcome, String?) in
            var id: String?
            let outcome = await Self.outcome { step, times throws(ApusError) in
                id = try await self.connect(self.pairs[number], reportsMedia: true, &step, &times)
            }
            return (outcome, id)
        }
        memory.calls = connected.count { $0.1 != nil }
        try await Task.sleep(for: .seconds(3))
        memory.kibibytes = (try residentBytes() - before) / 1024 / Double(max(1, memory.calls))
        // Once the ended calls are forgotten. Each call in progress renews its claims every 20 seconds.
        try await Task.sleep(for: max(.zero, fillEnd + Self.endedTime - .now()))
        let (start, busy) = (MonotonicTime.now(), try nodeSeconds())
        try await Task.sleep(for: .seconds(20))
        let share = (try nodeSeconds() - busy) / ((.now() - start).milliseconds / 1000) - idleShare
        memory.microsecondsPerSecond = share * 1e6 / Double(max(1, memory.calls))
        let ended = try await Self.each(pairs.count) { number -> CallOutcome in
            guard let id = connected[number].1 else { return connected[number].0 }
            return await Self.outcome { step, times throws(ApusError) in
                step = "hang-up"
                let pair = self.pairs[number]
                try await Self.hangUp(id, by: pair.app, reaching: pair.device, &times)
            }
        }
        for failure in ended.compactMap(\.failure) { memory.failures[failure, default: 0] += 1 }
        return memory
    }

    /// Of all nodes' processes, in bytes.
    private func residentBytes() throws(ApusError) -> Double {
        var sum = 0.0
        for node in stage.local.mark.nodes {
            guard let pid = NodeProcess(node.name, in: stage.local.directory).pid else {
                throw ApusError(.internalFailure, "the node \(node.name) is not running")
            }
            sum += Double(try BenchProcess.residentByteCount(of: pid))
        }
        return sum
    }
}
