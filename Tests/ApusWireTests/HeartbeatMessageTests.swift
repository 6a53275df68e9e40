import ApusCore
import ApusTestKit
import ApusWire
import NIOCore
import Testing

@Suite("Heartbeat datagrams (D4)")
struct HeartbeatMessageTests {
    private static let peer = NodeID(name: NodeName(unchecked: String(repeating: "n", count: 63)), incarnation: 9)
    private static let messages: [HeartbeatMessage] = [
        .heartbeat, .probe(nonce: 1, origin: nil), .probe(nonce: 2, origin: peer), .answer(nonce: 3, origin: nil),
        .answer(nonce: 4, origin: peer), .indirectRequest(nonce: 5, target: peer),
        .indirectAnswer(nonce: 6, target: peer),
    ]

    private func encoded(_ message: HeartbeatMessage) -> (HeartbeatDatagram, ByteBuffer) {
        let datagram = HeartbeatDatagram(clusterHash: 77, sequence: 1 << 40, sender: Self.peer, message: message)
        var buffer = ByteBuffer()
        datagram.encode(into: &buffer)
        return (datagram, buffer)
    }

    @Test("Every message is read as it was written, and none is longer than the bound", arguments: messages)
    func roundTrip(message: HeartbeatMessage) throws {
        var (datagram, buffer) = encoded(message)
        #expect(buffer.readableBytes <= HeartbeatDatagram.byteCountMax)
        #expect(try HeartbeatDatagram(decoding: &buffer) == datagram)
    }

    @Test("A datagram that is cut anywhere, or has bytes after it, is refused", arguments: messages)
    func cut(message: HeartbeatMessage) throws {
        let (_, whole) = encoded(message)
        for length in 0..<whole.readableBytes {
            var part = try #require(whole.getSlice(at: whole.readerIndex, length: length))
            #expect(throws: ApusError.self) { try HeartbeatDatagram(decoding: &part) }
        }
        var longer = whole
        longer.writeInteger(UInt8(0))
        #expect(throws: ApusError.self) { try HeartbeatDatagram(decoding: &longer) }
    }

    @Test("No cut, no byte after it and no bit flip traps the reader", arguments: messages)
    func verifier(message: HeartbeatMessage) throws {
        let (datagram, whole) = encoded(message)
        try DecoderVerifier.verifyMessage((whole, datagram)) { bytes in
            var bytes = bytes
            return try HeartbeatDatagram(decoding: &bytes)
        }
    }

    @Test("Another version of the layout is told apart from garbage (10003)")
    func version() {
        var buffer = ByteBuffer(bytes: [9, 1, 2, 3])
        #expect(throws: ApusError(.versionUnsupported)) { try HeartbeatDatagram(decoding: &buffer) }
    }
}
