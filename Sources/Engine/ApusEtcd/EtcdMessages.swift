package import ApusCore
import Foundation

/// The frames of messages in the bodies of gRPC: a byte 0, the length in four bytes, and the message
/// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
package enum EtcdFrame {
    /// The bytes before each message.
    package static let headByteCount = 5

    /// One message with its head.
    package static func encode(_ message: [UInt8]) -> [UInt8] {
        [0] + (0..<4).map { UInt8(truncatingIfNeeded: message.count >> (24 - $0 * 8)) } + message
    }
}

/// Takes the messages out of a body that arrives in parts. Confined to its owner.
package struct EtcdFrameDecoder: Sendable {
    private let messageByteCountMax: Int
    private var bytes: [UInt8] = []
    /// Where the next frame begins in the bytes.
    private var position = 0

    package init(messageByteCountMax: Int) { self.messageByteCountMax = messageByteCountMax }

    package mutating func append(_ part: [UInt8]) {
        bytes.removeFirst(position)
        position = 0
        bytes += part
    }

    /// The next message; nil if more bytes are needed.
    ///
    /// - Throws: 10001 if a message is compressed, which no request allows; 10002 if it is too long.
    package mutating func next() throws(ApusError) -> [UInt8]? {
        let waiting = bytes[position...]
        guard waiting.count >= EtcdFrame.headByteCount else { return nil }
        guard waiting.first == 0 else { throw ApusError(.malformed, "a message is compressed") }
        let length = waiting.dropFirst().prefix(4).reduce(0) { $0 << 8 | Int($1) }
        guard length <= messageByteCountMax else {
            throw ApusError(.frameTooLarge, "a message has more than \(messageByteCountMax) bytes")
        }
        guard waiting.count - EtcdFrame.headByteCount >= length else { return nil }
        let start = position + EtcdFrame.headByteCount
        position = start + length
        return Array(bytes[start..<position])
    }
}

/// The codes of gRPC's statuses that count
/// (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md).
enum EtcdStatus: Int {
    case ok = 0
    case invalidArgument = 3
    case deadlineExceeded = 4
    case notFound = 5
    case permissionDenied = 7
    case resourceExhausted = 8
    case failedPrecondition = 9
    case outOfRange = 11
    case unimplemented = 12
    case unavailable = 14
    case unauthenticated = 16

    /// gRPC's encoding of a message in a header.
    static func message(_ encoded: String) -> String { encoded.removingPercentEncoding ?? encoded }
}
