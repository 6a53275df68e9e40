import ApusCore
import ApusTLS
import ApusTransport
import HummingbirdCore
import Logging
import NIOCore
import NIOHTTP1
import NIOHTTPTypes
import NIOHTTPTypesHTTP1
import NIOWebSocket

/// A connection of the HTTP listener: TLS if there is a certificate, then HTTP/1.1, or a WebSocket if its first request
/// is an upgrade of one of their addresses (RFC 6455 §4).
struct HTTPChannel: ServerChildChannel, HTTPChannelHandler {
    enum Kind: Sendable {
        case http(NIOAsyncChannel<HTTPRequestPart, HTTPResponsePart>)
        case webSocket
    }

    struct Value: ServerChildChannelValue {
        let kind: EventLoopFuture<Kind>
        let channel: any Channel
    }

    /// Handlers that a WebSocket does not have.
    private struct HTTPOnly {
        let deadline: ConnectionDeadlineHandler
        let malformed: MalformedRequestHandler
    }

    let responder: HTTPChannelHandler.Responder
    let configuration: HTTPConfiguration
    let certificate: HTTPCertificate?
    let deadlines: ConnectionDeadlines
    /// Nil if this node has no WebSockets.
    let webSockets: WebSockets?
    let executors: LoopExecutors

    func setup(channel: any Channel, logger: Logger) -> EventLoopFuture<Value> {
        channel.eventLoop.makeCompletedFuture {
            let pipeline = channel.pipeline.syncOperations
            if let certificate { try pipeline.addHandler(TLSHandler(certificate.context)) }
            let deadline = deadlines.handler()
            try pipeline.addHandler(deadline)
            let malformed = MalformedRequestHandler(deadline, headerByteCountMax: configuration.headerByteCountMax)
            let bound = NIOLoopBound(
                HTTPOnly(deadline: deadline, malformed: malformed), eventLoop: channel.eventLoop)
            let upgraders = webSockets.map { [upgrader($0, bound)] } ?? []
            let upgrade = NIOTypedHTTPServerUpgradeConfiguration<Kind>(
                upgraders: upgraders, notUpgradingCompletionHandler: { self.http($0, bound, logger) })
            var http = NIOUpgradableHTTPServerPipelineConfiguration<Kind>(upgradeConfiguration: upgrade)
            // The asynchronous channel pipelines requests. Hummingbird answers errors behind the first request, and
            // MalformedRequestHandler those before.
            http.enablePipelining = false
            http.enableErrorHandling = false
            http.enableResponseHeaderValidation = false
            http.decoderConfiguration.maxHeaderFieldSize = configuration.headerByteCountMax
            http.decoderConfiguration.maxHeaderListSize = configuration.headerByteCountMax
            http.decoderConfiguration.maxHeaderFieldCount = 64
            let kind = try pipeline.configureUpgradableHTTPServerPipeline(configuration: http)
            let filter = UpgradeFilter(deadline) { [webSockets] channel in webSockets?.isAdmitted(channel) ?? false }
            let upgrading = try pipeline.handler(type: NIOTypedHTTPServerUpgradeHandler<Kind>.self)
            try pipeline.addHandler(filter, position: .before(upgrading))
            try pipeline.addHandler(malformed, position: .before(upgrading))
            return Value(kind: kind, channel: channel)
        }
    }

    func handle(value: Value, logger: Logger) async {
        // A connection that ends before its first request has no kind.
        guard case .http(let channel)? = try? await value.kind.get() else { return }
        // On the socket's own loop: without it each request would change threads twice more.
        await withTaskExecutorPreference(executors.executor(of: channel.channel.eventLoop)) {
            await handleHTTP(asyncChannel: channel, logger: logger)
        }
    }

    private func http(
        _ channel: any Channel, _ handlers: NIOLoopBound<HTTPOnly>, _ logger: Logger
    ) -> EventLoopFuture<Kind> {
        channel.eventLoop.makeCompletedFuture {
            let pipeline = channel.pipeline.syncOperations
            let departure = ClientDeparture(executor: executors.executor(of: channel.eventLoop))
            try pipeline.addHandler(ClientDepartureHandler(departure))
            try pipeline.addHandler(RequestWatchHandler(handlers.value.deadline))
            try pipeline.addHandler(HTTP1ToHTTPServerCodec(secure: false))
            try pipeline.addHandler(HTTPConnectionStateHandler(logger: logger))
            return .http(
                try NIOAsyncChannel(
                    wrappingChannelSynchronously: channel, configuration: .init(isOutboundHalfClosureEnabled: true)))
        }
    }

    /// Upgrades to a WebSocket. That of a client continues on an event loop of the channels; one of EVS stays.
    private struct Upgrader: NIOTypedHTTPServerProtocolUpgrader {
        let staying: NIOTypedWebSocketServerUpgrader<Kind>
        let moves: @Sendable (HTTPRequestHead) -> Bool
        let move: @Sendable (any Channel, HTTPRequestHead) throws -> Void

        var supportedProtocol: String { staying.supportedProtocol }
        var requiredUpgradeHeaders: [String] { staying.requiredUpgradeHeaders }

        func buildUpgradeResponse(
            channel: any Channel, upgradeRequest: HTTPRequestHead, initialResponseHeaders: HTTPHeaders
        ) -> EventLoopFuture<HTTPHeaders> {
            staying.buildUpgradeResponse(
                channel: channel, upgradeRequest: upgradeRequest, initialResponseHeaders: initialResponseHeaders)
        }

        func upgrade(channel: any Channel, upgradeRequest: HTTPRequestHead) -> EventLoopFuture<Kind> {
            guard moves(upgradeRequest) else {
                return staying.upgrade(channel: channel, upgradeRequest: upgradeRequest)
            }
            return channel.eventLoop.makeCompletedFuture {
                try move(channel, upgradeRequest)
                return .webSocket
            }
        }
    }

    private func upgrader(_ webSockets: WebSockets, _ handlers: NIOLoopBound<HTTPOnly>) -> Upgrader {
        let isSecure = certificate != nil
        return Upgrader(
            staying: stayingUpgrader(webSockets, handlers),
            moves: { head in webSockets.hasMedia && !WebSockets.isEmbedded(head.uri) },
            move: { channel, head in
                let pipeline = channel.pipeline.syncOperations
                pipeline.removeHandler(handlers.value.deadline, promise: nil)
                pipeline.removeHandler(handlers.value.malformed, promise: nil)
                let browser = BrowserUpgrade(head, isSecure: isSecure)
                let eventLoop = channel.eventLoop
                try pipeline.addHandler(
                    SocketMove(
                        isReady: { channel in
                            (try? channel.pipeline.syncOperations.handler(
                                type: NIOTypedHTTPServerUpgradeHandler<Kind>.self)) == nil
                        },
                        onMoved: { luggage in
                            if let luggage { webSockets.receive(luggage, requests: eventLoop, browser: browser) }
                        }))
            })
    }

    private func stayingUpgrader(
        _ webSockets: WebSockets, _ handlers: NIOLoopBound<HTTPOnly>
    ) -> NIOTypedWebSocketServerUpgrader<Kind> {
        NIOTypedWebSocketServerUpgrader(
            maxFrameSize: configuration.bodyByteCountMax,
            // UpgradeFilter has admitted it.
            shouldUpgrade: { channel, _ in channel.eventLoop.makeSucceededFuture([:]) },
            upgradePipelineHandler: { channel, head in
                channel.eventLoop.makeCompletedFuture {
                    let pipeline = channel.pipeline.syncOperations
                    pipeline.removeHandler(handlers.value.deadline, promise: nil)
                    pipeline.removeHandler(handlers.value.malformed, promise: nil)
                    try pipeline.addHandler(WebSocketFrameGuard())
                    try pipeline.addHandler(webSockets.aggregator(byteCountMax: configuration.bodyByteCountMax))
                    try pipeline.addHandler(webSockets.connection(on: channel, dialect(head, webSockets)))
                    return .webSocket
                }
            })
    }

    /// What the messages of a WebSocket mean, by its address.
    private func dialect(_ head: HTTPRequestHead, _ webSockets: WebSockets) -> any WebSocketDialect {
        guard WebSockets.isEmbedded(head.uri) else {
            return ClientTexts(media: nil, at: nil, browser: BrowserUpgrade(head, isSecure: certificate != nil))
        }
        return EVSDialect(
            head, isSecure: certificate != nil, media: webSockets.clients.media, replies: webSockets.replies,
            configuration.evs)
    }
}
