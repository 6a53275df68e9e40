package import ApusCore
package import NIOCore

// The encoding of replication messages on the control lane, by hand (D2), big endian. A message is a list of states
// that no node decodes on the way, so a schema would only copy them twice. The first byte is the version of the layout.
// A node refuses a version that it does not know with 10001.

/// Constants and helpers of both messages.
private enum ReplicaLayout {
    static let version: UInt8 = 1
    /// The length that stands for a removed entity's state.
    static let removed = UInt32.max

    static func readVersion(_ buffer: inout ByteBuffer) throws(ApusError) {
        guard buffer.readInteger(as: UInt8.self) == version else { throw ApusError(.malformed) }
    }

    static func write(_ shard: ShardID, _ term: ReplicaTerm, into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(shard.rawValue, term.epoch, term.stream)
    }

    static func readTerm(_ buffer: inout ByteBuffer) throws(ApusError) -> (ShardID, ReplicaTerm) {
        guard let (shard, epoch, stream) = buffer.readMultipleIntegers(as: (UInt16, UInt32, UInt64).self),
            shard < ShardID.count, epoch <= WireNumber.termMax, stream <= WireNumber.sequenceMax
        else { throw ApusError(.malformed) }
        return (ShardID(shard), ReplicaTerm(epoch: epoch, stream: stream))
    }

    /// A number below ``WireNumber/nextMax``.
    static func readNumber(_ buffer: inout ByteBuffer) throws(ApusError) -> UInt64 {
        guard let number = buffer.readInteger(as: UInt64.self), number <= WireNumber.nextMax else {
            throw ApusError(.malformed)
        }
        return number
    }

    /// A count of items, each of which takes at least the given number of bytes.
    static func readCount(
        _ buffer: inout ByteBuffer, byteCountMin: Int, countMax: Int = .max
    ) throws(ApusError) -> Int {
        guard let count = buffer.readInteger(as: UInt32.self), Int(count) <= countMax,
            Int(count) <= buffer.readableBytes / byteCountMin
        else { throw ApusError(.malformed) }
        return Int(count)
    }

    /// As ``readCount(_:byteCountMin:countMax:)``, for items that occur at most once for each shard.
    static func readShardCount(_ buffer: inout ByteBuffer, byteCountMin: Int) throws(ApusError) -> Int {
        try readCount(&buffer, byteCountMin: byteCountMin, countMax: ShardID.count)
    }
}

extension ReplicaMessage {
    package func encoded() -> ByteBuffer {
        let byteCount = batches.reduce(40 + 14 * ends.count) { $0 + $1.byteCount }
        var buffer = ByteBufferAllocator().buffer(capacity: byteCount)
        buffer.writeMultipleIntegers(
            ReplicaLayout.version, targetIncarnation, number, revision, UInt32(clamping: ends.count))
        for end in ends { ReplicaLayout.write(end.shard, end.term, into: &buffer) }
        buffer.writeInteger(UInt32(clamping: batches.count))
        for batch in batches { batch.encode(into: &buffer) }
        return buffer
    }

    /// Decodes a message that fills the buffer. Its states are copies.
    ///
    /// - Throws: 10001 if it cannot be decoded, or a number is out of bounds.
    package init(decoding bytes: ByteBuffer) throws(ApusError) {
        var buffer = bytes
        try ReplicaLayout.readVersion(&buffer)
        let incarnation = try ReplicaLayout.readNumber(&buffer)
        let number = try ReplicaLayout.readNumber(&buffer)
        let revision = try ReplicaLayout.readNumber(&buffer)
        var ends: [ReplicaEnd] = []
        let endCount = try ReplicaLayout.readShardCount(&buffer, byteCountMin: 14)
        for _ in 0..<endCount {
            let (shard, term) = try ReplicaLayout.readTerm(&buffer)
            ends.append(ReplicaEnd(shard: shard, term: term))
        }
        var batches: [ReplicaBatch] = []
        let batchCount = try ReplicaLayout.readShardCount(&buffer, byteCountMin: ReplicaBatch.overhead)
        for _ in 0..<batchCount {
            batches.append(try ReplicaBatch(from: &buffer))
        }
        guard buffer.readableBytes == 0 else { throw ApusError(.malformed) }
        self.init(
            targetIncarnation: incarnation, number: number, revision: revision, ends: ends, batches: batches)
    }
}

extension ReplicaBatch {
    private struct Flags: OptionSet {
        var rawValue: UInt8
        static let completes = Self(rawValue: 1)
        static let isBinding = Self(rawValue: 2)
        static let keepsEarlier = Self(rawValue: 4)
        static let all: Self = [.completes, .isBinding, .keepsEarlier]
    }

    fileprivate func encode(into buffer: inout ByteBuffer) {
        var flags: Flags = []
        if completes { flags.insert(.completes) }
        if isBinding { flags.insert(.isBinding) }
        if keepsEarlier { flags.insert(.keepsEarlier) }
        ReplicaLayout.write(shard, term, into: &buffer)
        buffer.writeMultipleIntegers(sequence, position, flags.rawValue, UInt32(clamping: records.count))
        for record in records { record.encode(into: &buffer) }
    }

    fileprivate init(from buffer: inout ByteBuffer) throws(ApusError) {
        let (shard, term) = try ReplicaLayout.readTerm(&buffer)
        let sequence = try ReplicaLayout.readNumber(&buffer)
        let position = try ReplicaLayout.readNumber(&buffer)
        guard let bits = buffer.readInteger(as: UInt8.self), Flags.all.isSuperset(of: Flags(rawValue: bits)) else {
            throw ApusError(.malformed)
        }
        self.init(shard: shard, term: term, sequence: sequence, position: position)
        let flags = Flags(rawValue: bits)
        completes = flags.contains(.completes)
        isBinding = flags.contains(.isBinding)
        keepsEarlier = flags.contains(.keepsEarlier)
        let count = try ReplicaLayout.readCount(&buffer, byteCountMin: ReplicaRecord.overhead + 1)
        // Memory is not reserved for an announced count before the items are read.
        records.reserveCapacity(min(count, 1024))
        for _ in 0..<count { records.append(try ReplicaRecord(from: &buffer)) }
    }
}

extension ReplicaRecord {
    fileprivate func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(key.kind.rawValue, UInt8(clamping: key.key.utf8.count))
        buffer.writeString(key.key)
        guard let state else {
            buffer.writeInteger(ReplicaLayout.removed)
            return
        }
        buffer.writeInteger(UInt32(clamping: state.readableBytes))
        buffer.writeImmutableBuffer(state)
    }

    fileprivate init(from buffer: inout ByteBuffer) throws(ApusError) {
        guard let (kind, length) = buffer.readMultipleIntegers(as: (UInt8, UInt8).self),
            (1...EntityAddress.keyByteCountMax).contains(Int(length)),
            let key = buffer.readString(length: Int(length)), key.utf8.count == Int(length),
            let stateLength = buffer.readInteger(as: UInt32.self)
        else { throw ApusError(.malformed) }
        self.init(ReplicaKey(kind: EntityKind(rawValue: kind), key: key), nil)
        guard stateLength != ReplicaLayout.removed else { return }
        guard let slice = buffer.readSlice(length: Int(stateLength)) else { throw ApusError(.malformed) }
        // A slice would retain the connection's whole read buffer as long as the state exists.
        state = ByteBuffer(bytes: slice.readableBytesView)
    }
}

extension ReplicaAnswers {
    private enum Code: UInt8 {
        case next = 1
        case restart = 2
        case older = 3
        case overloaded = 4
    }

    /// Shard, term, sequence, verdict, and the verdict's value: a sequence, or a term's epoch and stream.
    private static let answerByteCount = 14 + 8 + 1 + 4 + 8

    package func encoded() -> ByteBuffer {
        var buffer = ByteBufferAllocator().buffer(capacity: 13 + Self.answerByteCount * answers.count)
        buffer.writeMultipleIntegers(ReplicaLayout.version, number, UInt32(clamping: answers.count))
        for answer in answers {
            ReplicaLayout.write(answer.shard, answer.term, into: &buffer)
            let said: (code: Code, epoch: Epoch, number: UInt64) =
                switch answer.verdict {
                case .next(let next): (.next, 0, next)
                case .restart: (.restart, 0, 0)
                case .older(let newest): (.older, newest.epoch, newest.stream)
                case .overloaded: (.overloaded, 0, 0)
                }
            buffer.writeMultipleIntegers(answer.sequence, said.code.rawValue, said.epoch, said.number)
        }
        return buffer
    }

    /// Decodes answers that fill the buffer.
    ///
    /// - Throws: 10001 if they cannot be decoded, or a number is out of bounds.
    package init(decoding bytes: ByteBuffer) throws(ApusError) {
        var buffer = bytes
        try ReplicaLayout.readVersion(&buffer)
        let number = try ReplicaLayout.readNumber(&buffer)
        var answers: [ReplicaAnswer] = []
        let answerCount = try ReplicaLayout.readShardCount(&buffer, byteCountMin: Self.answerByteCount)
        for _ in 0..<answerCount {
            let (shard, term) = try ReplicaLayout.readTerm(&buffer)
            let sequence = try ReplicaLayout.readNumber(&buffer)
            guard let (bits, epoch) = buffer.readMultipleIntegers(as: (UInt8, UInt32).self),
                let code = Code(rawValue: bits), epoch <= WireNumber.termMax
            else { throw ApusError(.malformed) }
            let said = try ReplicaLayout.readNumber(&buffer)
            let verdict: ReplicaAnswer.Verdict =
                switch code {
                case .next: .next(said)
                case .restart: .restart
                case .older: .older(ReplicaTerm(epoch: epoch, stream: said))
                case .overloaded: .overloaded
                }
            answers.append(ReplicaAnswer(shard: shard, term: term, sequence: sequence, verdict: verdict))
        }
        guard buffer.readableBytes == 0 else { throw ApusError(.malformed) }
        self.init(number: number, answers: answers)
    }
}
