import ApusCluster
import ApusCore
import ApusTestKit
import NIOCore
import Testing

@Suite("What a message to an entity comes with, on the wire (D15)")
struct EntityCallTests {
    private let node = NodeID(name: NodeName(unchecked: "a"), incarnation: 1)

    private let sender = EntityHeader(kind: .probe, shard: ShardID(7), epoch: 9, key: "one")

    private func calls() -> [EntityCall] {
        var full = EntityCall()
        full.node = node
        full.identity = "account-1"
        full.timeLeft = .milliseconds(1500)
        full.request = RequestID(high: 1, low: .max)
        full.sender = sender
        var plain = EntityCall()
        plain.node = node
        var asked = plain
        asked.timeLeft = .seconds(5)
        return [plain, asked, full]
    }

    private func bytes(_ call: EntityCall) -> ByteBuffer {
        var buffer = ByteBuffer()
        call.encode(into: &buffer)
        return buffer
    }

    @Test("It is read as it was written, and the message behind it is left")
    func whole() throws {
        for call in calls() {
            var buffer = bytes(call)
            buffer.writeString("message")
            #expect(EntityCall(from: &buffer, node: node) == call)
            #expect(buffer.readString(length: buffer.readableBytes) == "message")
        }
        #expect(bytes(calls()[0]).readableBytes == 1)
    }

    @Test("Cut, flipped or unknown bytes are refused or read, and trap nothing")
    func broken() throws {
        for call in calls() {
            let whole = bytes(call)
            for length in 0..<whole.readableBytes {
                var cut = whole.getSlice(at: 0, length: length) ?? ByteBuffer()
                #expect(EntityCall(from: &cut, node: node) == nil, "\(length) bytes")
                #expect(cut.readableBytes == length, "nothing is taken of what is refused")
            }
            for index in 0..<whole.readableBytes {
                for bit in 0..<8 {
                    var flipped = whole
                    let byte = whole.getInteger(at: index, as: UInt8.self) ?? 0
                    flipped.setInteger(byte ^ (1 << UInt8(bit)), at: index)
                    _ = EntityCall(from: &flipped, node: node)
                }
            }
        }
        var reserved = ByteBuffer(bytes: [4] + [UInt8](repeating: 7, count: 16))
        var plain = EntityCall()
        plain.node = node
        #expect(EntityCall(from: &reserved, node: node) == plain && reserved.readableBytes == 0)
        var unknown = ByteBuffer(bytes: [0x20])
        #expect(EntityCall(from: &unknown, node: node) == nil)
    }

    @Test("A sender is written as a list of one, which nodes of earlier releases read, and another number is refused")
    func oneSender() {
        var call = EntityCall()
        call.node = node
        call.sender = sender
        let header: [UInt8] = [15, 0, 7, 0, 0, 0, 9, 3] + Array("one".utf8)
        #expect(Array(bytes(call).readableBytesView) == [0x10, 1] + header)
        for count in [0, 2, 3] {
            let headers = Array(repeating: header, count: count).flatMap { $0 }
            var buffer = ByteBuffer(bytes: [0x10, UInt8(count)] + headers)
            #expect(EntityCall(from: &buffer, node: node) == nil && buffer.readableBytes == 2 + headers.count)
        }
    }

    @Test("A sender is stale once a later epoch of its shard is known")
    func stale() {
        for (known, isStale) in [(Epoch(8), false), (9, false), (10, true)] {
            #expect(sender.isStale { $0 == ShardID(7) ? known : 0 } == isStale)
        }
    }

    @Test("Time that is over is none, and more than a wire number holds is cut")
    func time() {
        var call = EntityCall()
        for (left, expected) in [
            (Duration.milliseconds(-5), Duration.zero), (.seconds(1 << 40), .milliseconds(Int64(UInt32.max))),
        ] {
            call.timeLeft = left
            var buffer = bytes(call)
            #expect(EntityCall(from: &buffer, node: node)?.timeLeft == expected)
        }
    }

    @Test("Derived ids are the same each time, and differ from one another")
    func derived() {
        let id = RequestID(high: 1, low: 2)
        var seen: Set<RequestID> = [id]
        for index in UInt64(0)..<1000 {
            #expect(id.derived(index) == id.derived(index))
            #expect(seen.insert(id.derived(index)).inserted)
        }
        #expect(RequestID(high: 2, low: 1).derived(0) != id.derived(0))
    }
}
