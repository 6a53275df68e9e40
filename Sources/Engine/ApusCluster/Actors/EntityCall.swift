package import ApusCore
package import NIOCore

/// The context of a message to an entity: its sender, the identity on whose behalf it was sent, and the deadline (D15).
///
/// On the wire it follows the entity's header (``EntityHeader``), big endian: `u8 marks`, then the fields that the
/// marks announce, in this order: `u32` milliseconds left, 16 bytes of request id, 16 bytes without a meaning, `u8
/// length` and identity, `u8 1` and the header of the entity that sent it. The trace is in the frame's header.
///
/// The link's handshake authenticates the node. The other fields are claims of that node.
package struct EntityCall: Sendable, Equatable {
    private struct Marks: OptionSet {
        let rawValue: UInt8
        static let timeLeft = Self(rawValue: 1)
        static let request = Self(rawValue: 2)
        /// 16 bytes that are skipped. No node sends them.
        static let reserved = Self(rawValue: 4)
        static let identity = Self(rawValue: 8)
        static let sender = Self(rawValue: 16)
        static let all: Self = [.timeLeft, .request, .reserved, .identity, .sender]
    }

    /// The number before the sender's header. There is one sender.
    private static let senderCount: UInt8 = 1

    /// The longest name of an identity, in bytes.
    package static let identityByteCountMax = 63

    /// The sending node; nil if it is this node.
    package var node: NodeID?
    /// The device or account on whose behalf the request was sent; nil if the cluster sent it for itself.
    package var identity: String?
    /// The time that the caller still waited when it sent this; nil for a tell.
    package var timeLeft: Duration?
    /// Identifies the request if its caller may repeat it.
    package var request: RequestID?
    /// The span that sent it; nil if it is not traced.
    package var trace: TraceContext?
    /// The entity that sends it, with the epoch under which it does; nil if the sender is not an entity. A receiver
    /// that has seen a later epoch of the sender's shard refuses the message (10013), so messages of a former owner
    /// have no effect.
    package var sender: EntityHeader?

    package init() {}

    private func marks(isWaitedFor: Bool) -> Marks {
        var marks: Marks = []
        if isWaitedFor { marks.insert(.timeLeft) }
        if request != nil { marks.insert(.request) }
        if identity != nil { marks.insert(.identity) }
        if sender != nil { marks.insert(.sender) }
        return marks
    }

    /// The length on the wire, in bytes.
    func byteCount(isWaitedFor: Bool) -> Int {
        var count = 1
        if isWaitedFor { count += 4 }
        if request != nil { count += 16 }
        if let identity { count += 1 + identity.utf8.count }
        if let sender { count += 1 + sender.byteCount }
        return count
    }

    /// Appends the context.
    ///
    /// - Precondition: the identity has 1 to ``identityByteCountMax`` bytes.
    package func encode(into buffer: inout ByteBuffer) {
        RawWriter.append(byteCount(isWaitedFor: timeLeft != nil), to: &buffer) { writer in
            encode(millisecondsLeft: timeLeft.map(Self.milliseconds), into: &writer)
        }
    }

    static func milliseconds(_ timeLeft: Duration) -> UInt32 { UInt32(clamping: timeLeft.nanoseconds / 1_000_000) }

    /// As ``encode(into:)``, with the given time left.
    func encode(millisecondsLeft: UInt32?, into writer: inout RawWriter) {
        writer.write(marks(isWaitedFor: millisecondsLeft != nil).rawValue)
        if let millisecondsLeft { writer.write(millisecondsLeft) }
        if let request { request.encode(into: &writer) }
        if let identity {
            writer.write(UInt8(truncatingIfNeeded: identity.utf8.count))
            writer.write(identity)
        }
        if let sender {
            writer.write(Self.senderCount)
            sender.encode(into: &writer)
        }
    }

    /// Decodes a context from the front of the buffer. Returns nil, and consumes nothing, if there is none.
    package init?(from buffer: inout ByteBuffer, node: NodeID) {
        guard let call = RawReader.take(from: &buffer, { EntityCall(from: &$0, node: node) }) else { return nil }
        self = call
    }

    /// Decodes a context. Returns nil if there is none.
    init?(from reader: inout RawReader, node: NodeID) {
        guard let rawMarks = reader.read(UInt8.self) else { return nil }
        let marks = Marks(rawValue: rawMarks)
        guard marks.isSubset(of: .all) else { return nil }
        self.node = node
        if marks.contains(.timeLeft) {
            guard let left = reader.read(UInt32.self) else { return nil }
            timeLeft = .milliseconds(Int64(left))
        }
        if marks.contains(.request) {
            guard let id = RequestID(from: &reader) else { return nil }
            request = id
        }
        if marks.contains(.reserved), RequestID(from: &reader) == nil { return nil }
        if marks.contains(.identity) {
            guard let length = reader.read(UInt8.self), (1...Self.identityByteCountMax).contains(Int(length)),
                let name = reader.readText(byteCount: Int(length))
            else { return nil }
            identity = name
        }
        if marks.contains(.sender) {
            guard reader.read(UInt8.self) == Self.senderCount, let header = EntityHeader(from: &reader) else {
                return nil
            }
            sender = header
        }
    }
}

extension RequestID {
    fileprivate init?(from reader: inout RawReader) {
        guard let high = reader.read(UInt64.self), let low = reader.read(UInt64.self) else { return nil }
        self.init(high: high, low: low)
    }

    fileprivate func encode(into writer: inout RawWriter) {
        writer.write(high)
        writer.write(low)
    }
}
