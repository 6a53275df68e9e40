import ApusClient
import ApusCore
import ApusDevice
import ApusLocal
import ApusSessions
import Foundation
import Logging
import Synchronization

/// How many commands have ended.
final class CommandProgress: Sendable {
    private let done = Atomic<Int>(0)
    var count: Int { done.load(ordering: .relaxed) }
    func note() { done.add(1, ordering: .relaxed) }
}

/// Devices with an action that notes what it carries out, and apps that ask for it, each at another node.
final class CommandLoad: Sendable {
    /// How a command ended for its app.
    struct Outcome: Sendable {
        let device: Int
        let number: Int
        let id: String
        let milliseconds: Double
        let isAnswered: Bool
        let error: ApusError?
    }

    /// What devices have carried out: how often each number.
    private final class Ledger: Sendable {
        let counts = Mutex<[Int: Int]>([:])
        func note(_ number: Int) { counts.withLock { $0[number, default: 0] += 1 } }
    }

    private let sessions: LoadSessions
    private let ledger = Ledger()
    private let tasks: [Task<Void, Never>]
    private let numbers = Atomic<Int>(0)

    init(_ stage: SignInStage, devices count: Int, apps appCount: Int, journals: String?) async throws {
        if let journals { try FileManager.default.createDirectory(atPath: journals, withIntermediateDirectories: true) }
        sessions = try await LoadSessions(stage, devices: count, apps: appCount)
        let ledger = ledger
        tasks = try sessions.devices.map { device in
            let journal = try journals.map { try CommandJournal(path: "\($0)/\(device.id)") }
            let commands = DeviceCommands(
                session: device.session, journal: journal, log: ClientSession.loggingDisabled)
            commands.onAction("go") { json throws(ApusError) in
                ledger.note(Int(json) ?? -1)
                return #"{"done":true}"#
            }
            return Task { _ = try? await commands.run() }
        }
        for number in sessions.devices.indices {
            try await LoadSessions.repeated { () throws(ApusError) in
                let outcome = await send(number, timeout: .seconds(2))
                if !outcome.isAnswered { throw outcome.error ?? ApusError(.unavailable) }
            }
        }
    }

    func close() {
        for task in tasks { task.cancel() }
        sessions.close()
    }

    private func send(
        _ device: Int, lifetime: Duration? = nil, timeout: Duration = .seconds(10), due: MonotonicTime = .now()
    ) async -> Outcome {
        let number = numbers.wrappingAdd(1, ordering: .relaxed).newValue
        let id = ClientSession.randomCommandID()
        var (isAnswered, failure) = (false, ApusError?.none)
        do throws(ApusError) {
            let command = try await sessions.app(device, number).sendCommand(
                .action(path: "Action.go.ctlVal", json: "\(number)"), to: sessions.devices[device].id, id: id,
                keptFor: lifetime, timeout: timeout)
            isAnswered = command.status == .answered
        } catch {
            failure = error
        }
        return Outcome(
            device: device, number: number, id: id, milliseconds: (.now() - due).milliseconds,
            isAnswered: isAnswered, error: failure)
    }

    // MARK: - Rates

    /// Sends at fixed times. A time counts from when its command was due.
    func steady(rate: Double, seconds: Double) async throws -> BenchCommandsCommand.Part {
        let before = try sessions.busySeconds()
        let start = MonotonicTime.now()
        let outcomes = await OpenLoop.run(rate: rate, seconds: seconds) { number, due in
            await self.send(number % self.sessions.devices.count, due: due)
        }
        return part(outcomes, seconds: (.now() - start).milliseconds / 1000, cpu: try sessions.busySeconds() - before)
    }

    /// Keeps a number of commands in progress.
    func highest(concurrency: Int, seconds: Double) async throws -> BenchCommandsCommand.Part {
        let before = try sessions.busySeconds()
        let start = MonotonicTime.now()
        let end = start + .milliseconds(Int64(seconds * 1000))
        let outcomes = await withTaskGroup(of: [Outcome].self) { group in
            for worker in 0..<concurrency {
                group.addTask {
                    var (outcomes, number) = ([Outcome](), worker)
                    while MonotonicTime.now() < end {
                        outcomes.append(await self.send(number % self.sessions.devices.count))
                        number += concurrency
                    }
                    return outcomes
                }
            }
            return await group.reduce(into: [Outcome]()) { $0 += $1 }
        }
        return part(outcomes, seconds: (.now() - start).milliseconds / 1000, cpu: try sessions.busySeconds() - before)
    }

    private func part(_ outcomes: [Outcome], seconds: Double, cpu: Double) -> BenchCommandsCommand.Part {
        let times = outcomes.filter(\.isAnswered).map(\.milliseconds)
        if let error = outcomes.compactMap(\.error).first { BenchScope.say("a command failed: \(error)") }
        return BenchCommandsCommand.Part(
            rate: Double(times.count) / seconds, p50: FailoverResult.quantile(times, 0.5) ?? 0,
            p99: FailoverResult.quantile(times, 0.99) ?? 0, failed: outcomes.count - times.count,
            cpu: cpu * 1e6 / Double(max(1, times.count)))
    }

    // MARK: - Kills

    /// Sends a number of commands, some at a time.
    ///
    /// - Parameter isLive: false: they are kept for a minute.
    func send(_ count: Int, concurrency: Int, isLive: Bool, _ progress: CommandProgress) async -> [Outcome] {
        await withTaskGroup(of: [Outcome].self) { group in
            for worker in 0..<concurrency {
                group.addTask {
                    var outcomes: [Outcome] = []
                    for number in stride(from: worker, to: count, by: concurrency) {
                        let outcome = await self.send(
                            number % self.sessions.devices.count, lifetime: isLive ? nil : .seconds(60),
                            timeout: .seconds(50))
                        outcomes.append(outcome)
                        progress.note()
                    }
                    return outcomes
                }
            }
            return await group.reduce(into: [Outcome]()) { $0 += $1 }
        }
    }

    /// What the devices did, compared with what the apps know.
    struct Check {
        var rows: [[String]]
        var values: [String: Double]
        var isClean: Bool
    }

    func check(_ outcomes: [Outcome]) async throws -> Check {
        // What is still on its way arrives.
        try await Task.sleep(for: .seconds(3))
        let counts = ledger.counts.withLock { $0 }
        let answered = outcomes.filter(\.isAnswered)
        let lost = answered.filter { counts[$0.number] == nil }
        let twice = counts.filter { $0.value > 1 }
        var untruthful = 0
        for outcome in outcomes where !outcome.isAnswered {
            BenchScope.say("a command failed: \(outcome.error.map { "\($0)" } ?? "")")
            let known = try? await sessions.app(outcome.device, 0).command(
                outcome.id, of: sessions.devices[outcome.device].id)
            let isDone = counts[outcome.number] != nil
            switch known?.status {
            case .expired where isDone, .queued where isDone, .answered where !isDone: untruthful += 1
            default: break
            }
        }
        let times = outcomes.map(\.milliseconds)
        let values: [(String, String, Double)] = [
            ("commands", "commands", Double(outcomes.count)),
            ("answered", "answered", Double(answered.count)),
            ("failed for the app", "failed", Double(outcomes.count - answered.count)),
            ("answered and not carried out", "lost", Double(lost.count)),
            ("carried out twice", "twice", Double(twice.count)),
            ("untruthful states", "untruthful", Double(untruthful)),
            ("p50, ms", "p50_ms", FailoverResult.quantile(times, 0.5) ?? 0),
            ("p99, ms", "p99_ms", FailoverResult.quantile(times, 0.99) ?? 0),
            ("max, ms", "max_ms", times.max() ?? 0),
        ]
        return Check(
            rows: [["MEASURE", "VALUE"]] + values.map { [$0.0, String(format: "%.1f", $0.2)] },
            values: Dictionary(uniqueKeysWithValues: values.map { ($0.1, $0.2) }),
            isClean: lost.isEmpty && twice.isEmpty && untruthful == 0 && answered.count == outcomes.count)
    }
}
