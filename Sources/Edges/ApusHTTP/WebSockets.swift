import ApusClientAPI
import ApusContract
import ApusCore
import ApusTLS
import ApusTransport
import CoreMetrics
import Logging
import NIOCore
import Synchronization

/// The WebSockets of one listener: their limit, their tasks and their shutdown (D17).
///
/// Concurrency model: any thread; each connection is confined to its event loop.
final class WebSockets: Sendable {
    let clients: HTTPClients
    let sessions: any WebSocketSessions
    let configuration: HTTPConfiguration
    let limited: LogLimiter
    /// Of EVS devices.
    let replies = EVSReplies()
    private let executors: LoopExecutors
    private let state: Mutex<State>
    private let work: AsyncStream<Piece>
    private let workFeed: AsyncStream<Piece>.Continuation
    private let connections = Gauge(label: "apus_http_websockets")
    private let refused = Counter(label: "apus_http_websockets_refused_total")

    private struct State {
        var open: [ObjectIdentifier: WebSocketConnection] = [:]
        var places: WebSocketPlaces<WebSocketConnection>
    }

    private struct Piece: Sendable {
        let executor: LoopTaskExecutor
        let body: @Sendable () async -> Void
    }

    init(
        _ clients: HTTPClients, sessions: any WebSocketSessions, configuration: HTTPConfiguration,
        executors: LoopExecutors, limited: LogLimiter
    ) {
        (self.clients, self.sessions, self.configuration) = (clients, sessions, configuration)
        (self.executors, self.limited) = (executors, limited)
        state = Mutex(State(places: WebSocketPlaces(countMax: configuration.webSocketsMax)))
        // Bounded by the connections and their requests.
        (work, workFeed) = AsyncStream.makeStream()
    }

    /// Returns false if the client would send its token in plain text, or there is no place for another client.
    func isAdmitted(_ channel: any Channel) -> Bool {
        let isEncrypted = (try? channel.pipeline.syncOperations.handler(type: TLSHandler.self)) != nil
        let isNear = channel.remoteAddress.map(HTTPContext.isThisMachine) ?? false
        guard isEncrypted || isNear || configuration.isTokenTakenFromAnywhere,
            !state.withLock({ $0.places.isFull })
        else {
            refused.increment()
            return false
        }
        return true
    }

    /// The addresses of EVS (docs/evs.md): ours, and the one that the vendor's devices have built in.
    private static let embeddedPaths = ["/v1/evs", "/embedded/v1"]
    static let addresses = ["/v1/ws"] + embeddedPaths

    /// True if an upgrade of this address makes a WebSocket.
    static func isAddress(_ uri: String) -> Bool {
        let path = uri.prefix { $0 != "?" }
        return addresses.contains { path.elementsEqual($0) }
    }

    /// True for an address of EVS.
    static func isEmbedded(_ uri: String) -> Bool {
        let path = uri.prefix { $0 != "?" }
        return embeddedPaths.contains { path.elementsEqual($0) }
    }

    func connection(on channel: any Channel, _ dialect: any WebSocketDialect) -> WebSocketConnection {
        let connection = WebSocketConnection(
            self, channel: channel, executor: executors.executor(of: channel.eventLoop), dialect: dialect)
        let (count, closed) = state.withLock { state in
            state.open[ObjectIdentifier(connection)] = connection
            return (state.open.count, state.places.add(connection, at: .now()))
        }
        connections.record(count)
        closed?.end(ApusError(.tooManyConnections, "too many connections wait for their hello"))
        return connection
    }

    /// Gives a connection a place of its client's account. Returns false if the account already has its share.
    func admit(_ connection: WebSocketConnection, of account: AccountID) -> Bool {
        state.withLock { $0.places.admit(connection, of: account) }
    }

    /// - Parameter account: the account that the connection was admitted for; nil if it was not.
    func ended(_ connection: WebSocketConnection, of account: AccountID?) {
        let count = state.withLock { state in
            state.open[ObjectIdentifier(connection)] = nil
            state.places.remove(connection, of: account)
            return state.open.count
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
        for connection in state.withLock({ Array($0.open.values) }) { connection.end(ApusError(.shuttingDown)) }
        workFeed.finish()
    }
}
