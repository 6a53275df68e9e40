import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusTransport
import CoreMetrics
import Logging
import NIOCore
import NIOSSL
import Synchronization

/// The WebSockets of one listener: their limit, their tasks and their shutdown (D17).
///
/// Concurrency model: any thread; each connection is confined to its event loop.
final class WebSockets: Sendable {
    let clients: HTTPClients
    let sessions: SessionService
    let configuration: HTTPConfiguration
    let limited: LogLimiter
    private let executors: LoopExecutors
    private let open = Mutex<[ObjectIdentifier: WebSocketConnection]>([:])
    private let work: AsyncStream<Piece>
    private let workFeed: AsyncStream<Piece>.Continuation
    private let connections = Gauge(label: "apus_http_websockets")
    private let refused = Counter(label: "apus_http_websockets_refused_total")

    private struct Piece: Sendable {
        let executor: LoopTaskExecutor
        let body: @Sendable () async -> Void
    }

    init(
        _ clients: HTTPClients, sessions: SessionService, configuration: HTTPConfiguration, executors: LoopExecutors,
        limited: LogLimiter
    ) {
        (self.clients, self.sessions, self.configuration) = (clients, sessions, configuration)
        (self.executors, self.limited) = (executors, limited)
        // Bounded by the connections and their requests.
        (work, workFeed) = AsyncStream.makeStream()
    }

    /// Returns false if the client would send its token in plain text, or there are too many WebSockets.
    func isAdmitted(_ channel: any Channel) -> Bool {
        let isEncrypted = (try? channel.pipeline.syncOperations.handler(type: NIOSSLServerHandler.self)) != nil
        let isNear = channel.remoteAddress.map(HTTPContext.isThisMachine) ?? false
        guard isEncrypted || isNear || configuration.isTokenTakenFromAnywhere,
            open.withLock({ $0.count }) < configuration.webSocketsMax
        else {
            refused.increment()
            return false
        }
        return true
    }

    func connection(on channel: any Channel) throws -> WebSocketConnection {
        let connection = WebSocketConnection(
            self, channel: channel, executor: executors.executor(of: channel.eventLoop))
        let count = open.withLock { open in
            open[ObjectIdentifier(connection)] = connection
            return open.count
        }
        connections.record(count)
        return connection
    }

    func ended(_ connection: WebSocketConnection) {
        let count = open.withLock { open in
            open[ObjectIdentifier(connection)] = nil
            return open.count
        }
        connections.record(count)
    }

    /// Runs a piece of a connection's work concurrently with all others, on the connection's loop.
    func run(_ executor: LoopTaskExecutor, _ body: @escaping @Sendable () async -> Void) {
        workFeed.yield(Piece(executor: executor, body: body))
    }

    /// Runs the connections' work until ``close()``.
    func run() async {
        await withDiscardingTaskGroup { group in
            for await piece in work { group.addTask(executorPreference: piece.executor) { await piece.body() } }
        }
    }

    /// Shuts down: every client is asked to connect to another node.
    func close() {
        for connection in open.withLock({ Array($0.values) }) { connection.end(ApusError(.shuttingDown)) }
        workFeed.finish()
    }
}
