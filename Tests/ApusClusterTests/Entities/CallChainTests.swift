import ApusCluster
import ApusCore
import ApusTestKit
import NIOCore
import Testing

@Suite("The entities through which a request came (D15)")
struct CallChainTests {
    private func entity(_ key: String, epoch: Epoch = 3) -> EntityHeader {
        EntityHeader(kind: EntityKind(rawValue: 9), shard: ShardID(key: key), epoch: epoch, key: key)
    }

    private func address(_ key: String) -> EntityAddress { EntityAddress(kind: EntityKind(rawValue: 9), key: key) }

    @Test("A request to an entity that waits for its answer fails with 10028, and the error names the way round")
    func cycle() throws {
        let first = try CallChain().through(entity("a"), to: address("b"))
        let second = try first.through(entity("b"), to: address("c"))
        #expect(second.callers.map(\.key) == ["a", "b"])
        let error = #expect(throws: ApusError.self) { try second.through(entity("c"), to: address("b")) }
        #expect(error?.code == .callCycle)
        #expect(error?.message == "entities wait for one another: 9/b -> 9/c -> 9/b")
    }

    @Test("An entity cannot ask itself, unless the method interleaves")
    func itself() throws {
        #expect(throws: ApusError(.callCycle)) { try CallChain().through(entity("a"), to: address("a")) }
        let chain = try CallChain().through(entity("a"), to: address("a"), interleaves: true)
        #expect(chain.caller == entity("a"))
    }

    @Test("The same key of another kind is another entity")
    func kinds() throws {
        let other = EntityAddress(kind: EntityKind(rawValue: 8), key: "a")
        #expect(try CallChain().through(entity("a"), to: other).callers.count == 1)
    }

    @Test("A chain of eight is taken, one more fails with 10028")
    func length() throws {
        var chain = CallChain()
        for index in 0..<8 { chain = try chain.through(entity("\(index)"), to: address("\(index + 1)")) }
        #expect(throws: ApusError(.callCycle)) { try chain.through(entity("8"), to: address("9")) }
    }

    @Test("A chain is read as it was written; cut, lengthened or flipped bytes trap nothing")
    func codec() throws {
        var chain = CallChain()
        for index in 0..<3 { chain = try chain.through(entity("key-\(index)", epoch: 7), to: address("x")) }
        var bytes = ByteBuffer()
        chain.encode(into: &bytes)
        try DecoderVerifier.verifyMessage((bytes, chain)) { bytes in
            var rest = bytes
            guard let chain = CallChain(from: &rest), rest.readableBytes == 0 else { throw ApusError(.malformed) }
            return chain
        }
    }

    @Test("More entities than a chain may have are not read")
    func tooLong() {
        var bytes = ByteBuffer(bytes: [9])
        for index in 0..<9 { entity("\(index)").encode(into: &bytes) }
        let before = bytes
        #expect(CallChain(from: &bytes) == nil)
        #expect(bytes == before)
    }
}
