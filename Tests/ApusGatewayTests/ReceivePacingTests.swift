import ApusCore
import ApusGateway
import ApusMedia
import ApusTestKit
import ApusTransport
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("What of a camera's stream is worth a wake (D7)", .timeLimit(.minutes(1)))
struct ReceivePacingTests {
    private static let video: UInt8 = 0
    private static let audio: UInt8 = 1

    private static func configuration(_ track: UInt8, _ codec: Codec) -> RelayFrame {
        var payload = ByteBuffer()
        TrackConfiguration(codec: codec, trackCount: 2, first: 1, second: 1, third: 0, extraData: []).encode(
            into: &payload)
        return frame(track, flags: .configuration, payload: payload)
    }

    private static func media(_ track: UInt8, byteCount: Int) -> RelayFrame {
        frame(track, flags: [], payload: ByteBuffer(repeating: 1, count: byteCount))
    }

    private static func frame(_ track: UInt8, flags: MediaFlags, payload: ByteBuffer) -> RelayFrame {
        let header = MediaHeader(
            position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: 0, flags: flags, track: track)
        var encoded = ByteBuffer(repeating: 0, count: RelayFrame.payloadOffset)
        encoded.writeImmutableBuffer(payload)
        return RelayFrame(header: header, encoded: encoded)
    }

    /// The threshold after frames of video of these sizes, each with a frame of audio.
    private func threshold(video sizes: [Int], audio: Int?) -> WakeThreshold {
        var threshold = WakeThreshold()
        threshold.received(Self.configuration(Self.video, .h264))
        threshold.received(Self.configuration(Self.audio, .aac))
        for size in sizes {
            threshold.received(Self.media(Self.video, byteCount: size))
            if let audio { threshold.received(Self.media(Self.audio, byteCount: audio)) }
        }
        return threshold
    }

    private func sizes(_ smallest: Int) -> [Int] { [smallest] + Array(repeating: 9_000, count: 39) }

    @Test("As many bytes are waited for as the smallest video frame of late has, and no frame of audio alone has")
    func smallest() {
        #expect(threshold(video: sizes(1_500), audio: 300).byteCount == 1_500 + RelayFrame.payloadOffset)
        #expect(threshold(video: sizes(20_000), audio: 300).byteCount == WakeThreshold.byteCountMax)
    }

    @Test("Where video is as small as audio, or one of them is missing, every byte is worth a wake")
    func nothingToWaitFor() {
        #expect(threshold(video: sizes(300), audio: 300).byteCount == 1)
        #expect(threshold(video: sizes(1_500), audio: nil).byteCount == 1)
        #expect(threshold(video: [], audio: 300).byteCount == 1)
        #expect(WakeThreshold().byteCount == 1)
        // Too few frames to know.
        #expect(threshold(video: [1_500, 1_500], audio: 300).byteCount == 1)
    }

    @Test("A smaller video frame counts at once, and is forgotten after two windows")
    func windows() {
        var threshold = threshold(video: sizes(9_000), audio: 300)
        let large = threshold.byteCount
        threshold.received(Self.media(Self.video, byteCount: 1_000))
        #expect(threshold.byteCount == 1_000 + RelayFrame.payloadOffset)
        for _ in 0..<2 * WakeThreshold.windowFrameCount {
            threshold.received(Self.media(Self.video, byteCount: 9_000))
            threshold.received(Self.media(Self.audio, byteCount: 300))
        }
        #expect(threshold.byteCount == large)
    }

    /// What a paced connection read, and when.
    private final class Reader: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: reads go through a lock.
        typealias InboundIn = ByteBuffer
        let reads = Mutex<[(byteCount: Int, at: MonotonicTime)]>([])
        var pacing: ReceivePacing?

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            let byteCount = unwrapInboundIn(data).readableBytes
            reads.withLock { $0.append((byteCount, .now())) }
        }
        func channelReadComplete(context: ChannelHandlerContext) { pacing?.readComplete(now: .now()) }
    }

    @Test("Audio alone is read after the hold, with the next video frame at once, and byte by byte once pacing stops")
    func socket() async throws {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let loop = group.next()
        let reader = Reader()
        let hold = Duration.milliseconds(300)
        let server = try await ServerBootstrap(group: loop)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    let pacing = ReceivePacing(channel: channel, clock: try LoopClock(on: loop), hold: hold)
                    pacing.received(Self.configuration(Self.video, .h264))
                    for _ in 0..<WakeThreshold.windowFrameCount {
                        pacing.received(Self.media(Self.audio, byteCount: 300))
                        pacing.received(Self.media(Self.video, byteCount: 2_000))
                    }
                    pacing.readComplete(now: .now())
                    reader.pacing = pacing
                    try channel.pipeline.syncOperations.addHandler(reader)
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let client = try await ClientBootstrap(group: loop).connect(to: try #require(server.localAddress)).get()
        func send(_ byteCount: Int) async throws -> MonotonicTime {
            try await client.writeAndFlush(ByteBuffer(repeating: 7, count: byteCount))
            return .now()
        }
        func total() -> Int { reader.reads.withLock { $0.reduce(0) { $0 + $1.byteCount } } }
        func last() -> MonotonicTime { reader.reads.withLock { $0.last?.at ?? .zero } }

        // Something to begin with, so that the connection is there and the hold begins anew.
        let begun = try await send(3_000)
        try await eventually("the first bytes are read") { total() == 3_000 }
        #expect(last() - begun < hold)

        let alone = try await send(300)
        try await eventually("audio alone is read in the end") { total() == 3_300 }
        #expect(last() - alone >= hold / 3, "it waited in the kernel")

        _ = try await send(300)
        try await Task.sleep(for: .milliseconds(30))
        #expect(total() == 3_300)
        let together = try await send(2_100)
        try await eventually("both are read") { total() == 5_700 }
        #expect(last() - together < hold / 2, "a video frame is read at once, with the audio before it")

        try await loop.submit { reader.pacing?.stop() }.get()
        let single = try await send(1)
        try await eventually("one byte is read") { total() == 5_701 }
        #expect(last() - single < hold / 2)
        try await client.close()
        try await server.close()
        try await group.shutdownGracefully()
    }
}
