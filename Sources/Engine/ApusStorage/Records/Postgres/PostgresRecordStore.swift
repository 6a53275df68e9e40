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

    private let url: String
    private let limits: PostgresLimits
    private let queue = DispatchQueue(label: "apus.postgresql")
    private let state = Mutex(State.disconnected)

    init(url: String, limits: PostgresLimits) { (self.url, self.limits) = (url, limits) }

    /// Runs an operation that may be repeated: once more, on a new connection, if the old one is broken.
    func run<Value: Sendable>(
        _ body: @escaping @Sendable (PostgresSession) throws -> Value
    ) async throws(ApusError) -> Value {
        let outcome = await withCheckedContinuation { (waiter: CheckedContinuation<Result<Value, ApusError>, Never>) in
            queue.async { [self] in waiter.resume(returning: attempt(body, until: { _ in true })) }
        }
        return try outcome.get()
    }

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

    func close() async {
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
            case .closed: throw ApusError(.storageFailed, "the record store was closed")
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
