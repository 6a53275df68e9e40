import ApusClient
import ApusCore
import ApusCrypto
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Testing

@Suite("The frame log (issue: --log)")
struct FrameLogTests {
    let folder = Folder()

    private func frame(_ sequence: UInt64, _ text: String, key: Bool = false) -> MediaFrame {
        MediaFrame(
            header: MediaHeader(
                position: FramePosition(epoch: 7, sequence: sequence), ptsMicroseconds: -40, flags: key ? .key : [],
                track: 1),
            payload: ByteBuffer(string: text))
    }

    @Test("A line has exactly the agreed keys, in their order")
    func line() throws {
        let path = folder.file("frames.jsonl")
        let log = try FrameLog(path: path)
        log.append(frame(3, "abc", key: true), at: MonotonicTime(nanoseconds: 99))
        log.close()
        let text = try String(contentsOfFile: path, encoding: .utf8)
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        #expect(
            text == """
                {"seq":3,"epoch":7,"track":1,"pts_us":-40,"key":true,"bytes":3,"sha256":"\(hash)","at_ns":99}

                """)
    }

    @Test("Ten thousand frames are ten thousand lines, in order")
    func many() throws {
        let path = folder.file("many.jsonl")
        let log = try FrameLog(path: path)
        for sequence in 0..<UInt64(10_000) { log.append(frame(sequence, "frame \(sequence)")) }
        log.close()
        let lines = try String(contentsOfFile: path, encoding: .utf8).split(separator: "\n")
        #expect(log.linesLost == 0)
        #expect(lines.count == 10_000)
        #expect(lines.enumerated().allSatisfy { $1.hasPrefix("{\"seq\":\($0),") })
    }

    @Test("Lines are in the file soon, without a close")
    func flushed() async throws {
        let path = folder.file("soon.jsonl")
        let log = try FrameLog(path: path)
        log.append(frame(0, "a"))
        var text = ""
        for _ in 0..<200 where text.isEmpty {
            try await Task.sleep(for: .milliseconds(5))
            text = try String(contentsOfFile: path, encoding: .utf8)
        }
        #expect(text.hasSuffix("}\n"))
        log.close()
    }

    @Test("Past the bound the newest line is lost and counted")
    func bound() throws {
        var limits = FrameLog.Limits()
        limits.byteCountMax = 10
        let log = try FrameLog(path: folder.file("bound.jsonl"), limits: limits)
        log.append(frame(0, "more than ten bytes"))
        log.close()
        #expect(log.linesLost == 1)
    }

    @Test("A path that cannot be written, and a full disk, say so")
    func errors() throws {
        #expect(#expect(throws: ApusError.self) { try FrameLog(path: "/nowhere/log") }?.code == .storageFailed)
        let log = try FrameLog(path: "/dev/full")
        log.append(frame(0, "a"))
        log.close()
        #expect(log.failure?.code == .storageFailed)
    }
}
