public import ApusCore
public import NIOCore

/// What nodes say to each other in heartbeat datagrams (D4).
public enum HeartbeatMessage: Sendable, Hashable {
    /// "I live"; sent to every peer on a fixed beat.
    case heartbeat
    /// "Do you live?" With an origin the question comes from there, through the sender.
    case probe(nonce: UInt32, origin: NodeID?)
    /// The answer to ``probe(nonce:origin:)``, with what the probe carried.
    case answer(nonce: UInt32, origin: NodeID?)
    /// "Ask the target for me": the indirect probe of SWIM.
    case indirectRequest(nonce: UInt32, target: NodeID)
    /// "The target answered me": the answer to ``indirectRequest(nonce:target:)``.
    case indirectAnswer(nonce: UInt32, target: NodeID)
}

/// One heartbeat datagram without its authentication tag.
///
/// Layout, big endian: `u8 version`, `u8 kind`, `u64 cluster hash`, `u64 sequence`, `u64 incarnation`,
/// `u8 length` and name of the sender, `u32 nonce`, then `u8 length`, name and `u64 incarnation` of the
/// subject where the length is not 0. At most ``byteCountMax`` bytes.
public struct HeartbeatDatagram: Sendable, Equatable {
    /// The version of this layout.
    public static let version: UInt8 = 1
    /// The longest datagram without its tag, in bytes.
    public static let byteCountMax = 1 + 1 + 8 + 8 + 8 + 1 + 63 + 4 + 1 + 63 + 8

    /// ``StableHash`` of the cluster's name: datagrams of another cluster are told from forged ones.
    public var clusterHash: UInt64
    /// Grows with each datagram of this life of the sender, over all receivers; fences replays.
    public var sequence: UInt64
    public var sender: NodeID
    public var message: HeartbeatMessage

    public init(clusterHash: UInt64, sequence: UInt64, sender: NodeID, message: HeartbeatMessage) {
        self.clusterHash = clusterHash
        self.sequence = sequence
        self.sender = sender
        self.message = message
    }

    /// Appends the datagram to a buffer.
    public func encode(into buffer: inout ByteBuffer) {
        let (kind, nonce, subject) = fields
        buffer.writeMultipleIntegers(Self.version, kind, clusterHash, sequence, sender.incarnation)
        Self.write(sender.name, into: &buffer)
        buffer.writeInteger(nonce)
        guard let subject else {
            buffer.writeInteger(UInt8(0))
            return
        }
        Self.write(subject.name, into: &buffer)
        buffer.writeInteger(subject.incarnation)
    }

    /// Reads one whole datagram; bytes after it are an error.
    ///
    /// - Throws: 10003 for another version of the layout, 10001 for anything that does not parse.
    public init(decoding buffer: inout ByteBuffer) throws(ApusError) {
        guard let version = buffer.readInteger(as: UInt8.self) else { throw ApusError(.malformed) }
        guard version == Self.version else { throw ApusError(.versionUnsupported) }
        guard
            let (kind, hash, sequence, incarnation) = buffer.readMultipleIntegers(
                as: (UInt8, UInt64, UInt64, UInt64).self),
            let name = try Self.readName(from: &buffer),
            let nonce = buffer.readInteger(as: UInt32.self)
        else { throw ApusError(.malformed) }
        var subject: NodeID?
        if let subjectName = try Self.readName(from: &buffer) {
            guard let incarnation = buffer.readInteger(as: UInt64.self) else { throw ApusError(.malformed) }
            subject = NodeID(name: subjectName, incarnation: incarnation)
        }
        guard buffer.readableBytes == 0 else { throw ApusError(.malformed) }
        clusterHash = hash
        self.sequence = sequence
        sender = NodeID(name: name, incarnation: incarnation)
        message = try Self.message(kind: kind, nonce: nonce, subject: subject)
    }

    private var fields: (kind: UInt8, nonce: UInt32, subject: NodeID?) {
        switch message {
        case .heartbeat: (1, 0, nil)
        case .probe(let nonce, let origin): (2, nonce, origin)
        case .answer(let nonce, let origin): (3, nonce, origin)
        case .indirectRequest(let nonce, let target): (4, nonce, target)
        case .indirectAnswer(let nonce, let target): (5, nonce, target)
        }
    }

    private static func message(
        kind: UInt8, nonce: UInt32, subject: NodeID?
    ) throws(ApusError) -> HeartbeatMessage {
        switch (kind, subject) {
        case (1, nil): return .heartbeat
        case (2, _): return .probe(nonce: nonce, origin: subject)
        case (3, _): return .answer(nonce: nonce, origin: subject)
        case (4, .some(let target)): return .indirectRequest(nonce: nonce, target: target)
        case (5, .some(let target)): return .indirectAnswer(nonce: nonce, target: target)
        default: throw ApusError(.malformed)
        }
    }

    private static func write(_ name: NodeName, into buffer: inout ByteBuffer) {
        buffer.writeInteger(UInt8(truncatingIfNeeded: name.rawValue.utf8.count))
        buffer.writeString(name.rawValue)
    }

    /// The name that comes next; nil where its length is 0.
    private static func readName(from buffer: inout ByteBuffer) throws(ApusError) -> NodeName? {
        guard let length = buffer.readInteger(as: UInt8.self) else { throw ApusError(.malformed) }
        guard length > 0 else { return nil }
        guard let text = buffer.readString(length: Int(length)), let name = NodeName(rawValue: text) else {
            throw ApusError(.malformed)
        }
        return name
    }
}
