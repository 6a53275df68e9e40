import ApusChannels
import ApusClientAPI
import ApusContract
import ApusCore
import ApusMediaAccess
import ApusTLS
import ApusTransport
import CoreMetrics
import Logging
import NIOCore
import NIOPosix
import NIOWebSocket
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
    let replies: EVSReplies
    private let executors: LoopExecutors
    /// The event loops of the channels; empty without media.
    private let loops: [WebSocketLoop]
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
        loops =
            clients.media.map { media in
                media.group.makeIterator().map {
                    WebSocketLoop(media.access.channels.clock(of: $0), streamKeepalive: media.streamKeepalive)
                }
            } ?? []
        replies = EVSReplies(configuration.evs)
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
    /// The address of clients (docs/api.md).
    static let clientPath = "/v1/ws"
    static let addresses = [clientPath] + embeddedPaths

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

    // MARK: - Connections

    /// True if WebSockets of clients are moved to the event loops of the channels.
    var hasMedia: Bool { !loops.isEmpty }

    /// Continues a WebSocket of a client on an event loop of the channels.
    ///
    /// - Parameter requests: the loop whose thread carries out its requests.
    func receive(_ luggage: SocketMove.Luggage, requests: any EventLoop, browser: BrowserUpgrade) {
        guard let loop = takeLoop(), let media = clients.media else { return SocketMove.close(luggage.socket) }
        let high = configuration.webSocketOutboundByteCountMax
        ClientBootstrap(group: loop.eventLoop)
            .channelOption(.tcpOption(.tcp_nodelay), value: 1)
            .channelOption(.writeBufferWaterMark, value: .init(low: high / 4, high: high))
            .channelInitializer { [self] channel in
                channel.eventLoop.makeCompletedFuture {
                    let pipeline = channel.pipeline.syncOperations
                    if let tls = luggage.tls { try pipeline.addHandler(tls.handler) }
                    let bounds = WebSocketBounds(textByteCountMax: configuration.bodyByteCountMax)
                    let port = WebSocketPort(loop, tls: luggage.tls?.handler, received: luggage.received)
                    try pipeline.addHandler(port)
                    try pipeline.addHandler(WebSocketFrameEncoder())
                    try pipeline.addHandler(ByteToMessageHandler(WebSocketMessageDecoder(bounds)))
                    try pipeline.addHandler(WebSocketFrameGuard())
                    try pipeline.addHandler(aggregator(byteCountMax: media.messageByteCountMax))
                    let place = WebSocketPlace(port: port, loop: loop, bounds: bounds)
                    let dialect = ClientTexts(media: media, at: place, browser: browser)
                    try pipeline.addHandler(connection(on: channel, dialect, requests: requests))
                }
            }
            .withConnectedSocket(luggage.socket)
            .whenFailure { [limited] error in
                limited.log(.info, "A WebSocket could not be opened", metadata: [LogKey.error: "\(error)"])
            }
    }

    /// The handler that joins the fragments of a message (RFC 6455 §5.4).
    func aggregator(byteCountMax: Int) -> NIOWebSocketFrameAggregator {
        NIOWebSocketFrameAggregator(
            minNonFinalFragmentSize: 0, maxAccumulatedFrameCount: Self.fragmentsMax,
            maxAccumulatedFrameSize: max(byteCountMax, configuration.bodyByteCountMax))
    }
    private static let fragmentsMax = 64

    /// The loop of the next WebSocket: loops are filled one after the other, in steps. Viewers of a channel that share
    /// a loop receive their frames in one wake-up (docs/decisions/5).
    private func takeLoop() -> WebSocketLoop? {
        let step = Self.loopStep
        return loops.min { $0.count.load(ordering: .relaxed) / step < $1.count.load(ordering: .relaxed) / step }
    }
    private static let loopStep = 256

    /// - Parameter requests: the loop whose thread carries out its requests; nil: its own.
    func connection(
        on channel: any Channel, _ dialect: any WebSocketDialect, requests: (any EventLoop)? = nil
    ) -> WebSocketConnection {
        let connection = WebSocketConnection(
            self, channel: channel, executor: executors.executor(of: channel.eventLoop),
            requests: executors.executor(of: requests ?? channel.eventLoop), dialect: dialect)
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

    /// Asks every client to connect to another node, each with a new connection first. Returns once all have left, but
    /// after ``HTTPMedia/leaveTimeout`` even if some remain. EVS devices cannot be asked.
    func sendClientsAway() async {
        guard let media = clients.media else { return }
        let (endpoints, asked) = (media.otherEndpoints(), state.withLock { $0.open.values.filter(\.canBeAsked) })
        guard !endpoints.isEmpty else { return }
        for connection in asked { connection.leave(for: endpoints) }
        let deadline = MonotonicTime.now() + media.leaveTimeout
        while MonotonicTime.now() < deadline, asked.contains(where: { !$0.isClosed }) {
            guard (try? await Task.sleep(for: .milliseconds(20))) != nil else { return }
        }
    }

    /// Shuts down: every client is asked to connect to another node.
    func close() {
        for connection in state.withLock({ Array($0.open.values) }) { connection.end(ApusError(.shuttingDown)) }
        workFeed.finish()
    }
}

/// Where a WebSocket of a client is: its end at the socket, its loop, and its bounds.
struct WebSocketPlace {
    let port: WebSocketPort
    let loop: WebSocketLoop
    let bounds: WebSocketBounds
}
