import ApusWire
import NIOCore

/// D4: a datagram is refused or means the same when written again, within its longest length.
func fuzzHeartbeat(_ input: [UInt8]) {
    var bytes = ByteBuffer(bytes: input)
    guard let datagram = try? HeartbeatDatagram(decoding: &bytes) else { return }
    var written = ByteBuffer()
    datagram.encode(into: &written)
    precondition(written.readableBytes <= HeartbeatDatagram.byteCountMax, "a datagram is longer than it may be")
    precondition((try? HeartbeatDatagram(decoding: &written)) == datagram, "a datagram is written otherwise")
}
