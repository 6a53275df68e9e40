import ApusAnswering
import ApusCore
import ApusMedia
import ApusStorage
import Foundation
import NIOCore
import SwiftProtobuf
import Testing

@Suite("Messages in the records (CALL-6, CALL-13)")
struct MessageRecordsTests {
    private static let call = "00a-" + String(repeating: "0", count: 31) + "1"
    private let records = AnsweringRecords(MemoryRecordStore())

    /// Opus in one track: a configuration, then packets of 20 ms.
    private static func frame(_ sequence: Int, byteCount: Int = 200, codec: Codec = .opus) -> (MediaHeader, ByteBuffer)
    {
        var header = MediaHeader(
            position: FramePosition(epoch: 5, sequence: UInt64(sequence)),
            ptsMicroseconds: Int64(max(0, sequence - 1)) * 20_000)
        var payload = ByteBuffer(repeating: UInt8(truncatingIfNeeded: sequence), count: byteCount)
        if sequence == 0 {
            header.flags = .configuration
            payload = ByteBuffer()
            let head: [UInt8] = Array("OpusHead".utf8) + [1, 1, 0, 0, 0x80, 0xbb, 0, 0, 0, 0, 0]
            TrackConfiguration(codec: codec, trackCount: 1, first: 48_000, second: 1, third: 960, extraData: head)
                .encode(into: &payload)
        }
        var bytes = ByteBuffer()
        MediaFrame(header: header, payload: payload).encode(into: &bytes)
        return (header, bytes)
    }

    private static func frames(_ range: Range<Int>, byteCount: Int = 200, codec: Codec = .opus) -> ReceivedFrames {
        var frames = ReceivedFrames()
        for sequence in range {
            let frame = frame(sequence, byteCount: byteCount, codec: codec)
            frames.add(frame.0, frame.1)
        }
        return frames
    }

    @inline(never)
    private func begin(_ call: String = call, startedMs: Int64 = 1_000_000) async throws -> (AnsweringMessage, UInt64) {
        let message = AnsweringMessage.with {
            ($0.call, $0.party, $0.account, $0.callerDevice) = (call, "account/a", "a", "bell")
            ($0.state, $0.startedMs, $0.untilMs) = (.recording, startedMs, startedMs + 30_000)
            $0.expiresMs = startedMs + 86_400_000
        }
        return (message, try await records.put(message, version: nil))
    }

    @inline(never)
    private func movie(_ call: String = call) async throws -> [UInt8] {
        var (bytes, index) = ([UInt8](), UInt32(0))
        while true {
            let pieces = try await records.pieces(AnsweringRecords.movies, of: call, from: index)
            guard !pieces.isEmpty else { return bytes }
            for piece in pieces { bytes += piece.data }
            index += UInt32(pieces.count)
        }
    }

    /// The MP4 of all frames at once.
    private static func expected(_ range: Range<Int>, byteCount: Int) throws -> [UInt8] {
        var limits = FragmentedMP4Writer.Limits()
        limits.fragmentDuration = .seconds(1)
        var (writer, output) = (FragmentedMP4Writer(limits: limits), ByteBuffer())
        for sequence in range {
            output.writeImmutableBuffer(
                try writer.write(MediaFrame(decoding: frame(sequence, byteCount: byteCount).1)))
        }
        output.writeImmutableBuffer(try writer.finish())
        return Array(output.readableBytesView)
    }

    @Test("A message that two nodes have recorded, in pieces cut anywhere, is the MP4 of all its frames (CALL-13)")
    func twoRecorders() async throws {
        var (message, version) = try await begin()
        version = try await records.add(
            Self.frames(0..<7, byteCount: 50_000), to: &message, version, byteCountMax: 1 << 24)
        // The node dies. The next one has nothing but the record.
        let known = try #require(try await records.message(Self.call))
        (message, version) = (known.body, known.version)
        #expect(FramePosition(epoch: message.epoch, sequence: message.sequence) == FramePosition(epoch: 5, sequence: 6))
        version = try await records.add(Self.frames(7..<160), to: &message, version, byteCountMax: 1 << 24)
        #expect(message.frames == 160 && message.lastUs - message.firstUs == 158 * 20_000)
        try await records.store(message, version)
        let stored = try #require(try await records.message(Self.call)).body
        #expect(stored.state == .stored && stored.pieces > 1)
        let movie = try await movie()
        #expect(movie.count == Int(stored.bytes) && movie.count > 300_000)
        #expect(try await records.pieces(AnsweringRecords.frames, of: Self.call, from: 0).isEmpty)
        // With all frames alike in size the bytes can be compared.
        var (other, otherVersion) = try await begin("00b-" + String(repeating: "0", count: 32))
        for start in stride(from: 0, to: 150, by: 30) {
            otherVersion = try await records.add(
                Self.frames(start..<start + 30), to: &other, otherVersion, byteCountMax: 1 << 24)
        }
        try await records.store(other, otherVersion)
        #expect(try await self.movie(other.call) == Self.expected(0..<150, byteCount: 200))
    }

    @Test("Of two recorders at once one goes on: the step of the other fails, and changes nothing (CALL-8)")
    func race() async throws {
        let (message, version) = try await begin()
        var (first, second) = (message, message)
        let next = try await records.add(Self.frames(0..<5), to: &first, version, byteCountMax: 1 << 24)
        await #expect(throws: ApusError(.versionConflict)) {
            _ = try await records.add(Self.frames(0..<9), to: &second, version, byteCountMax: 1 << 24)
        }
        #expect(second == message)
        try await records.store(first, next)
        #expect(try await movie() == Self.expected(0..<5, byteCount: 200))
    }

    @Test("A message is cut off at its largest size, and can be watched up to there")
    func cut() async throws {
        var (message, version) = try await begin()
        version = try await records.add(Self.frames(0..<5), to: &message, version, byteCountMax: 2000)
        #expect(!message.isCut)
        version = try await records.add(Self.frames(5..<50), to: &message, version, byteCountMax: 2000)
        #expect(message.isCut && message.frames == 5)
        try await records.store(message, version)
        #expect(try await movie() == Self.expected(0..<5, byteCount: 200))
    }

    @Test("A message whose caller changes the camera or the codec is one file with every format")
    func formats() async throws {
        var (message, version) = try await begin()
        var frames = ReceivedFrames()
        var sequence: UInt64 = 0
        let formats: [(Codec, UInt32)] = [(.h264, 640), (.h264, 320), (.h265, 640)]
        for (index, (codec, width)) in formats.enumerated() {
            let configuration = TrackConfiguration(
                codec: codec, trackCount: 1, first: width, second: 240, third: 0, extraData: [1, UInt8(index), 3])
            for number in 0..<6 {
                var header = MediaHeader(
                    position: FramePosition(epoch: 5, sequence: sequence),
                    ptsMicroseconds: Int64(index * 5 + max(0, number - 1)) * 100_000)
                sequence += 1
                var (payload, bytes) = (ByteBuffer(repeating: 7, count: 100 + index), ByteBuffer())
                header.flags = number == 0 ? .configuration : number == 1 ? .key : []
                if number == 0 {
                    payload.clear()
                    configuration.encode(into: &payload)
                }
                MediaFrame(header: header, payload: payload).encode(into: &bytes)
                frames.add(header, bytes)
            }
        }
        version = try await records.add(frames, to: &message, version, byteCountMax: 1 << 24)
        try await records.store(message, version)
        let movie = try await movie()
        func count(_ text: String) -> Int {
            let name = Array(text.utf8)
            return movie.indices.dropLast(3).count { Array(movie[$0..<$0 + 4]) == name }
        }
        #expect(count("avc1") == 2 && count("hev1") == 1 && count("trak") == 2)
        #expect(movie.count { $0 == 7 } >= 5 * (100 + 101 + 102), "every frame is in the file")
    }

    @Test("Media that MP4 cannot hold are stored without one, and leave no pieces")
    func unreadable() async throws {
        var (message, version) = try await begin()
        version = try await records.add(Self.frames(1..<9), to: &message, version, byteCountMax: 1 << 24)
        try await records.store(message, version)
        let stored = try #require(try await records.message(Self.call)).body
        #expect(stored.state == .stored && stored.bytes == 0 && stored.pieces == 0)
        #expect(try await movie().isEmpty)
        #expect(try await records.pieces(AnsweringRecords.frames, of: Self.call, from: 0).isEmpty)
    }

    @Test("A message whose call was lost is stored with what there is; one without frames is removed (CALL-8)")
    func abandoned() async throws {
        var (message, version) = try await begin()
        version = try await records.add(Self.frames(0..<50), to: &message, version, byteCountMax: 1 << 24)
        let empty = "00c-" + String(repeating: "0", count: 32)
        _ = try await begin(empty)
        #expect(try await records.storeAbandoned(at: message.untilMs + 60_000).isEmpty)
        #expect(try await records.message(Self.call)?.body.state == .recording, "it may still go on")
        let stored = try await records.storeAbandoned(at: message.untilMs + 200_000)
        #expect(stored.map(\.call) == [Self.call])
        #expect(try await records.message(Self.call)?.body.state == .stored)
        #expect(try await movie() == Self.expected(0..<50, byteCount: 200))
        #expect(try await records.message(empty) == nil)
        #expect(version > 0)
    }

    @Test("An expired message is removed with all its pieces, also after a removal that has stopped half way")
    func expired() async throws {
        var (message, version) = try await begin()
        version = try await records.add(
            Self.frames(0..<200, byteCount: 9000), to: &message, version, byteCountMax: 1 << 24)
        try await records.store(message, version)
        try await records.removeExpired(at: message.expiresMs - 1)
        #expect(try await records.message(Self.call) != nil)
        try await records.removeExpired(at: message.expiresMs + 1)
        #expect(try await records.message(Self.call) == nil)
        #expect(try await movie().isEmpty)
        #expect(try await records.page(of: "account/a", after: "", limit: 10).messages.isEmpty)

        // The node dies after the record was marked as deleted.
        var (second, secondVersion) = try await begin()
        secondVersion = try await records.add(Self.frames(0..<60), to: &second, secondVersion, byteCountMax: 1 << 24)
        second.state = .deleted
        _ = try await records.put(second, version: secondVersion)
        #expect(try await records.message(Self.call) == nil)
        try await records.removeExpired(at: 1)
        #expect(try await records.pieces(AnsweringRecords.frames, of: Self.call, from: 0).isEmpty)
    }

    @Test("Messages are listed in pages, the newest first")
    func pages() async throws {
        for number in 0..<7 {
            _ = try await begin("00\(number)-" + String(repeating: "0", count: 32), startedMs: Int64(number) * 1000)
        }
        var (seen, token) = ([Int64](), "")
        repeat {
            let page = try await records.page(of: "account/a", after: token, limit: 3)
            seen += page.messages.map(\.startedMs)
            token = page.next
        } while !token.isEmpty
        #expect(seen == [6000, 5000, 4000, 3000, 2000, 1000, 0])
        for wrong in ["x", "1", "1-", "99999999999999999-a", "-1-a b"] {
            await #expect(throws: ApusError(.badParameter), "\(wrong)") {
                _ = try await records.page(of: "account/a", after: wrong, limit: 3)
            }
        }
    }

    @Test("Stored bytes are split into the same frames wherever they are cut")
    func split() throws {
        let frames = Self.frames(0..<9)
        let expected = try (0..<9).map { try MediaFrame(decoding: Self.frame($0).1) }
        for size in [1, 7, 39, 40, 41, 500] {
            var (bytes, stored, found) = (frames.bytes, StoredFrames(), [MediaFrame]())
            while let piece = bytes.readSlice(length: min(size, bytes.readableBytes)), piece.readableBytes > 0 {
                stored.append(piece)
                while let frame = try stored.next() { found.append(frame) }
            }
            #expect(found == expected && stored.rest == 0, "\(size)")
        }
        var broken = StoredFrames()
        broken.append(ByteBuffer(repeating: 0xff, count: 64))
        #expect(throws: ApusError(.malformed)) { _ = try broken.next() }
    }
}

extension ReceivedFrames {
    /// - Parameter bytes: the header and the payload.
    fileprivate mutating func add(_ header: MediaHeader, _ bytes: ByteBuffer) {
        var encoded = ByteBuffer(repeating: 0, count: RelayFrame.linkHeaderByteCount)
        encoded.writeImmutableBuffer(bytes)
        add(RelayFrame(header: header, encoded: encoded))
    }
}
