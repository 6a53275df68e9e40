import ApusCore
import ApusHistory
import Foundation
import Synchronization

/// Clients that change and read the registers of one episode: two for each register, which begin at different nodes.
///
/// Concurrency model: a task for each client; what they share is behind a `Mutex`.
final class RegisterLoad: Sendable {
    /// The pause of a client between two operations.
    static let pause = Duration.milliseconds(20)
    static let clientsPerRegister = 2

    let registers: [Register]
    let history = HistoryRecorder()
    private let clients: [RegisterClient]
    private let isStopped = Atomic(false)
    /// Values are distinct, as the checker wants them.
    private let nextValue = Atomic<UInt64>(1)
    private let failures = Mutex<[ApusError]>([])
    private let tasks = Mutex<[Task<Void, Never>]>([])

    /// - Parameters:
    ///   - name: the start of the registers' names.
    ///   - tokens: of different accounts, which the clients share.
    init(_ name: String, registers count: Int, nodes: [HostPort], tokens: [String]) {
        registers = (0..<count).map { Register(name: "\(name)-r\($0)", isRecorded: $0 % 2 == 1) }
        clients = (0..<count * Self.clientsPerRegister).map { [history] number in
            RegisterClient(
                number: number, first: number + number / count, nodes: nodes, token: tokens[number % tokens.count],
                history: history)
        }
    }

    /// What the cluster refused as wrong.
    var refusals: [ApusError] { failures.withLock { $0 } }

    func start() {
        tasks.withLock { tasks in
            tasks = clients.map { client in Task { await self.run(client) } }
        }
    }

    private func run(_ client: RegisterClient) async {
        let register = registers[client.number % registers.count]
        var known: UInt64 = 0
        do throws(ApusError) {
            while !isStopped.load(ordering: .relaxed) {
                let kind = Int.random(in: 0..<4)
                let request: RegisterOperation.Request =
                    switch kind {
                    case 0: .read
                    case 1: .write(newValue())
                    default: .compareAndSwap(expected: known, new: newValue())
                    }
                let found = try await client.operate(register, request)
                switch request {
                case .write(let value): known = found == nil ? known : value
                case .read, .compareAndSwap: known = found ?? known
                }
                try? await Task.sleep(for: Self.pause)
            }
        } catch {
            failures.withLock { $0.append(error) }
        }
    }

    private func newValue() -> UInt64 { nextValue.add(1, ordering: .relaxed).oldValue }

    /// Ends the clients, after the operations in progress.
    func stop() async {
        isStopped.store(true, ordering: .relaxed)
        for task in tasks.withLock({ $0 }) { await task.value }
    }

    /// Reads each register once, so that every acknowledged change must be visible.
    /// - Throws: as ``RegisterClient/operate(_:_:timeout:)``; 10005 if a register cannot be read.
    func readAll() async throws(ApusError) {
        for register in registers {
            guard try await clients[0].operate(register, .read, timeout: .seconds(30)) != nil else {
                throw ApusError(.deadlineExceeded, "\(register.name) could not be read")
            }
        }
    }

    /// Counts of the history.
    var counts: (acknowledged: Int, unknown: Int) {
        let changes = history.operations.filter { $0.request != .read }
        return (changes.count { $0.outcome == .ok }, changes.count { $0.outcome == .unknown })
    }

    /// The time from a fault until every register served a change that was requested after it.
    /// - Parameter kinds: which registers count.
    /// - Returns: nil if a register served none.
    func serveTime(since fault: MonotonicTime, where counts: (Register) -> Bool) -> Duration? {
        let operations = history.operations
        var longest = Duration.zero
        for register in registers where counts(register) {
            let ends = operations.lazy.filter {
                $0.entity == register.name && $0.request != .read && $0.invokedAt >= fault && $0.outcome != .unknown
            }.compactMap(\.returnedAt)
            guard let first = ends.min() else { return nil }
            longest = max(longest, first - fault)
        }
        return longest
    }
}
