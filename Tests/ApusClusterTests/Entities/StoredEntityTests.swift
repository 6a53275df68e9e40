import ApusCluster
import ApusCore
import ApusTestKit
import NIOCore
import Testing

@Suite("What of an entity outlives its activation (D15)")
struct StoredEntityTests {
    private let address = EntityAddress(kind: .probe, key: "one")

    private func stored() -> StoredEntity {
        var memory = RequestMemory()
        memory.remember(RequestID(high: 1, low: 2), .reply([3, 4]))
        memory.remember(
            RequestID(high: .max, low: 0), .failure(code: 8023, message: "the device is bound to another user"))
        memory.remember(RequestID(high: 5, low: 6), .notKept)
        memory.remember(RequestID(high: 7, low: 8), .reply([]))
        let reminders = [
            Reminder(entity: address, name: "ring", id: RequestID(high: 1, low: .max), due: 1_800_000_000_000),
            Reminder(entity: address, name: "end", id: RequestID(high: 0, low: 0), due: -1, payload: [7]),
        ]
        return StoredEntity(content: [9, 9, 9], memory: memory, reminders: reminders)
    }

    @Test("It is read as it was written, with every kind of answer, and its reminders")
    func whole() throws {
        #expect(try StoredEntity(reading: try stored().encoded(), of: address) == stored())
        let empty = StoredEntity(content: [], memory: RequestMemory())
        #expect(try StoredEntity(reading: try empty.encoded(), of: address) == empty)
    }

    @Test("Cut, lengthened or flipped bytes are refused with 10001 or read, and trap nothing")
    func broken() throws {
        try DecoderVerifier.verifyMessage((ByteBuffer(bytes: try stored().encoded()), stored()), isPrefixFree: false) {
            try StoredEntity(reading: Array($0.readableBytesView), of: address)
        }
    }

    @Test("More answers than the bounds allow are taken within them, the newest")
    func bounds() throws {
        var configuration = RequestMemory.Configuration()
        configuration.countMax = 2
        let read = try StoredEntity(reading: try stored().encoded(), of: address, configuration: configuration)
        #expect(read.memory.carried.map(\.id.high) == [5, 7])
    }

    @Test("Whether there are reminders is told without reading the rest, of any bytes")
    func hasReminders() throws {
        var none = stored()
        none.reminders = []
        #expect(StoredEntity.hasReminders(try stored().encoded()))
        #expect(!StoredEntity.hasReminders(try none.encoded()))
        none.content = [UInt8](repeating: 0x1a, count: 100_000)
        #expect(!StoredEntity.hasReminders(try none.encoded()))
        none.reminders = stored().reminders
        #expect(StoredEntity.hasReminders(try none.encoded()))
        var random = SeededRandom(seed: 1)
        for _ in 0..<1000 {
            var bytes = try none.encoded().suffix(200)
            for index in bytes.indices where Int.random(in: 0..<20, using: &random) == 0 {
                bytes[index] = UInt8.random(in: 0...255, using: &random)
            }
            _ = StoredEntity.hasReminders(bytes)
        }
    }
}
