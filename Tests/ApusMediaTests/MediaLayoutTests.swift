import ApusCore
import ApusMedia
import ApusWire
import Foundation
import NIOCore
import Testing

@Suite("The documented layouts of media frames are those of the encoders")
struct MediaLayoutTests {
    /// The numbers at the places of the table's fields, and what follows.
    private static func read(_ bytes: [UInt8], _ layout: [WireField]) -> ([String: Int64], rest: ArraySlice<UInt8>) {
        var values: [String: Int64] = [:]
        for (offset, field) in layout.placed {
            let part = bytes[offset..<offset + field.number.byteCount]
            var value = part.reduce(0 as UInt64) { $0 << 8 | UInt64($1) }
            if field.number == .i32 { value = UInt64(bitPattern: Int64(Int32(truncatingIfNeeded: value))) }
            values[field.name] = Int64(bitPattern: value)
        }
        return (values, bytes[layout.byteCount...])
    }

    private static func bytes(_ encode: (inout ByteBuffer) -> Void) -> [UInt8] {
        var buffer = ByteBuffer()
        encode(&buffer)
        return Array(buffer.readableBytesView)
    }

    @Test("A media frame")
    func mediaFrame() {
        let frame = MediaFrame(
            header: MediaHeader(
                term: 11, position: FramePosition(epoch: 12, sequence: 13), ptsMicroseconds: -14,
                dtsDeltaMicroseconds: -15, captureMilliseconds: 16, flags: [.key, .discardable], track: 3,
                rendition: 4),
            payload: ByteBuffer(bytes: [7, 8, 9]))
        let (values, rest) = Self.read(Self.bytes(frame.encode(into:)), MediaHeader.layout)
        #expect(MediaHeader.layout.byteCount == MediaHeader.byteCount)
        #expect(
            values == [
                "term": 11, "epoch": 12, "sequence": 13, "pts": -14, "dts − pts": -15, "payload bytes": 3,
                "capture time": 16, "flags": 5, "track": 3, "rendition": 4, "version": Int64(MediaHeader.version),
            ])
        #expect(Array(rest) == [7, 8, 9])
    }

    @Test("A track configuration")
    func trackConfiguration() {
        let configuration = TrackConfiguration(
            codec: .h265, trackCount: 2, first: 640, second: 360, third: 25_000, extraData: [1, 2])
        let (values, rest) = Self.read(Self.bytes(configuration.encode(into:)), TrackConfiguration.layout)
        #expect(
            values == [
                "version": 1, "codec": 2, "track count": 2, "flags": 0, "first": 640, "second": 360, "third": 25_000,
                "extra bytes": 2,
            ])
        #expect(Array(rest) == [1, 2])
    }

    @Test("A link frame")
    func linkFrame() {
        let frame = LinkFrame(kind: .media, correlation: 7, payload: ByteBuffer(bytes: [1]))
        let (values, rest) = Self.read(Self.bytes(frame.encode(into:)), LinkFrame.layout)
        #expect(LinkFrame.layout.byteCount == LinkFrame.headerByteCount)
        #expect(
            values == [
                "length": Int64(LinkFrame.lengthMin + 1), "kind": 0x20, "flags": 0, "method": 0, "correlation": 7,
            ])
        #expect(Array(rest) == [1])
    }

    @Test("Every flag is in the table, once")
    func flags() {
        let all = MediaFlags.layout.reduce(into: MediaFlags()) { $0.insert($1.flag) }
        #expect(all == MediaFlags.known)
        #expect(MediaFlags.layout.allSatisfy { $0.flag.rawValue.nonzeroBitCount == 1 })
        #expect(Set(MediaFlags.layout.map(\.flag)).count == MediaFlags.layout.count)
    }

    @Test("Every flag that the code declares is known")
    func knownFlags() throws {
        let path = URL(filePath: #filePath).deletingLastPathComponent()
            .appending(path: "../../Sources/Protocol/ApusMedia/MediaFrame.swift")
        let source = try String(contentsOf: path, encoding: .utf8)
        let declared = source.matches(of: /static let \w+ = Self\(rawValue: (\d+)\)/).compactMap { UInt8($0.1) }
        #expect(declared.count == MediaFlags.known.rawValue.nonzeroBitCount)
        #expect(MediaFlags(declared.map { MediaFlags(rawValue: $0) }) == MediaFlags.known)
    }

    @Test("The parts of a picture that is longer than a frame have the flags that the table says")
    func parts() {
        let parts = (0..<3).map { FrameJoiner.flags([.key, .discardable], ofPart: $0, of: 3) }
        #expect(parts == [[.key, .continued], [.continuation, .continued], [.continuation]])
    }
}
