package import ApusCore
import ApusPQ
import Dispatch
import Synchronization

/// The limits of a store in PostgreSQL (D13).
package struct PostgresLimits: Sendable, Equatable {
    /// The time-out of one statement, and of one attempt to connect.
    package var timeout: Duration = .seconds(5)
    /// The number of connections for reads.
    package var readerCountMax = 4
    /// Reads that wait for one of these connections. A further one is refused with 10007.
    package var waitingReadCountMax = 1024
    /// Attempts of one commit. If two commits create the same record at once, one is repeated.
    package var attemptCountMax = 4

    package init() {}
}

/// Records in a PostgreSQL database that the nodes of several machines share (D9, D16).
///
/// One connection commits, several read. A connection that failed or timed out is discarded, and the next call connects
/// again. A commit whose outcome is unknown fails with 10021. A transaction that failed before its commit was requested
/// is repeated.
///
/// Concurrency model: each connection belongs to a dispatch queue of its own; callers only wait.
package final class PostgresRecordStore: RecordStore {
    private let commits: GroupCommit
    private let writer: PostgresWorker
    private let readers: [PostgresWorker]
    private let next = Atomic<Int>(0)

    /// Connects, and creates the tables if they are missing.
    ///
    /// - Parameter url: In libpq's format. For a server on another machine use `sslmode=verify-full` and a certificate.
    /// - Throws: 10020 if the tables are another cluster's, 10021 if the server cannot be used.
    package init(
        url: String, cluster: ClusterID, catalogue: RecordCatalogue = RecordCatalogue([]),
        limits: RecordStoreLimits = RecordStoreLimits(), connections: PostgresLimits = PostgresLimits()
    ) async throws(ApusError) {
        let writer = PostgresWorker(url: url, limits: connections)
        self.writer = writer
        readers = (0..<max(1, connections.readerCountMax)).map { _ in PostgresWorker(url: url, limits: connections) }
        commits = GroupCommit(limits: limits) { steps throws(ApusError) in
            try writer.transaction { try PostgresTables.make(steps, $0) }
        }
        try await writer.run { try PostgresTables.open(cluster, catalogue, $0) }
    }

    package func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) { commits.commit(steps, then: completion) }

    package func records(
        _ collection: String, _ keys: [OrderedKey]
    ) async throws(ApusError) -> [StoredRecord?] {
        guard keys.count <= RecordLimits.pageCountMax else { throw ApusError(.badParameter, "too many keys") }
        return try await reader.run { try PostgresTables.records(collection, keys, $0) }
    }

    package func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage {
        try await reader.run { try PostgresTables.page(scan, $0) }
    }

    package func lockHolder() async -> RecordLockHolder? { nil }

    package func close() async {
        for reader in readers { reader.refuseWork() }
        await commits.close()
        for worker in readers + [writer] { await worker.close() }
    }

    private var reader: PostgresWorker {
        let number = next.wrappingAdd(1, ordering: .relaxed).oldValue
        return readers[Int(UInt(bitPattern: number) % UInt(readers.count))]
    }
}

/// A connection and its queue.
///
/// Concurrency model: work runs on the queue, or on the one thread of ``GroupCommit``. A `Mutex` guards the connection
/// and is held while it works.
final class PostgresWorker: Sendable {
    private enum State {
        case disconnected
        case connected(PostgresConnection)
        case closed
    }

    /// What waits in the queue.
    private struct Backlog {
        var count = 0
        var isClosed = false
    }

    private let url: String
    private let limits: PostgresLimits
    private let queue = DispatchQueue(label: "apus.postgresql")
    private let state = Mutex(State.disconnected)
    /// Apart from `state`, which is held while the connection works.
    private let backlog = Mutex(Backlog())

    init(url: String, limits: PostgresLimits) { (self.url, self.limits) = (url, limits) }

    /// Runs an operation that may be repeated: once more, on a new connection, if the old one is broken.
    ///
    /// - Throws: 10006 if the task is cancelled before the operation begins, 10007 if too many wait, 10021.
    func run<Value: Sendable>(
        _ body: @escaping @Sendable (PostgresSession) throws -> Value
    ) async throws(ApusError) -> Value {
        try enter()
        let turn = PostgresTurn<Value>()
        let outcome: Result<Value, ApusError> = await withTaskCancellationHandler {
            await withCheckedContinuation { waiter in
                turn.wait(waiter)
                queue.async { [self] in
                    let isClosed = leave()
                    guard let waiter = turn.begin() else { return }
                    waiter.resume(returning: isClosed ? .failure(Self.closed) : attempt(body, until: { _ in true }))
                }
            }
        } onCancel: {
            turn.cancel()
        }
        return try outcome.get()
    }

    /// Takes a place in the queue.
    private func enter() throws(ApusError) {
        let refusal = backlog.withLock { backlog -> ApusError? in
            if backlog.isClosed { return Self.closed }
            guard backlog.count < limits.waitingReadCountMax else {
                return ApusError(.overloaded, "too many reads wait for PostgreSQL")
            }
            backlog.count += 1
            return nil
        }
        if let refusal { throw refusal }
    }

    /// Gives back the place. Returns true if the work is no longer wanted.
    private func leave() -> Bool {
        backlog.withLock { backlog -> Bool in
            backlog.count -= 1
            return backlog.isClosed
        }
    }

    private static var closed: ApusError { ApusError(.storageFailed, "the record store was closed") }

    /// Runs one transaction, on this thread. It is repeated if it failed before its commit was requested.
    func transaction<Value: Sendable>(
        _ body: @escaping @Sendable (PostgresSession) throws -> Value
    ) throws(ApusError) -> Value {
        let isAsked = Mutex(false)
        let outcome = attempt(
            { session in
                isAsked.withLock { $0 = false }
                try session.run("BEGIN")
                let value = try body(session)
                isAsked.withLock { $0 = true }
                try session.run("COMMIT")
                return value
            },
            until: { failure in
                // Once the commit was requested, only a conflict proves that it was not made. A server that ends the
                // connection may have made it.
                !isAsked.withLock { $0 } || (failure.isConflict && !failure.isConnectionLost)
            })
        return try outcome.get()
    }

    /// Ends the operations that wait, and refuses further ones.
    func refuseWork() { backlog.withLock { $0.isClosed = true } }

    /// As ``refuseWork()``, and waits until the operation in progress has ended.
    func close() async {
        refuseWork()
        await withCheckedContinuation { (waiter: CheckedContinuation<Void, Never>) in
            queue.async { [self] in
                state.withLock { $0 = .closed }
                waiter.resume()
            }
        }
    }

    private func attempt<Value: Sendable>(
        _ body: (PostgresSession) throws -> Value, until mayRepeat: (PostgresFailure) -> Bool
    ) -> Result<Value, ApusError> {
        var last = PostgresFailure(state: "", message: "", isConnectionLost: true)
        for attempt in 0..<limits.attemptCountMax {
            do {
                return .success(try once(body))
            } catch let error as ApusError {
                return .failure(error)
            } catch let failure as PostgresFailure {
                last = failure
                let isNew = failure.isConnectionLost ? attempt == 0 : failure.isConflict
                guard mayRepeat(failure), isNew else { return .failure(Self.error(last)) }
            } catch {
                return .failure(ApusError(.storageFailed, "\(error)"))
            }
        }
        return .failure(Self.error(last))
    }

    private static func error(_ failure: PostgresFailure) -> ApusError {
        ApusError(.storageFailed, "PostgreSQL cannot be used: \(failure.message)")
    }

    private func once<Value: Sendable>(_ body: (PostgresSession) throws -> Value) throws -> Value {
        try state.withLock { state in
            let connection: PostgresConnection
            switch state {
            case .closed: throw Self.closed
            case .connected(let open): connection = open
            case .disconnected:
                connection = try PostgresConnection(url: url, until: .now() + limits.timeout)
                try connection.run("SET synchronous_commit TO on", until: .now() + limits.timeout)
                state = .connected(connection)
            }
            do {
                return try body(PostgresSession(connection: connection, timeout: limits.timeout))
            } catch {
                // A failed statement leaves a transaction open. A new connection is simpler than to find out its state.
                state = .disconnected
                throw error
            }
        }
    }
}

/// The caller of one operation that waits in a queue. It is answered once: by the operation, or by its cancellation.
private final class PostgresTurn<Value: Sendable>: Sendable {
    typealias Waiter = CheckedContinuation<Result<Value, ApusError>, Never>

    private enum State {
        case new
        case waiting(Waiter)
        case ended
    }

    private let state = Mutex(State.new)

    func wait(_ waiter: Waiter) {
        let isCancelled = state.withLock { state -> Bool in
            if case .ended = state { return true }
            state = .waiting(waiter)
            return false
        }
        if isCancelled { waiter.resume(returning: .failure(ApusError(.cancelled))) }
    }

    /// The caller, which the operation must answer; nil if it was cancelled.
    func begin() -> Waiter? {
        state.withLock { state -> Waiter? in
            defer { state = .ended }
            if case .waiting(let waiter) = state { return waiter }
            return nil
        }
    }

    /// Answers the caller with 10006, unless the operation has begun.
    func cancel() { begin()?.resume(returning: .failure(ApusError(.cancelled))) }
}

extension PostgresFailure {
    /// Conflict with another transaction: both created a record, a deadlock, or a serialization failure.
    var isConflict: Bool { ["23505", "40001", "40P01"].contains(state) }
}

/// A connection, for the duration of one piece of work. It must not be stored.
struct PostgresSession {
    let connection: PostgresConnection
    let timeout: Duration

    @discardableResult
    func run(_ sql: String, _ parameters: [String?] = []) throws -> PostgresResult {
        try connection.run(sql, parameters, until: .now() + timeout)
    }
}
