import ApusCore
import NIOCore
import NIOWebSocket

/// The largest messages that a WebSocket accepts from its client.
///
/// Confined to the connection's event loop.
final class WebSocketBounds {
    let textByteCountMax: Int
    /// 0 until the client publishes: binary messages are frames of what it publishes.
    var binaryByteCountMax = 0

    init(textByteCountMax: Int) { self.textByteCountMax = textByteCountMax }
}

/// Reads the frames of a client's WebSocket (RFC 6455 §5.2). The length of a frame is checked when its header has come,
/// against a bound that depends on what the client does: nobody makes the node keep a large frame before it publishes.
///
/// What is wrong with a frame otherwise, ``WebSocketFrameGuard`` checks.
///
/// Confined to the connection's event loop.
final class WebSocketMessageDecoder: ByteToMessageDecoder {
    typealias InboundOut = WebSocketFrame

    private let bounds: WebSocketBounds
    /// The message whose fragments are being received.
    private var message: (opcode: WebSocketOpcode, byteCount: Int)?

    private struct Head {
        var first: UInt8
        var mask: WebSocketMaskingKey?
        var byteCount: Int
        /// Of the header.
        var headByteCount: Int

        var opcode: WebSocketOpcode? { WebSocketOpcode(encodedWebSocketOpcode: first & 0x0F) }
        var isLast: Bool { first & 0x80 != 0 }
        var isControl: Bool { first & 0x08 != 0 }
    }

    init(_ bounds: WebSocketBounds) { self.bounds = bounds }

    func decode(context: ChannelHandlerContext, buffer: inout ByteBuffer) throws -> DecodingState {
        guard let head = try Self.head(buffer) else { return .needMoreData }
        let sum = try check(head)
        guard buffer.readableBytes - head.headByteCount >= head.byteCount else { return .needMoreData }
        buffer.moveReaderIndex(forwardBy: head.headByteCount)
        guard let data = buffer.readSlice(length: head.byteCount), let opcode = head.opcode else {
            throw WebSocketViolation(reason: "the opcode is reserved")
        }
        if !head.isControl {
            message = head.isLast ? nil : (opcode == .continuation ? message?.opcode ?? opcode : opcode, sum)
        }
        context.fireChannelRead(
            wrapInboundOut(
                WebSocketFrame(
                    fin: head.isLast, rsv1: head.first & 0x40 != 0, rsv2: head.first & 0x20 != 0,
                    rsv3: head.first & 0x10 != 0, opcode: opcode, maskKey: head.mask, data: data)))
        return .continue
    }

    /// The rest of a connection that ended within a frame is dropped.
    func decodeLast(context: ChannelHandlerContext, buffer: inout ByteBuffer, seenEOF: Bool) throws -> DecodingState {
        .needMoreData
    }

    /// Checks the length of a frame. Returns that of its message so far.
    private func check(_ head: Head) throws -> Int {
        if head.isControl {
            guard head.isLast, head.byteCount <= 125 else {
                throw WebSocketViolation(reason: "a control frame is too long, or a fragment")
            }
            return head.byteCount
        }
        let opcode = head.opcode == .continuation ? message?.opcode : head.opcode
        let sum = (head.opcode == .continuation ? message?.byteCount ?? 0 : 0) + head.byteCount
        guard opcode == .binary else {
            guard sum <= bounds.textByteCountMax else { throw Self.tooLong(bounds.textByteCountMax) }
            return sum
        }
        guard bounds.binaryByteCountMax > 0 else {
            throw ApusError(.malformed, "binary messages are frames of a stream that the client publishes; it has none")
        }
        guard sum <= bounds.binaryByteCountMax else { throw Self.tooLong(bounds.binaryByteCountMax) }
        return sum
    }

    private static func tooLong(_ max: Int) -> ApusError {
        ApusError(.frameTooLarge, "a message has at most \(max) bytes")
    }

    /// Nil if the header is not complete.
    private static func head(_ buffer: ByteBuffer) throws -> Head? {
        var rest = buffer
        guard let (first, second) = rest.readMultipleIntegers(as: (UInt8, UInt8).self) else { return nil }
        var byteCount = Int(second & 0x7F)
        if byteCount == 126 {
            guard let count = rest.readInteger(as: UInt16.self) else { return nil }
            byteCount = Int(count)
        } else if byteCount == 127 {
            guard let count = rest.readInteger(as: UInt64.self) else { return nil }
            byteCount = Int(clamping: count)
        }
        var mask: WebSocketMaskingKey?
        if second & 0x80 != 0 {
            guard let bytes = rest.readBytes(length: 4) else { return nil }
            mask = WebSocketMaskingKey(bytes)
        }
        return Head(
            first: first, mask: mask, byteCount: byteCount, headByteCount: buffer.readableBytes - rest.readableBytes)
    }
}
