import ApusCore
package import NIOCore

/// Tests decoders with invalid input (D14): each is fed whole messages, several concatenated, byte by byte, truncated
/// at each offset, and with each single bit flipped.
///
/// A decoder that traps ends the test process. All other failures are thrown as ``TestFailure``. After NIOTestUtils'
/// ByteToMessageDecoderVerifier.
package enum DecoderVerifier {
    /// Verifies a decoder of one message that fills its buffer.
    ///
    /// - Parameters:
    ///   - sample: the encoded message, and its expected value.
    ///   - isPrefixFree: true if no message is a prefix of a longer one. Truncated and extended input must then be
    ///     refused.
    ///   - decode: decodes; may throw only ``ApusError``.
    package static func verifyMessage<Output: Equatable>(
        _ sample: (bytes: ByteBuffer, output: Output), isPrefixFree: Bool = true,
        decode: (ByteBuffer) throws -> Output
    ) throws(TestFailure) {
        guard try attempt(sample.bytes, decode) == sample.output else {
            throw TestFailure("the whole message is not read as it was written")
        }
        // The same bytes in the middle of a longer buffer: readers must honour the reader index.
        var padded = ByteBuffer(repeating: 0xa5, count: 7)
        padded.writeImmutableBuffer(sample.bytes)
        padded.moveReaderIndex(forwardBy: 7)
        guard try attempt(padded, decode) == sample.output else {
            throw TestFailure("the message is read otherwise where its buffer does not begin at 0")
        }
        for length in 0..<sample.bytes.readableBytes {
            let part = sample.bytes.getSlice(at: sample.bytes.readerIndex, length: length) ?? ByteBuffer()
            if try attempt(part, decode) != nil, isPrefixFree {
                throw TestFailure("the first \(length) bytes alone are taken for a whole message")
            }
        }
        var longer = sample.bytes
        longer.writeInteger(UInt8(0))
        if try attempt(longer, decode) != nil, isPrefixFree {
            throw TestFailure("a byte after the message is taken for a part of it")
        }
        for bit in 0..<sample.bytes.readableBytes * 8 { _ = try attempt(flipping(bit, of: sample.bytes), decode) }
    }

    /// Verifies a decoder that splits a stream of bytes into messages.
    ///
    /// - Parameters:
    ///   - samples: encoded messages with their expected values, in order.
    ///   - heldByteCountMax: the most bytes that the decoder may hold without a whole message, for any input.
    ///   - make: makes a new decoder.
    ///   - append: passes it bytes.
    ///   - next: returns the next message, nil if more bytes are needed.
    ///   - heldByteCount: the number of bytes that it holds.
    package static func verifyStream<Decoder, Output: Equatable>(
        _ samples: [(bytes: ByteBuffer, output: Output)], heldByteCountMax: Int,
        make: () -> Decoder, append: (inout Decoder, ByteBuffer) -> Void,
        next: (inout Decoder) throws -> Output?, heldByteCount: (Decoder) -> Int
    ) throws(TestFailure) {
        var glued = ByteBuffer()
        for sample in samples { glued.writeImmutableBuffer(sample.bytes) }
        let expected = samples.map(\.output)

        /// Feeds parts. Returns true for an error. Outputs so far are in `outputs`.
        func feed(_ parts: [ByteBuffer]) throws(TestFailure) -> (outputs: [Output], hasFailed: Bool, held: Int) {
            var decoder = make()
            var outputs: [Output] = []
            for part in parts {
                append(&decoder, part)
                // A decoder that returns messages without consuming bytes would never end.
                var rounds = 0
                while true {
                    rounds += 1
                    guard rounds <= glued.readableBytes + 2 else {
                        throw TestFailure("messages are given out without an end")
                    }
                    do {
                        guard let output = try next(&decoder) else { break }
                        outputs.append(output)
                    } catch {
                        let _: Output? = try refusal(error)
                        return (outputs, true, heldByteCount(decoder))
                    }
                }
                guard heldByteCount(decoder) <= heldByteCountMax else {
                    throw TestFailure(
                        "\(heldByteCount(decoder)) bytes are held, at most \(heldByteCountMax) may be")
                }
            }
            return (outputs, false, heldByteCount(decoder))
        }
        func expect(_ parts: [ByteBuffer], _ sentence: String) throws(TestFailure) {
            let result = try feed(parts)
            guard !result.hasFailed, result.outputs == expected, result.held == 0 else {
                throw TestFailure("\(sentence): read \(result.outputs.count) of \(expected.count)")
            }
        }

        try expect(samples.map(\.bytes), "one message at a time")
        try expect([glued], "all messages glued together")
        try expect(parts(of: glued, byteCount: 1), "byte by byte")
        try expect(parts(of: glued, byteCount: 7), "seven bytes at a time")
        for length in 0..<glued.readableBytes {
            let result = try feed([glued.getSlice(at: glued.readerIndex, length: length) ?? ByteBuffer()])
            guard !result.hasFailed, Array(expected.prefix(result.outputs.count)) == result.outputs,
                result.outputs.count < expected.count
            else { throw TestFailure("the first \(length) bytes alone are read otherwise than in the whole") }
        }
        for bit in 0..<glued.readableBytes * 8 { _ = try feed([flipping(bit, of: glued)]) }
    }

    private static func attempt<Output>(
        _ bytes: ByteBuffer, _ decode: (ByteBuffer) throws -> Output
    ) throws(TestFailure) -> Output? {
        do { return try decode(bytes) } catch { return try refusal(error) }
    }

    /// Nil if the decoder refused the bytes with an error of the catalogue.
    private static func refusal<Output>(_ error: any Error) throws(TestFailure) -> Output? {
        guard error is ApusError else { throw TestFailure("an error outside the catalogue: \(error)") }
        return nil
    }

    private static func parts(of buffer: ByteBuffer, byteCount: Int) -> [ByteBuffer] {
        var rest = buffer
        var parts: [ByteBuffer] = []
        while let part = rest.readSlice(length: min(byteCount, rest.readableBytes)), part.readableBytes > 0 {
            parts.append(part)
        }
        return parts
    }

    private static func flipping(_ bit: Int, of buffer: ByteBuffer) -> ByteBuffer {
        var copy = buffer
        let index = copy.readerIndex + bit / 8
        if let byte = copy.getInteger(at: index, as: UInt8.self) {
            copy.setInteger(byte ^ (1 << UInt8(bit % 8)), at: index)
        }
        return copy
    }
}
