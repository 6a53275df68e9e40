import ApusCore
import ApusWyoming
import NIOCore
import Testing

@Suite("Wyoming: messages of a stream (VA-9)")
struct WyomingReaderTests {
    @Test("Bytes that come while a message is handed over are taken after it, in order")
    func reentrant() throws {
        let reader = WyomingReader()
        var heard: [WyomingMessage] = []
        func receive(_ message: WyomingMessage) throws(ApusError) {
            // A write of the receiver makes the channel read.
            if message == .describe {
                try reader.take(Self.bytes([.audioStop(timestamp: 3)]), receive)
            }
            heard.append(message)
        }
        try reader.take(Self.bytes([.describe, .audioStop(timestamp: 1), .audioStop(timestamp: 2)]), receive)
        #expect(heard == [.describe, .audioStop(timestamp: 1), .audioStop(timestamp: 2), .audioStop(timestamp: 3)])
    }

    @Test("After an error the reader takes further bytes, which the error's receiver no longer wants")
    func error() throws {
        let reader = WyomingReader()
        #expect(throws: ApusError(.slowReader)) {
            try reader.take(Self.bytes([.describe])) { _ throws(ApusError) in throw ApusError(.slowReader) }
        }
        var count = 0
        try reader.take(Self.bytes([.describe])) { _ in count += 1 }
        #expect(count == 1)
    }

    private static func bytes(_ messages: [WyomingMessage]) throws(ApusError) -> ByteBuffer {
        var buffer = ByteBuffer()
        for message in messages { try message.event.encode(into: &buffer) }
        return buffer
    }
}
