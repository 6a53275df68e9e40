package import ApusCore
package import NIOCore

/// The entities through which a request came, first to last. Each has the epoch under which it sent the request (D15).
///
/// The last entity is the caller. A receiver that has seen a later epoch of the caller's shard refuses the request
/// (10013), so messages of a former owner have no effect. An entity that waits for an answer handles no other message.
/// A request to an entity that is already in the chain would therefore wait forever. It fails at once with 10028, and
/// the error names the entities of the cycle.
///
/// On the wire, behind the entity's header: `u8 count`, then as many headers (``EntityHeader``).
package struct CallChain: Sendable, Equatable {
    /// The most entities in one chain. A request through more fails with 10028.
    package static let countMax = 8

    package private(set) var callers: [EntityHeader] = []

    package init() {}

    /// The chain of a message that an entity sends on its own initiative.
    package init(sender: EntityHeader) { callers = [sender] }

    package var isEmpty: Bool { callers.isEmpty }
    /// The entity that calls; nil if the caller is not an entity.
    package var caller: EntityHeader? { callers.last }

    /// True if a later epoch of the caller's shard is known: the caller is a former owner.
    package func isStale(knowing epoch: (ShardID) -> Epoch) -> Bool {
        caller.map { $0.epoch < epoch($0.shard) } ?? false
    }

    /// The chain of a request that an entity sends while it handles a request of this chain.
    ///
    /// - Throws: 10028 if the target already waits for the answer, or the chain is too long.
    package func through(
        _ entity: EntityHeader, to target: EntityAddress, interleaves: Bool = false
    ) throws(ApusError) -> CallChain {
        var longer = self
        longer.callers.append(entity)
        if !interleaves, let start = longer.callers.firstIndex(where: { $0.names(target) }) {
            let way = longer.callers[start...].map { "\($0.kind)/\($0.key)" } + [target.description]
            throw ApusError(.callCycle, "entities wait for one another: \(way.joined(separator: " -> "))")
        }
        guard longer.callers.count <= Self.countMax else {
            throw ApusError(.callCycle, "a request went through more than \(Self.countMax) entities")
        }
        return longer
    }

    /// The length on the wire, in bytes.
    var byteCount: Int { callers.reduce(1) { $0 + $1.byteCount } }

    /// Appends the chain.
    package func encode(into buffer: inout ByteBuffer) {
        RawWriter.append(byteCount, to: &buffer) { encode(into: &$0) }
    }

    func encode(into writer: inout RawWriter) {
        writer.write(UInt8(truncatingIfNeeded: callers.count))
        for caller in callers { caller.encode(into: &writer) }
    }

    /// Decodes a chain from the front of the buffer. Returns nil, and consumes nothing, if there is none.
    package init?(from buffer: inout ByteBuffer) {
        guard let chain = RawReader.take(from: &buffer, { CallChain(from: &$0) }) else { return nil }
        self = chain
    }

    /// Decodes a chain. Returns nil if there is none.
    init?(from reader: inout RawReader) {
        guard let count = reader.read(UInt8.self), count <= Self.countMax else { return nil }
        for _ in 0..<count {
            guard let caller = EntityHeader(from: &reader) else { return nil }
            callers.append(caller)
        }
    }
}

extension EntityHeader {
    func names(_ address: EntityAddress) -> Bool { kind == address.kind && key == address.key }
}
