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
        .indirectAnswer(nonce: 6, target: peer), .unheard(nonce: 7, target: peer),
        .unheardUncounted(nonce: 8, target: peer),
        .promise(
            HeartbeatPromise(
                sentNanoseconds: 1 << 50, echoNanoseconds: 1 << 49, heldMicroseconds: 40_000,
                promisedMilliseconds: 230, vote: 3)),
        .promise(HeartbeatPromise(sentNanoseconds: 7, isAmongWatchers: true)),
    ]

    private static let vitals = HeartbeatVitals(
        wallMilliseconds: 1 << 41, latenessMilliseconds: 300,
        process: .init(host: .max, number: 7, thread: 8, started: 1 << 33))

    private func encoded(
        _ message: HeartbeatMessage, vitals: HeartbeatVitals? = vitals
    ) -> (HeartbeatDatagram, ByteBuffer) {
        let datagram = HeartbeatDatagram(
            clusterHash: 77, sequence: 1 << 40, sender: Self.peer, message: message, vitals: vitals)
        var buffer = ByteBuffer()
        datagram.encode(into: &buffer)
        return (datagram, buffer)
    }

    /// Of the messages of version 1, a heartbeat and a promise say that their sender reads version 2.
    private static func announces(_ message: HeartbeatMessage) -> Bool {
        switch message {
        case .heartbeat, .promise: true
        case .probe, .answer, .indirectRequest, .indirectAnswer, .unheard, .unheardUncounted: false
        }
    }

    @Test("Every message is read as it was written, and none is longer than the bound", arguments: messages)
    func roundTrip(message: HeartbeatMessage) throws {
        var (datagram, buffer) = encoded(message)
        #expect(buffer.readableBytes <= HeartbeatDatagram.byteCountMax)
        #expect(try HeartbeatDatagram(decoding: &buffer) == datagram)
    }

    @Test(
        "A datagram of version 1 is read as it was written; its heartbeat says that version 2 is read",
        arguments: messages)
    func versionOne(message: HeartbeatMessage) throws {
        var (datagram, buffer) = encoded(message, vitals: nil)
        #expect(buffer.getInteger(at: 0, as: UInt8.self) == 1)
        let read = try HeartbeatDatagram(decoding: &buffer)
        #expect(read == datagram)
        #expect(read.vitals == nil && read.readsVitals == Self.announces(message))
    }

    @Test("A heartbeat of a node that knows version 1 only is read, and says so")
    func oldNode() throws {
        var (_, buffer) = encoded(.heartbeat, vitals: nil)
        let nonce = buffer.writerIndex - 1 - 4
        buffer.setInteger(UInt32(0), at: nonce)
        let read = try HeartbeatDatagram(decoding: &buffer)
        #expect(read.message == .heartbeat && !read.readsVitals)
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
