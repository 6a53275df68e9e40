import ApusCore
import NIOCore
import NIOWebSocket

/// Refuses frames that a client must not send (RFC 6455): without a mask (§5.1), with reserved bits, since no extension
/// was agreed on (§5.2), and with reserved opcodes (§5.2). The connection is then closed with 1002 (§7.4.1).
///
/// Confined to the connection's event loop. It is between NIO's decoder, which checks the lengths of control frames,
/// and the aggregator, which discards these facts.
final class WebSocketFrameGuard: ChannelInboundHandler {
    typealias InboundIn = WebSocketFrame
    typealias InboundOut = WebSocketFrame

    private var isRefused = false

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard !isRefused else { return }
        let frame = unwrapInboundIn(data)
        guard let fault = Self.fault(of: frame) else { return context.fireChannelRead(data) }
        isRefused = true
        context.fireErrorCaught(fault)
    }

    /// Why a client must not send the frame; nil if it may.
    static func fault(of frame: WebSocketFrame) -> WebSocketViolation? {
        if frame.maskKey == nil { return WebSocketViolation(reason: "a client's frames must be masked") }
        if frame.rsv1 || frame.rsv2 || frame.rsv3 {
            return WebSocketViolation(reason: "reserved bits are set, and no extension was agreed on")
        }
        switch frame.opcode {
        case .continuation, .text, .binary, .connectionClose, .ping, .pong: return nil
        default: return WebSocketViolation(reason: "the opcode is reserved")
        }
    }
}

/// A client violated the WebSocket protocol (RFC 6455 §7.1.7).
struct WebSocketViolation: Error, Equatable {
    let reason: String
}
