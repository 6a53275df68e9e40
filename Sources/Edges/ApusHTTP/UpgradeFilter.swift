import NIOCore
import NIOHTTP1

/// Passes on the upgrade to a WebSocket that this node makes, and takes the header `Upgrade` from all other requests.
///
/// A server may ignore that header (RFC 9110 §7.8). Clients that try HTTP/2 first send it with their requests. NIO's
/// upgrade handler would lose such a request. NIO's parser stops behind it, so the connection closes after the answer.
///
/// Confined to the connection's event loop. It is between the parser and the upgrade handler.
final class UpgradeFilter: ChannelInboundHandler, RemovableChannelHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias InboundOut = HTTPServerRequestPart

    private let deadline: ConnectionDeadlineHandler
    /// True if the connection of such an upgrade becomes a WebSocket.
    private let isAdmitted: (any Channel) -> Bool
    private var isFirst = true

    init(_ deadline: ConnectionDeadlineHandler, isAdmitted: @escaping (any Channel) -> Bool) {
        (self.deadline, self.isAdmitted) = (deadline, isAdmitted)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard case .head(var head) = unwrapInboundIn(data) else { return context.fireChannelRead(data) }
        let isUpgrade = isFirst && Self.isWebSocket(head)
        isFirst = false
        guard head.headers.contains(name: "upgrade") else { return context.fireChannelRead(data) }
        guard !isUpgrade || !isAdmitted(context.channel) else {
            context.fireChannelRead(data)
            // What comes after the upgrade is no HTTP.
            return context.pipeline.syncOperations.removeHandler(self, promise: nil)
        }
        head.headers.remove(name: "upgrade")
        head.headers.replaceOrAdd(name: "connection", value: "close")
        deadline.isLastRequest = true
        context.fireChannelRead(wrapInboundOut(.head(head)))
    }

    /// True for an upgrade that the handler makes (RFC 6455 §4.2.1).
    private static func isWebSocket(_ head: HTTPRequestHead) -> Bool {
        let headers = head.headers
        return head.method == .GET && WebSockets.isAddress(head.uri)
            && headers[canonicalForm: "upgrade"].contains { $0.lowercased() == "websocket" }
            && headers["sec-websocket-version"] == ["13"] && headers["sec-websocket-key"].count == 1
            && !headers.contains(name: "transfer-encoding") && headers["content-length"].allSatisfy { $0 == "0" }
    }
}
