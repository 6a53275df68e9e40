import ApusCluster
import ApusCore
import ApusTestKit
import NIOCore
import Testing

@Suite("What of an entity outlives its activation (D15)")
struct StoredEntityTests {
    private func stored() -> StoredEntity {
        var memory = RequestMemory()
        memory.end(RequestID(high: 1, low: 2), .reply([3, 4]))
        memory.end(RequestID(high: .max, low: 0), .failure(code: 8023, message: "the device is bound to another user"))
        memory.end(RequestID(high: 5, low: 6), .notKept)
        memory.end(RequestID(high: 7, low: 8), .reply([]))
        return StoredEntity(content: [9, 9, 9], memory: memory)
    }

    @Test("It is read as it was written, with every kind of answer")
    func whole() throws {
        #expect(try StoredEntity(reading: try stored().encoded()) == stored())
        let empty = StoredEntity(content: [], memory: RequestMemory())
        #expect(try StoredEntity(reading: try empty.encoded()) == empty)
    }

    @Test("Cut, lengthened or flipped bytes are refused with 10001 or read, and trap nothing")
    func broken() throws {
        try DecoderVerifier.verifyMessage((ByteBuffer(bytes: try stored().encoded()), stored()), isPrefixFree: false) {
            try StoredEntity(reading: Array($0.readableBytesView))
        }
    }

    @Test("More answers than the bounds allow are taken within them, the newest")
    func bounds() throws {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 2
        let read = try StoredEntity(reading: try stored().encoded(), configuration: configuration)
        #expect(read.memory.carried.map(\.id.high) == [5, 7])
    }
}
