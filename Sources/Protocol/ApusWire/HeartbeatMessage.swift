public import ApusCore
public import NIOCore

/// The messages in heartbeat datagrams between nodes (D4).
public enum HeartbeatMessage: Sendable, Hashable {
    /// The sender is alive. Sent to every peer at a fixed interval.
    case heartbeat
    /// A probe of the receiver. With an origin the probe comes from there, through the sender.
    case probe(nonce: UInt32, origin: NodeID?)
    /// The answer to ``probe(nonce:origin:)``, with the probe's fields.
    case answer(nonce: UInt32, origin: NodeID?)
    /// Requests a probe of the target: the indirect probe of SWIM.
    case indirectRequest(nonce: UInt32, target: NodeID)
    /// The target answered: the answer to ``indirectRequest(nonce:target:)``.
    case indirectAnswer(nonce: UInt32, target: NodeID)
    /// The sender does not hear the target either: another answer to ``indirectRequest(nonce:target:)``. Nodes of
    /// earlier versions ignore it.
    case unheard(nonce: UInt32, target: NodeID)
    /// The sender does not hear the target either, but has not been counted among the target's watchers by the target
    /// itself, or may not answer for its own entities. Counts only if the target's lease has run out. Nodes of earlier
    /// versions ignore it.
    case unheardUncounted(nonce: UInt32, target: NodeID)
    /// A heartbeat with a promise to the receiver. Nodes of earlier versions ignore it, so a node sends heartbeats as
    /// well until the receiver has sent a promise.
    case promise(HeartbeatPromise)

    var promise: HeartbeatPromise? {
        if case .promise(let promise) = self { promise } else { nil }
    }
}

/// A sender's report about itself in each datagram of version 2. Its peers use it in their verdicts (D4).
public struct HeartbeatVitals: Sendable, Hashable {
    /// The process that sends these heartbeats, so that a peer on the same machine can inspect its state (proc(5)).
    public struct Process: Sendable, Hashable {
        /// A hash of the machine's boot id and PID namespace; 0 if they are unknown. The process number is meaningful
        /// only to nodes with the same hash.
        public var host: UInt64
        public var number: UInt32
        /// The thread that sends heartbeats.
        public var thread: UInt32
        /// The process's start time, in the kernel's ticks since the boot. It distinguishes a reused process number.
        public var started: UInt64

        public init(host: UInt64, number: UInt32, thread: UInt32, started: UInt64) {
            self.host = host
            self.number = number
            self.thread = thread
            self.started = started
        }
    }

    /// The sender's wall clock, in Unix milliseconds.
    public var wallMilliseconds: UInt64
    /// The greatest recent lateness of the sender's heartbeat thread, in milliseconds; at most 65,535.
    public var latenessMilliseconds: UInt16
    public var process: Process

    public init(wallMilliseconds: UInt64, latenessMilliseconds: UInt16, process: Process) {
        self.wallMilliseconds = wallMilliseconds
        self.latenessMilliseconds = latenessMilliseconds
        self.process = process
    }

    fileprivate static let byteCount = 8 + 2 + 8 + 4 + 4 + 8

    fileprivate func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(
            wallMilliseconds, latenessMilliseconds, process.host, process.number, process.thread, process.started)
    }

    fileprivate init?(decoding buffer: inout ByteBuffer) {
        guard
            let (wall, lateness, host, number, thread, started) = buffer.readMultipleIntegers(
                as: (UInt64, UInt16, UInt64, UInt32, UInt32, UInt64).self)
        else { return nil }
        self.init(
            wallMilliseconds: wall, latenessMilliseconds: lateness,
            process: Process(host: host, number: number, thread: thread, started: started))
    }
}

/// One heartbeat datagram without its authentication tag.
///
/// Layout, big endian: `u8 version`, `u8 kind`, `u64 cluster hash`, `u64 sequence`, `u64 incarnation`, `u8 length` and
/// name of the sender, `u32 nonce`, then `u8 length`, name and, if the length is not 0, `u64 incarnation` of the
/// subject. In a promise the nonce is 1 if its sender is in a ring of watchers; earlier versions ignore it. A promise
/// goes on with `u64 sent`, `u64 echo`, `u32 held`, `u16 promised` and `u32 vote`. Version 2 ends with
/// the vitals: `u64 wall clock`, `u16 lateness`, `u64 host`, `u32 process`, `u32 thread`,
/// `u64 start`. At most ``byteCountMax`` bytes.
///
/// A node sends version 1 to a peer until it knows that the peer reads version 2. A heartbeat of version 1, whose nonce
/// was not used before, announces this with a nonce of 2.
public struct HeartbeatDatagram: Sendable, Equatable {
    /// The newest version of this layout.
    public static let version: UInt8 = 2
    /// The longest datagram without its tag, in bytes.
    public static let byteCountMax = 1 + 1 + 8 + 8 + 8 + 1 + 63 + 4 + 1 + 63 + 8 + HeartbeatVitals.byteCount

    /// ``StableHash`` of the cluster's name. It distinguishes datagrams of another cluster from forged ones.
    public var clusterHash: UInt64
    /// Grows with each datagram of this incarnation of the sender, over all receivers. Detects replays.
    public var sequence: UInt64
    public var sender: NodeID
    public var message: HeartbeatMessage
    /// Nil in a datagram of version 1.
    public let vitals: HeartbeatVitals?
    /// True if the sender announces that it reads version 2. Of the messages of version 1, only heartbeats announce it.
    public let readsVitals: Bool

    /// - Parameter vitals: Makes it a datagram of version 2. Nil makes it version 1, for peers that may not read
    ///   version 2.
    public init(
        clusterHash: UInt64, sequence: UInt64, sender: NodeID, message: HeartbeatMessage, vitals: HeartbeatVitals? = nil
    ) {
        self.clusterHash = clusterHash
        self.sequence = sequence
        self.sender = sender
        self.message = message
        self.vitals = vitals
        readsVitals = vitals != nil || message == .heartbeat || message.promise != nil
    }

    /// Appends the datagram to a buffer.
    public func encode(into buffer: inout ByteBuffer) {
        let (kind, nonce, subject) = fields
        let version: UInt8 = vitals == nil ? 1 : 2
        buffer.writeMultipleIntegers(version, kind, clusterHash, sequence, sender.incarnation)
        Self.write(sender.name, into: &buffer)
        buffer.writeInteger(message == .heartbeat && readsVitals ? UInt32(Self.version) : nonce)
        if let subject {
            Self.write(subject.name, into: &buffer)
            buffer.writeInteger(subject.incarnation)
        } else {
            buffer.writeInteger(UInt8(0))
        }
        message.promise?.encode(into: &buffer)
        vitals?.encode(into: &buffer)
    }

    /// Decodes one whole datagram; bytes after it are an error.
    ///
    /// - Throws: 10003 for another version of the layout, 10001 for anything that cannot be parsed.
    public init(decoding buffer: inout ByteBuffer) throws(ApusError) {
        guard let version = buffer.readInteger(as: UInt8.self) else { throw ApusError(.malformed) }
        guard (1...Self.version).contains(version) else { throw ApusError(.versionUnsupported) }
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
        let promise = kind == Self.promiseKind ? HeartbeatPromise(decoding: &buffer) : nil
        let vitals = version == 1 ? nil : HeartbeatVitals(decoding: &buffer)
        guard (vitals == nil) == (version == 1), buffer.readableBytes == 0 else { throw ApusError(.malformed) }
        clusterHash = hash
        self.sequence = sequence
        sender = NodeID(name: name, incarnation: incarnation)
        message = try Self.message(kind: kind, nonce: nonce, subject: subject, promise: promise)
        self.vitals = vitals
        readsVitals = vitals != nil || promise != nil || (message == .heartbeat && nonce == UInt32(Self.version))
    }

    private var fields: (kind: UInt8, nonce: UInt32, subject: NodeID?) {
        switch message {
        case .heartbeat: (1, 0, nil)
        case .probe(let nonce, let origin): (2, nonce, origin)
        case .answer(let nonce, let origin): (3, nonce, origin)
        case .indirectRequest(let nonce, let target): (4, nonce, target)
        case .indirectAnswer(let nonce, let target): (5, nonce, target)
        case .unheard(let nonce, let target): (6, nonce, target)
        case .promise(let promise): (Self.promiseKind, promise.isAmongWatchers ? 1 : 0, nil)
        case .unheardUncounted(let nonce, let target): (8, nonce, target)
        }
    }

    private static let promiseKind: UInt8 = 7

    private static func message(
        kind: UInt8, nonce: UInt32, subject: NodeID?, promise: HeartbeatPromise?
    ) throws(ApusError) -> HeartbeatMessage {
        switch (kind, subject) {
        case (promiseKind, nil):
            guard var promise else { throw ApusError(.malformed) }
            promise.isAmongWatchers = nonce == 1
            return .promise(promise)
        case (1, nil): return .heartbeat
        case (2, _): return .probe(nonce: nonce, origin: subject)
        case (3, _): return .answer(nonce: nonce, origin: subject)
        case (4, .some(let target)): return .indirectRequest(nonce: nonce, target: target)
        case (5, .some(let target)): return .indirectAnswer(nonce: nonce, target: target)
        case (6, .some(let target)): return .unheard(nonce: nonce, target: target)
        case (8, .some(let target)): return .unheardUncounted(nonce: nonce, target: target)
        default: throw ApusError(.malformed)
        }
    }

    private static func write(_ name: NodeName, into buffer: inout ByteBuffer) {
        buffer.writeInteger(UInt8(truncatingIfNeeded: name.rawValue.utf8.count))
        buffer.writeString(name.rawValue)
    }

    /// The name that comes next; nil if its length is 0.
    private static func readName(from buffer: inout ByteBuffer) throws(ApusError) -> NodeName? {
        guard let length = buffer.readInteger(as: UInt8.self) else { throw ApusError(.malformed) }
        guard length > 0 else { return nil }
        guard let text = buffer.readString(length: Int(length)), let name = NodeName(rawValue: text) else {
            throw ApusError(.malformed)
        }
        return name
    }
}
