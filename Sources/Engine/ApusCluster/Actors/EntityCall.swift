package import ApusCore
package import NIOCore

/// What a message to an entity came with: who sent it, on whose behalf, through which entities, and until when (D15).
///
/// On the wire it stands behind the entity's header (``EntityHeader``), big endian: `u8 marks`, and then what the marks
/// say, in this order: `u32` milliseconds that are left, 16 bytes of the request's id, 16 bytes of the trace's id,
/// `u8 length` and identity, the chain (``CallChain``).
///
/// The node is what the link's handshake proved. All else is that node's word.
package struct EntityCall: Sendable, Equatable {
    private struct Marks: OptionSet {
        let rawValue: UInt8
        static let timeLeft = Self(rawValue: 1)
        static let request = Self(rawValue: 2)
        static let trace = Self(rawValue: 4)
        static let identity = Self(rawValue: 8)
        static let chain = Self(rawValue: 16)
        static let all: Self = [.timeLeft, .request, .trace, .identity, .chain]
    }

    /// The longest name of an identity, in bytes.
    package static let identityByteCountMax = 63

    /// The node that sent it; nil where that is this one.
    package var node: NodeID?
    /// The device or the account for which it is asked; nil where the cluster asks of its own.
    package var identity: String?
    /// For how long the caller waited on when this was sent; nil for a tell.
    package var timeLeft: Duration?
    /// Names the request where its caller may send it again.
    package var request: RequestID?
    /// Names what the request belongs to, through all entities and nodes.
    package var trace: RequestID?
    package var chain = CallChain()

    package init() {}

    private var marks: Marks {
        var marks: Marks = []
        if timeLeft != nil { marks.insert(.timeLeft) }
        if request != nil { marks.insert(.request) }
        if trace != nil { marks.insert(.trace) }
        if identity != nil { marks.insert(.identity) }
        if !chain.isEmpty { marks.insert(.chain) }
        return marks
    }

    /// The length on the wire, in bytes.
    var byteCount: Int {
        var count = 1
        if timeLeft != nil { count += 4 }
        if request != nil { count += 16 }
        if trace != nil { count += 16 }
        if let identity { count += 1 + identity.utf8.count }
        if !chain.isEmpty { count += chain.byteCount }
        return count
    }

    /// Appends it.
    ///
    /// - Precondition: the identity has 1 to ``identityByteCountMax`` bytes.
    package func encode(into buffer: inout ByteBuffer) {
        let marks = marks
        buffer.writeInteger(marks.rawValue)
        if let timeLeft { buffer.writeInteger(UInt32(clamping: timeLeft.nanoseconds / 1_000_000)) }
        if let request { buffer.writeMultipleIntegers(request.high, request.low) }
        if let trace { buffer.writeMultipleIntegers(trace.high, trace.low) }
        if let identity {
            buffer.writeInteger(UInt8(truncatingIfNeeded: identity.utf8.count))
            buffer.writeString(identity)
        }
        if !chain.isEmpty { chain.encode(into: &buffer) }
    }

    /// Takes it off the front; nil, with nothing taken, where it is none.
    package init?(from buffer: inout ByteBuffer, node: NodeID) {
        var rest = buffer
        guard let rawMarks = rest.readInteger(as: UInt8.self) else { return nil }
        let marks = Marks(rawValue: rawMarks)
        guard marks.isSubset(of: .all) else { return nil }
        self.node = node
        if marks.contains(.timeLeft) {
            guard let left = rest.readInteger(as: UInt32.self) else { return nil }
            timeLeft = .milliseconds(Int64(left))
        }
        if marks.contains(.request) {
            guard let id = RequestID(from: &rest) else { return nil }
            request = id
        }
        if marks.contains(.trace) {
            guard let id = RequestID(from: &rest) else { return nil }
            trace = id
        }
        if marks.contains(.identity) {
            guard let length = rest.readInteger(as: UInt8.self), (1...Self.identityByteCountMax).contains(Int(length)),
                let name = rest.readString(length: Int(length))
            else { return nil }
            identity = name
        }
        if marks.contains(.chain) {
            guard let callers = CallChain(from: &rest), !callers.isEmpty else { return nil }
            chain = callers
        }
        buffer = rest
    }
}

extension RequestID {
    fileprivate init?(from buffer: inout ByteBuffer) {
        guard let (high, low) = buffer.readMultipleIntegers(as: (UInt64, UInt64).self) else { return nil }
        self.init(high: high, low: low)
    }
}
