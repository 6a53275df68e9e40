import ApusClient
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Synchronization

/// Calls in all states, and the kills. A round brings the calls into their states, kills a node, drives each call to
/// its end, and then calls every party once more.
///
/// Each device and each app is at another node than the other side of its call. A client that has changed its node
/// signs in again before the next round, but for those with media: their sessions go on through all kills.
final class CallKillLoad: Sendable {
    /// The parties of a call.
    private struct Cast: Sendable {
        let caller: CallSeat
        let callees: [CallSeat]
        var other: CallSeat?
        var seats: [CallSeat] { [caller] + callees + [other].compactMap { $0 } }
    }

    /// A call with media.
    private struct MediaCall: Sendable {
        let script: CallKillScript
        let call: String
        let sides: [CallKillSide]
    }

    /// The calls that are brought into their state, and the sign-ins, at once.
    private static let concurrency = 32
    /// Of each kind with more than two parties: a call in so many.
    private static let groupShare = 25
    /// From the start of the calls that end soon to the kill.
    private static let shortTime = Duration.milliseconds(4900)
    /// A party may be busy for so long after the end of its call.
    private static let busyTime = Duration.seconds(2)
    private static let settleTime = Duration.seconds(1)

    private let stage: SignInStage
    /// Over which the calls act, in seconds from the kill on.
    private let window: Int
    private let nodes: [String]
    private let pairs: [Cast]
    private let families: [Cast]
    private let trios: [Cast]
    private let mediaPairs: [Cast]
    private let ledger = CallKillLedger()
    private let feed: AsyncStream<CallBenchClient>.Continuation
    private let clients: AsyncStream<CallBenchClient>

    /// - Parameter window: over which the calls act, in seconds from the kill on; 2 or more.
    init(_ stage: SignInStage, calls: Int, mediaCalls: Int, window: Int) async throws {
        (self.stage, self.window) = (stage, window)
        let nodes = stage.local.mark.nodes.map(\.name)
        (clients, feed) = AsyncStream.makeStream()
        let groups = max(1, calls / Self.groupShare)
        // A trio with a busy callee has two calls.
        let pairCount = max(CallKillKind.pairs.count, calls - mediaCalls - groups * 4)
        pairs = try await CallLoad.each(pairCount) { try await Self.pair($0, "pair", nodes, stage) }
        mediaPairs = try await CallLoad.each(mediaCalls) { try await Self.pair($0, "media", nodes, stage) }
        families = try await CallLoad.each(groups) { number in
            let account = "family-\(number)"
            var apps: [CallSeat] = []
            for index in 0..<3 {
                let node = nodes[(number + index) % nodes.count]
                apps.append(try await CallSeat("app-\(number)-\(index)", account: account, at: node, stage))
            }
            let bell = try await CallSeat(
                "bell-\(number)", isDevice: true, account: account, at: nodes[number % nodes.count], stage)
            return Cast(caller: bell, callees: apps)
        }
        trios = try await CallLoad.each(groups * 2) { number in
            let account = "trio-\(number)"
            var devices: [CallSeat] = []
            for index in 0..<3 {
                let node = nodes[(number + index) % nodes.count]
                devices.append(
                    try await CallSeat("cam-\(number)-\(index)", isDevice: true, account: account, at: node, stage))
            }
            let isBusy = number.isMultiple(of: 2)
            return Cast(
                caller: devices[0], callees: isBusy ? [devices[1]] : Array(devices[1...]),
                other: isBusy ? devices[2] : nil)
        }
        self.nodes = nodes
    }

    private static func pair(
        _ number: Int, _ kind: String, _ nodes: [String], _ stage: SignInStage
    ) async throws -> Cast {
        let account = "\(kind)-account-\(number)"
        return Cast(
            caller: try await CallSeat(
                "\(kind)-app-\(number)", account: account, at: nodes[number % nodes.count], stage),
            callees: [
                try await CallSeat(
                    "\(kind)-device-\(number)", isDevice: true, account: account,
                    at: nodes[(number + 1) % nodes.count], stage)
            ])
    }

    private var casts: [Cast] { pairs + families + trios }
    private var seats: [CallSeat] { (casts + mediaPairs).flatMap(\.seats) }

    // MARK: - The run

    func run(kills: Int, down: Duration) async throws -> CallKillResult {
        let seats = seats
        for seat in seats { feed.yield(seat.client) }
        defer { for seat in seats { seat.session.close() } }
        return try await withThrowingTaskGroup(of: CallKillResult?.self) { group in
            defer { group.cancelAll() }
            group.addTask { [clients] in
                await withDiscardingTaskGroup { group in
                    for await client in clients { group.addTask { await client.run() } }
                }
                return nil
            }
            group.addTask {
                while (try? await Task.sleep(for: .milliseconds(200))) != nil {
                    let now = MonotonicTime.now()
                    for seat in seats { seat.client.expire(at: now) }
                }
                return nil
            }
            group.addTask { try await self.rounds(kills, down) }
            while let result = try await group.next() {
                if let result { return result }
            }
            throw ApusError(.cancelled)
        }
    }

    private func rounds(_ kills: Int, _ down: Duration) async throws -> CallKillResult {
        let seats = seats
        _ = try await CallLoad.each(seats.count) { try await seats[$0].client.ready() }
        try await Task.sleep(for: Self.settleTime)
        var (result, unknown) = (CallKillResult(), Set<String>())
        let media = try await startMedia(&result)
        for number in 0..<kills {
            try await round(number, down, media, &result)
            try await verify(&result)
            let known = ledger.values.calls
            for seat in seats { unknown.formUnion(seat.client.rings.keys.filter { !known.contains($0) }) }
            BenchScope.say("killed \(nodes[number % nodes.count]) (\(number + 1)/\(kills))")
            if number + 1 < kills { try await bringHome() }
        }
        try await finish(media, &result)
        for seat in seats { result.faults.add(seat.faults) }
        (result.ledger, result.unknownRings, result.kills) = (ledger.values, unknown.count, kills)
        return result
    }

    // MARK: - A round

    private func round(
        _ number: Int, _ down: Duration, _ media: [MediaCall], _ result: inout CallKillResult
    ) async throws {
        let gate = KillGate(permits: Self.concurrency)
        let scripts = scripts(number, gate)
        let node = nodes[number % nodes.count]
        var atNode: Set<ObjectIdentifier> = []
        var kill = MonotonicTime.zero
        let outcomes = try await withThrowingTaskGroup(of: (CallKillKind, CallKillMiss?).self) { group in
            func start(_ scripts: [CallKillScript]) {
                for script in scripts {
                    group.addTask {
                        let miss = await script.run()
                        gate.finish()
                        return (script.kind, miss)
                    }
                }
            }
            let long = scripts.filter { !$0.kind.isShort }
            start(long)
            while gate.preparedCount < long.count { try await Task.sleep(for: .milliseconds(20)) }
            let began = MonotonicTime.now()
            start(scripts.filter(\.kind.isShort))
            while gate.preparedCount < scripts.count { try await Task.sleep(for: .milliseconds(20)) }
            atNode = try await clients(at: node)
            kill = max(began + Self.shortTime, .now() + .milliseconds(500))
            gate.announce(kill)
            try await Task.sleep(for: max(.zero, kill - .now()))
            try stage.kill(node)
            let inProgress = scripts.reduce(media.count) { $0 + $1.kind.callCount }
            result.inProgress.append(inProgress - gate.finishedCount)
            try await Task.sleep(for: down)
            try await restart()
            return try await group.reduce(into: [(CallKillKind, CallKillMiss?)]()) { $0.append($1) }
        }
        for (kind, miss) in outcomes { result.add(kind, miss) }
        result.clientsAtNode.append(atNode.count)
        for call in media {
            let isAtNode = call.sides.contains { atNode.contains(ObjectIdentifier($0.session)) }
            let gaps = call.sides.map { $0.gap(from: kill, to: kill + .seconds(window)).milliseconds }
            if isAtNode { result.gaps.moved += gaps } else { result.gaps.others += gaps }
        }
    }

    /// Off the threads of tasks: it waits for a program.
    private func restart() async throws {
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
            Thread.detachNewThread { [stage] in continuation.resume(with: Result { try stage.restart() }) }
        }
    }

    private func clients(at node: String) async throws -> Set<ObjectIdentifier> {
        let endpoint = try stage.local.endpoint(of: node)
        var found: Set<ObjectIdentifier> = []
        for seat in seats {
            let session = seat.session
            if await session.currentEndpoint() == endpoint { found.insert(ObjectIdentifier(session)) }
        }
        return found
    }

    private func scripts(_ round: Int, _ gate: KillGate) -> [CallKillScript] {
        var found: [(kind: CallKillKind, cast: Cast)] = pairs.enumerated().map { number, cast in
            // Each pair has another kind in the next round.
            (CallKillKind.pairs[(number + round) % CallKillKind.pairs.count], cast)
        }
        found += families.map { (kind: CallKillKind.forked, cast: $0) }
        found += trios.map { (kind: $0.other == nil ? CallKillKind.declining : .busy, cast: $0) }
        return found.enumerated().map { number, entry in
            self.script(
                entry.kind, entry.cast, gate, place: number * 7919 % found.count, of: found.count, isOdd: round % 2 == 1
            )
        }
    }

    /// - Parameter place: where in the time around the kill the call acts.
    private func script(
        _ kind: CallKillKind, _ cast: Cast, _ gate: KillGate, place: Int = 0, of count: Int = 1, isOdd: Bool = false
    ) -> CallKillScript {
        CallKillScript(
            kind: kind, caller: cast.caller, callees: cast.callees, other: cast.other,
            isOdd: isOdd != place.isMultiple(of: 2), meanwhile: .milliseconds(place * 1000 / count - 100),
            later: .milliseconds(place * (window - 1) * 1000 / count + 1000), window: .seconds(window),
            ringTime: .seconds(5 + place % (window - 1)), gate: gate, ledger: ledger)
    }

    // MARK: - Afterwards

    /// Calls every party once more: nobody may be on a call that has ended.
    private func verify(_ result: inout CallKillResult) async throws {
        let casts = casts
        let failures = try await CallLoad.each(casts.count) { await self.verify(casts[$0]) }
        for failure in failures.compactMap({ $0 }) { result.busyAfterwards[failure, default: 0] += 1 }
    }

    private func verify(_ cast: Cast) async -> String? {
        let script = self.script(.ringing, Cast(caller: cast.caller, callees: cast.callees), KillGate(permits: 1))
        let deadline = MonotonicTime.now() + Self.busyTime
        while true {
            do throws(CallKillMiss) {
                let isFamily = cast.callees[0].device == nil
                let call = try await script.ring(isFamily ? .oneToMany : .oneToManySpecial)
                try await script.end(call, by: cast.caller, cast.callees.map { ($0, .callCancelled) }) {
                    (session) throws(ApusError) in try await session.hangUpCall(call)
                }
                return nil
            } catch {
                guard MonotonicTime.now() < deadline else { return error.text }
            }
            try? await Task.sleep(for: .milliseconds(100))
        }
    }

    /// Signs in again those who are at another node than they began at.
    private func bringHome() async throws {
        let seats = casts.flatMap(\.seats)
        _ = try await CallLoad.each(seats.count) { number in
            guard await seats[number].isAway(self.stage) else { return }
            let client = try await seats[number].signInAgain(self.stage)
            self.feed.yield(client)
            try await client.ready()
        }
        try await Task.sleep(for: Self.settleTime)
    }

    // MARK: - Media

    private func startMedia(_ result: inout CallKillResult) async throws -> [MediaCall] {
        var calls: [MediaCall] = []
        for cast in mediaPairs {
            let script = self.script(.media, cast, KillGate(permits: 1), isOdd: calls.count.isMultiple(of: 2))
            do throws(CallKillMiss) {
                let call = try await script.ring()
                try await script.accept(call, at: script.callee)
                let names = [cast.caller, script.callee].map(\.access.rawValue)
                let sides = [
                    CallKillSide(cast.caller.session, call, own: names[0], peer: names[1]),
                    CallKillSide(script.callee.session, call, own: names[1], peer: names[0]),
                ]
                for side in sides { side.start() }
                try await script.connect(call, script.callee)
                calls.append(MediaCall(script: script, call: call, sides: sides))
            } catch {
                result.add(.media, error)
            }
        }
        return calls
    }

    private func finish(_ media: [MediaCall], _ result: inout CallKillResult) async throws {
        for side in media.flatMap(\.sides) { side.pause() }
        let deadline = MonotonicTime.now() + .seconds(5)
        for call in media {
            for (side, peer) in [(call.sides[0], call.sides[1]), (call.sides[1], call.sides[0])] {
                while MonotonicTime.now() < deadline, Int(side.newest ?? 0) + 1 < peer.sent {
                    try await Task.sleep(for: .milliseconds(20))
                }
                result.frames += side.received
                result.lost += side.lost(of: peer.sent)
                result.doubled += side.doubled
                result.wrong += side.wrong
            }
            var miss: CallKillMiss?
            if let end = call.sides.compactMap(\.end).first {
                miss = CallKillMiss(kind: .dropped, text: "media ended: \(end.code.number)")
            }
            do throws(CallKillMiss) {
                try await call.script.hangUp(call.call, call.script.callee)
            } catch {
                miss = error
            }
            result.add(.media, miss)
            for side in call.sides { side.stop() }
        }
    }
}
