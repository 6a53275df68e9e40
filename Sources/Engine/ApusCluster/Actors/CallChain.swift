package import ApusCore
package import NIOCore

/// The entities through which a request came, first to last, each with the epoch under which it asked (D15).
///
/// The last one is who asks: whoever knows a later epoch of its shard refuses the request (10013), so that what a
/// former owner still sends goes nowhere. An entity that waits for an answer takes no other message, so a request to an
/// entity that is in the chain would wait for ever: it fails at once, and the error names the way round (10028).
///
/// On the wire, behind the entity's header: `u8 count`, then as many headers (``EntityHeader``).
package struct CallChain: Sendable, Equatable {
    /// Entities in one chain; a request through more fails with 10028.
    package static let countMax = 8

    package private(set) var callers: [EntityHeader] = []

    package init() {}

    /// The chain of a message that an entity sends of its own.
    package init(sender: EntityHeader) { callers = [sender] }

    package var isEmpty: Bool { callers.isEmpty }
    /// Who asks; nil if no entity does.
    package var caller: EntityHeader? { callers.last }

    /// Who asks does so as a former owner: a later epoch of its shard is known.
    package func isStale(knowing epoch: (ShardID) -> Epoch) -> Bool {
        caller.map { $0.epoch < epoch($0.shard) } ?? false
    }

    /// The chain of what an entity asks while it carries out a request of this chain.
    ///
    /// - Throws: 10028 if the target waits for the answer already, or the chain is too long.
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

    /// Takes the chain off the front; nil, with nothing taken, where it is none.
    package init?(from buffer: inout ByteBuffer) {
        guard let chain = RawReader.take(from: &buffer, { CallChain(from: &$0) }) else { return nil }
        self = chain
    }

    /// Reads the chain; nil if it is none.
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
