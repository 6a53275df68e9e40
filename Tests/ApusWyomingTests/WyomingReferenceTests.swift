import ApusCore
import ApusTestKit
import ApusWyoming
import Foundation
import NIOCore
import Testing

@Suite("The reference implementation of Wyoming, from PyPI (VA)")
struct WyomingReferenceTests {
    private static let python = ProcessInfo.processInfo.environment["APUS_WYOMING"]

    @Test(
        "It reads each of our messages, and what it writes of them means the same to us",
        .enabled(if: python != nil, "wyoming is not installed"))
    func echo() throws {
        let python = try #require(Self.python)
        let folder = Folder()
        let (input, output) = (folder.file("input"), folder.file("output"))
        var bytes = ByteBuffer()
        for message in WyomingSamples.messages { try message.event.encode(into: &bytes) }
        try Data(bytes.readableBytesView).write(to: URL(fileURLWithPath: input))
        let script = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
            .appending(path: "Clients/wyoming_echo.py")
        _ = try #require(Tool.run(python, [script.path(), input, output]))

        var decoder = WyomingDecoder()
        decoder.append(ByteBuffer(bytes: try Data(contentsOf: URL(fileURLWithPath: output))))
        for message in WyomingSamples.messages {
            let event = try #require(try decoder.next())
            #expect(try WyomingMessage(event) == Self.expected(message))
        }
        #expect(try decoder.next() == nil)
        #expect(decoder.heldByteCount == 0)
    }

    /// What the reference keeps: its chunks have no context, and its voice has no language beside a name.
    private static func expected(_ message: WyomingMessage) -> WyomingMessage {
        switch message {
        case .transcriptChunk(var chunk):
            chunk.pause = nil
            return .transcriptChunk(chunk)
        case .synthesize(var synthesize) where synthesize.voice != nil:
            synthesize.language = nil
            return .synthesize(synthesize)
        default: return message
        }
    }
}
