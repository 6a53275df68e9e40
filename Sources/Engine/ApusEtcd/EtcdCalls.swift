import ApusCore
import ApusStorage
import Logging
import Synchronization

/// Carries out transactions at one endpoint, and changes to the next one when it fails.
///
/// A transaction that only reads is repeated at other endpoints until the deadline. A swap is repeated only if the
/// failed attempt was certainly not carried out. Otherwise its failure is uncertain, and the caller reads.
///
/// Concurrency model: any task. A `Mutex` guards the connection in use. No call holds it while it waits.
final class EtcdCalls: Sendable {
    /// The shortest time of one attempt. With less left, an attempt takes all of it.
    private static let attemptTimeoutMin: Duration = .milliseconds(100)
    /// The wait after all endpoints have failed within one call.
    private static let roundPause: Duration = .milliseconds(50)
    /// How often an opening that is not answered in time is tried, each time for the configured time.
    private static let openingTimeouts = 10

    private struct State: Sendable {
        var current: EtcdConnection?
        /// Counts changes of the endpoint; the endpoint in use is this modulo their number.
        var position = 0
        var isClosed = false
    }

    let configuration: EtcdConfiguration
    let keys: EtcdKeys
    let metrics = EtcdMetrics()
    private let log: Logger
    private let state = Mutex(State())

    init(_ configuration: EtcdConfiguration, _ keys: EtcdKeys, log: Logger) {
        self.configuration = configuration
        self.keys = keys
        self.log = log
    }

    /// Carries out a transaction within the configured time.
    ///
    /// - Parameter isRepeatable: True if a second execution changes nothing.
    func transact(_ request: EtcdTxnRequest, isRepeatable: Bool) async throws(EtcdFailure) -> EtcdTxnResponse {
        try await call(isRepeatable: isRepeatable) { (connection, end) async throws(EtcdFailure) -> EtcdTxnResponse in
            try await connection.unary(EtcdMethods.transaction, request, as: EtcdTxnResponse.self, until: end)
        }
    }

    /// Carries out a transaction with which a store is opened; a second execution changes nothing.
    ///
    /// etcd may start at the same time as this node, or the machine may be busy with starting. An opening that is not
    /// answered in time is therefore repeated, for `openingTimeouts` times the configured time in all.
    func open(with request: EtcdTxnRequest) async throws(EtcdFailure) -> EtcdTxnResponse {
        for _ in 1..<Self.openingTimeouts {
            do throws(EtcdFailure) {
                return try await transact(request, isRepeatable: true)
            } catch {
                guard error.kind == .timeout || error.kind == .noLeader else { throw error }
                log.notice("etcd does not answer yet", metadata: [LogKey.error: "\(error.message)"])
            }
        }
        return try await transact(request, isRepeatable: true)
    }

    /// Sends a request within the configured time.
    ///
    /// - Parameters:
    ///   - isRepeatable: True if a second execution changes nothing.
    ///   - send: Sends it over the connection and waits for the answer, at most until the given time.
    func call<Answer: Sendable>(
        isRepeatable: Bool, _ send: (EtcdConnection, MonotonicTime) async throws(EtcdFailure) -> Answer
    ) async throws(EtcdFailure) -> Answer {
        let end = MonotonicTime.now() + configuration.timeout
        var attemptCount = 0
        // The last attempt is often cut short. An earlier failure says more than its time-out.
        var cause: EtcdFailure?
        while true {
            let failure: EtcdFailure
            do throws(EtcdFailure) {
                return try await attempt(isRepeatable: isRepeatable, until: end, send)
            } catch {
                failure = error
            }
            metrics.failed(failure.kind)
            if failure.kind != .timeout { cause = failure }
            attemptCount += 1
            let isRound = attemptCount % configuration.endpoints.count == 0
            let pause = isRound ? Self.roundPause : .zero
            guard isRepeatable || failure.isUndone, failure.isOfEndpoint, MonotonicTime.now() + pause < end else {
                throw failure.kind == .timeout ? cause.map { failure.named(as: $0) } ?? failure : failure
            }
            guard isRound else { continue }
            do {
                try await Task.sleep(for: pause)
            } catch {
                throw EtcdFailure(.cancelled, "the call was cancelled")
            }
        }
    }

    private func attempt<Answer: Sendable>(
        isRepeatable: Bool, until end: MonotonicTime,
        _ send: (EtcdConnection, MonotonicTime) async throws(EtcdFailure) -> Answer
    ) async throws(EtcdFailure) -> Answer {
        let connection = try await connection(until: attemptEnd(end))
        do throws(EtcdFailure) {
            return try await send(connection, isRepeatable ? attemptEnd(end) : end)
        } catch {
            if error.isOfEndpoint { leave(connection, because: error) }
            throw error
        }
    }

    /// Half of the time that is left, so that another endpoint can be tried. All of it if there is no other one, or
    /// little is left.
    private func attemptEnd(_ end: MonotonicTime) -> MonotonicTime {
        let now = MonotonicTime.now()
        let half = (end - now) / 2
        guard configuration.endpoints.count > 1, half >= Self.attemptTimeoutMin else { return end }
        return now + half
    }

    // MARK: Connections

    /// The connection in use, or a new one to the endpoint whose turn it is. Its failure does not carry out a request.
    private func connection(until end: MonotonicTime) async throws(EtcdFailure) -> EtcdConnection {
        let (current, position, isClosed) = state.withLock { ($0.current, $0.position, $0.isClosed) }
        guard !isClosed else { throw EtcdFailure(.refused, "the store is closed") }
        if let current { return current }
        let made: EtcdConnection
        do throws(EtcdFailure) {
            made = try await open(endpoint(at: position), until: end)
        } catch {
            state.withLock { if $0.position == position { $0.position += 1 } }
            var failure = error
            failure.isUndone = true
            throw failure
        }
        let used = state.withLock { state -> EtcdConnection? in
            guard !state.isClosed else { return nil }
            if state.current == nil { state.current = made }
            return state.current
        }
        if used !== made { made.close() }
        guard let used else { throw EtcdFailure(.refused, "the store is closed") }
        if used === made { metrics.uses(made.endpoint, true) }
        return used
    }

    /// A new connection, which the caller closes.
    func open(_ endpoint: EtcdEndpoint, until end: MonotonicTime) async throws(EtcdFailure) -> EtcdConnection {
        do throws(EtcdFailure) {
            return try await EtcdConnection.open(
                endpoint, configuration, reading: keys.read(keysOnly: true), until: end)
        } catch {
            log.debug(
                "An endpoint of etcd could not be used",
                metadata: [LogKey.address: "\(endpoint)", LogKey.error: "\(error.message)"])
            throw error
        }
    }

    func endpoint(at position: Int) -> EtcdEndpoint {
        configuration.endpoints[position % configuration.endpoints.count]
    }

    /// Closes a connection that failed. The next call uses the next endpoint.
    private func leave(_ connection: EtcdConnection, because failure: EtcdFailure) {
        let wasInUse = state.withLock { state in
            guard state.current === connection else { return false }
            state.current = nil
            // An old token is not the endpoint's fault.
            if failure.kind != .token { state.position += 1 }
            return true
        }
        connection.close()
        guard wasInUse else { return }
        metrics.uses(connection.endpoint, false)
        log.debug(
            "A connection to etcd was closed after a failure",
            metadata: [LogKey.address: "\(connection.endpoint)", LogKey.error: "\(failure.message)"])
    }

    /// Closes the connection. Later calls fail.
    func close() {
        let current = state.withLock { state in
            state.isClosed = true
            defer { state.current = nil }
            return state.current
        }
        current?.close()
    }
}
