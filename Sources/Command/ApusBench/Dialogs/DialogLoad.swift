import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusLocal
import ApusSessions
import Foundation
import Logging
import SwiftProtobuf
import Synchronization

/// Devices with a lock, each in a room of its own, and apps that ask them to lock. An app repeats each sentence until
/// it has a reply.
final class DialogLoad: Sendable {
    /// How a sentence ended.
    struct Outcome: Sendable {
        let device: Int
        let milliseconds: Double
        let reply: String
        let isDone: Bool
    }

    private let sessions: LoadSessions
    private let tasks: [Task<Void, Never>]
    private let ledger: Ledger
    private let numbers = Atomic<UInt64>(0)

    /// How often each device was asked to lock.
    private final class Ledger: Sendable {
        let locked: Mutex<[Int]>
        init(_ count: Int) { locked = Mutex(Array(repeating: 0, count: count)) }
    }

    /// A sentence that has no reply after this time has failed.
    private static let sayTime = Duration.seconds(20)

    init(_ stage: SignInStage, devices count: Int) async throws {
        let sessions = try await LoadSessions(stage, devices: count, apps: 3 * LoadSessions.accountCount)
        let ledger = Ledger(count)
        (self.sessions, self.ledger) = (sessions, ledger)
        let silent = Logger(label: "bench") { _ in SwiftLogNoOpLogHandler() }
        tasks = sessions.devices.enumerated().map { number, device in
            let commands = DeviceCommands(session: device.session, log: silent)
            commands.onAction("lock") { _ throws(ApusError) in
                ledger.locked.withLock { $0[number] += 1 }
                return "0"
            }
            return Task { _ = try? await commands.run() }
        }
        for account in 0..<min(count, LoadSessions.accountCount) {
            let home = Self.home(of: account, sessions.devices)
            try await LoadSessions.repeated { () throws(ApusError) in
                _ = try await sessions.app(account, 0).setVoiceHome(home)
            }
        }
        for number in sessions.devices.indices {
            try await LoadSessions.repeated { () throws(ApusError) in
                guard await say(number, due: .now()).isDone else { throw ApusError(.unavailable) }
            }
        }
        ledger.locked.withLock { $0 = Array(repeating: 0, count: count) }
    }

    /// All devices of an account have one name: the room of the one that hears says which is meant.
    private static func home(of account: Int, _ devices: [LoadSessions.Device]) -> ClientVoiceHome {
        let own = devices.indices.filter { $0 % LoadSessions.accountCount == account }
        return .with {
            $0.areas = own.map { number in .with { ($0.id, $0.names) = ("room-\(number)", ["room \(number)"]) } }
            $0.devices = own.map { number in
                .with {
                    ($0.id, $0.device, $0.names) = ("door-\(number)", devices[number].id.rawValue, ["front door"])
                    ($0.kind, $0.area) = ("lock", "room-\(number)")
                    $0.controls = [.with { ($0.what, $0.path, $0.onJson) = ("lock", "Action.lock", "1") }]
                }
            }
        }
    }

    func close() {
        for task in tasks { task.cancel() }
        sessions.close()
    }

    private func say(_ device: Int, due: MonotonicTime) async -> Outcome {
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        let digits = String(number, radix: 16)
        let id = String(repeating: "0", count: 32 - digits.utf8.count) + digits
        let end = MonotonicTime.now() + Self.sayTime
        var reply = ""
        var isDone = false
        repeat {
            do throws(ApusError) {
                let turn = try await sessions.app(device, Int(number % 3)).say(
                    "lock the front door", to: sessions.devices[device].id, id: id, timeout: .seconds(5))
                (reply, isDone) = (turn.reply, turn.outcome == .done)
                break
            } catch {
                reply = "\(error)"
            }
            try? await Task.sleep(for: .milliseconds(20))
        } while MonotonicTime.now() < end
        return Outcome(device: device, milliseconds: (.now() - due).milliseconds, reply: reply, isDone: isDone)
    }

    /// Says sentences at fixed times.
    func run(rate: Double, seconds: Double) async -> [Outcome] {
        await OpenLoop.run(rate: rate, seconds: seconds) { number, due in
            await self.say(number % self.sessions.devices.count, due: due)
        }
    }

    /// Says sentences at fixed times until the flag is set.
    func run(rate: Double, until isOver: AtomicFlag) async -> [Outcome] {
        let start = MonotonicTime.now()
        return await withTaskGroup(of: Outcome.self) { group in
            var number = 0
            while !isOver.isSet {
                let (due, device) = (start + .nanoseconds(Int64(Double(number) * 1e9 / rate)), number)
                let now = MonotonicTime.now()
                if due > now { try? await Task.sleep(for: due - now) }
                group.addTask { await self.say(device % self.sessions.devices.count, due: due) }
                number += 1
            }
            return await group.reduce(into: [Outcome]()) { $0.append($1) }
        }
    }

    func busySeconds() throws(ApusError) -> Double { try sessions.busySeconds() }

    /// Compares what the devices were asked to do with the replies.
    func check(_ outcomes: [Outcome]) async -> [(String, String, Double)] {
        let locked = ledger.locked.withLock { $0 }
        let times = outcomes.map(\.milliseconds)
        var (missing, twice) = (0, 0)
        for (device, count) in locked.enumerated() {
            let own = outcomes.filter { $0.device == device }
            missing += max(0, own.count(where: \.isDone) - count)
            twice += max(0, count - own.count)
        }
        let others = outcomes.filter { !$0.isDone }
        for (reply, all) in Dictionary(grouping: others, by: \.reply) { BenchScope.say("\(all.count): \(reply)") }
        let polite = others.count { $0.reply.hasPrefix("The ") || $0.reply.hasPrefix("Sorry") }
        return [
            ("sentences", "sentences", Double(outcomes.count)),
            ("without a reply", "unanswered", Double(others.count - polite)),
            ("with the reply that it was not done", "polite", Double(polite)),
            ("done, and the device was not asked", "missing", Double(missing)),
            ("devices asked more often than told", "twice", Double(twice)),
            ("p50, ms", "p50_ms", FailoverResult.quantile(times, 0.5) ?? 0),
            ("p99, ms", "p99_ms", FailoverResult.quantile(times, 0.99) ?? 0),
            ("max, ms", "max_ms", times.max() ?? 0),
        ]
    }
}
