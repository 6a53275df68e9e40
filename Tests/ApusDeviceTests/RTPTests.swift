import ApusCore
import ApusDevice
import ApusMedia
import NIOCore
import Testing

/// The packets of a camera's track.
struct PacketMaker {
    var type: UInt8 = 96
    var sequence: UInt16 = 65_530
    var source: UInt32 = 5

    mutating func packet(_ timestamp: UInt32, _ payload: [UInt8], marker: Bool = false) -> ByteBuffer {
        var bytes = ByteBuffer()
        bytes.writeMultipleIntegers(UInt8(0x80), type | (marker ? 0x80 : 0), sequence, timestamp, source)
        bytes.writeBytes(payload)
        sequence &+= 1
        return bytes
    }

    static func track(_ media: String) throws -> CameraTrack {
        try #require(CameraTrack.choose(from: SessionDescription(media), name: "cam").tracks.last)
    }

    static let video = "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
}

@Suite("Frames from RTP packets (RFC 6184, 7798, 3640, 6416, 4867, 2250)")
struct RTPDepacketizerTests {
    private func frames(
        _ media: String, _ make: (inout PacketMaker) -> [ByteBuffer]
    ) throws -> [RTPDepacketizer.Frame] {
        var (packets, maker) = (RTPDepacketizer(try PacketMaker.track(media)), PacketMaker())
        return make(&maker).compactMap { RTPPacket($0) }.flatMap { packets.take($0) }
    }
    private static let start: [UInt8] = [0, 0, 0, 1]

    @Test(
        "Single units, aggregated units and fragments of H.264 are one picture; its time changes or its marker ends it")
    func h264() throws {
        let frames = try frames(PacketMaker.video) { maker in
            [
                maker.packet(1, [24, 0, 2, 0x67, 1, 0, 1, 0x68]), maker.packet(1, [0x7c, 0x85, 2, 3]),
                maker.packet(1, [0x7c, 0x45, 4], marker: true), maker.packet(2, [0x41, 5]), maker.packet(3, [0x41, 6]),
            ]
        }
        #expect(frames.map(\.timestamp) == [1, 2] && frames.map(\.isKey) == [true, false])
        #expect(frames[0].bytes == Self.start + [0x67, 1] + Self.start + [0x68] + Self.start + [0x65, 2, 3, 4])
    }

    @Test("Fragments and aggregated units of H.265, whose header has two bytes")
    func h265() throws {
        let frames = try frames("m=video 0 RTP/AVP 96\r\na=rtpmap:96 H265/90000\r\n") { maker in
            [
                maker.packet(1, [0x60, 1, 0, 3, 0x42, 1, 9]), maker.packet(1, [0x62, 1, 0x93, 7]),
                maker.packet(1, [0x62, 1, 0x53, 8], marker: true),
            ]
        }
        #expect(frames.map(\.bytes) == [Self.start + [0x42, 1, 9] + Self.start + [0x26, 1, 7, 8]])
        #expect(frames.first?.isKey == true)
    }

    @Test("A unit of which a packet is missing is left out; the rest of the picture is not")
    func missing() throws {
        let frames = try frames(PacketMaker.video) { maker in
            var packets = [maker.packet(1, [0x7c, 0x85, 2]), maker.packet(1, [0x7c, 0x05, 3])]
            packets += [maker.packet(1, [0x7c, 0x45, 4]), maker.packet(1, [0x41, 5], marker: true)]
            packets.remove(at: 1)
            return packets
        }
        #expect(frames.map(\.bytes) == [Self.start + [0x41, 5]])
    }

    @Test(
        "A camera that marks every packet, and one that sends parameter sets with the time before, have whole pictures")
    func markers() throws {
        let frames = try frames(PacketMaker.video) { maker in
            (1...3).flatMap { time in
                [
                    maker.packet(UInt32(time), [0x67, 1], marker: true),
                    maker.packet(UInt32(time), [0x65, 0x88], marker: true),
                    maker.packet(UInt32(time), [0x65, 0x18], marker: true),
                ]
            } + [maker.packet(3, [0x67, 9]), maker.packet(4, [0x65, 0x88])] + [maker.packet(5, [0x41, 1])]
        }
        // The first one shows what the camera does, and comes in two parts.
        #expect(frames.map(\.timestamp) == [1, 1, 2, 3, 4])
        #expect(frames[2].bytes == Self.start + [0x67, 1] + Self.start + [0x65, 0x88] + Self.start + [0x65, 0x18])
    }

    @Test("A picture that is too large is dropped and counted, however it comes", arguments: [true, false])
    func tooLarge(isFragmented: Bool) throws {
        var (packets, maker) = (RTPDepacketizer(try PacketMaker.track(PacketMaker.video)), PacketMaker())
        let part = [UInt8](repeating: 0x55, count: 60_000)
        var frames: [RTPDepacketizer.Frame] = []
        for index in 0..<200 {
            let head: [UInt8] = isFragmented ? [0x7c, index == 0 ? 0x85 : 0x05] : [0x41]
            if let packet = RTPPacket(maker.packet(1, head + part)) { frames += packets.take(packet) }
        }
        for packet in [maker.packet(2, [0x65, 1], marker: true), maker.packet(3, [0x41, 1], marker: true)] {
            if let packet = RTPPacket(packet) { frames += packets.take(packet) }
        }
        #expect(frames.map(\.timestamp) == [2, 3] && packets.framesTooLarge == 1)
    }

    @Test("AAC: several access units of a packet, and one over several packets")
    func aac() throws {
        let media =
            PacketMaker.video + "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/16000/1\r\n"
            + "a=fmtp:97 streamtype=5; mode=AAC-hbr; config=1408; SizeLength=13; indexlength=3; indexdeltalength=3\r\n"
        let track = try PacketMaker.track(media)
        #expect(track.input.extraData == [0x14, 0x08] && track.input.sampleRate == 16_000)
        let frames = try frames(media) { maker in
            [
                maker.packet(100, [0, 32, 0, 2 << 3, 0, 1 << 3, 1, 2, 3], marker: true),
                maker.packet(200, [0, 16, 0, 4 << 3, 5, 6]), maker.packet(200, [0, 16, 0, 4 << 3, 7, 8], marker: true),
                maker.packet(300, [255, 255, 1]), maker.packet(300, [0, 16, 255, 255, 1], marker: true),
            ]
        }
        #expect(frames.map(\.bytes) == [[1, 2], [3], [5, 6, 7, 8]] && frames.map(\.offset) == [0, 1024, 0])
    }

    @Test("LATM, AMR and MP3 have the frames of their packets")
    func others() throws {
        let latm =
            PacketMaker.video + "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 MP4A-LATM/16000\r\n"
            + "a=fmtp:97 cpresent=0; config=400028103fc0\r\n"
        #expect(try PacketMaker.track(latm).input.extraData.prefix(2) == [0x14, 0x08])
        let long = [UInt8](repeating: 3, count: 256)
        let sound = try frames(latm) { [$0.packet(1, [255]), $0.packet(1, [1] + long + [1, 9], marker: true)] }
        #expect(sound.map(\.bytes) == [long, [9]] && sound.map(\.offset) == [0, 1024])

        let amr =
            PacketMaker.video + "m=audio 0 RTP/AVP 97\r\na=rtpmap:97 AMR/8000\r\na=fmtp:97 octet-align=1\r\n"
        let speech = [UInt8](repeating: 4, count: 12), silence = [UInt8](repeating: 5, count: 5)
        let frames = try frames(amr) { [$0.packet(1, [0xf0, 0x84, 0x44] + speech + silence)] }
        #expect(frames.map(\.bytes) == [[0x04] + speech, [0x44] + silence] && frames.map(\.offset) == [0, 160])

        let mp3 = [0xff, 0xfb, 0x10, 0xc0] + [UInt8](repeating: 6, count: 100)
        let music = try self.frames(PacketMaker.video + "m=audio 0 RTP/AVP 14\r\n") { maker in
            [
                maker.packet(1, [0, 0, 0, 0] + mp3 + mp3.prefix(50)),
                maker.packet(2, [0, 0, 0, 0] + mp3.prefix(50)), maker.packet(2, [0, 0, 0, 50] + mp3[50...]),
            ]
        }
        #expect(music.map(\.bytes) == [mp3, mp3])
    }

    @Test("Random packets never crash, and a picture has a bound", arguments: 0..<UInt64(40))
    func garbage(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        for media in [
            PacketMaker.video, "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H265/90000\r\n",
            PacketMaker.video + "m=audio 0 RTP/AVP 96\r\na=rtpmap:96 MPEG4-GENERIC/8000\r\n"
                + "a=fmtp:96 config=1408;sizelength=13;indexlength=3\r\n",
            PacketMaker.video + "m=audio 0 RTP/AVP 96\r\na=rtpmap:96 AMR-WB/16000\r\na=fmtp:96 octet-align=1\r\n",
            PacketMaker.video + "m=audio 0 RTP/AVP 14\r\n",
        ] {
            let track = try PacketMaker.track(media)
            var line = CameraLine()
            line.begin(tracks: [track], at: .zero)
            var maker = PacketMaker(type: track.media.payloadType)
            for index in 0..<150 {
                let count = Int.random(in: 0..<40, using: &random)
                let payload = (0..<count).map { _ in UInt8.random(in: 0...(.max), using: &random) }
                var packet = maker.packet(
                    UInt32.random(in: 0...3, using: &random), payload, marker: Bool.random(using: &random))
                if Int.random(in: 0..<6, using: &random) == 0 {
                    packet.setInteger(
                        UInt8.random(in: 0...(.max), using: &random), at: Int.random(in: 0..<12, using: &random))
                }
                _ = line.take(packet, of: 0, at: .zero + .milliseconds(index * 40))
                line.take(report: packet, of: 0)
            }
        }
    }

    @Test("Packets with extensions, padding and contributors have their payload; damaged ones are refused")
    func headers() {
        let head: [UInt8] = [0x80, 96, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]
        func payload(_ bytes: [UInt8]) -> [UInt8]? {
            RTPPacket(ByteBuffer(bytes: bytes)).map { Array($0.payload.readableBytesView) }
        }
        #expect(payload(head + [7]) == [7] && payload(head) == [])
        #expect(payload([0x81] + head.dropFirst() + [1, 1, 1, 1, 7]) == [7])
        #expect(payload([0x90] + head.dropFirst() + [0, 0, 0, 1, 9, 9, 9, 9, 7]) == [7])
        #expect(payload([0xa0] + head.dropFirst() + [7, 0, 2]) == [7])
        for bytes in [[0x40] + head.dropFirst(), [0x81] + head.dropFirst(), [0x90] + head.dropFirst() + [0, 0, 0, 1]] {
            #expect(payload(bytes) == nil)
        }
        #expect(payload([0xa0] + head.dropFirst() + [9]) == nil && payload([]) == nil)
    }
}

@Suite("Times of a camera (media times and arrival times decide what is a jump)")
struct RTPClockTests {
    /// The times in milliseconds of packets with these media times and arrivals, also in milliseconds.
    private func times(_ packets: [(media: Int64, arrival: Int64)], rate: Int64 = 90_000) -> [Int64] {
        var clock = RTPClock(rate: UInt32(rate))
        return packets.map { packet in
            let timestamp = UInt32(truncatingIfNeeded: 4_294_000_000 + packet.media * rate / 1000)
            return clock.time(of: timestamp, arrival: packet.arrival * 1000) / 1000
        }
    }
    /// Media and arrival with a network of up to 300 ms.
    private func steady(_ times: [Int64]) -> [(media: Int64, arrival: Int64)] {
        times.enumerated().map { ($1, $1 + Int64($0 * 7 % 4) * 100) }
    }

    @Test("Pauses of 7 and of 45 s stay, and jitter does not show")
    func pauses() {
        let line: [Int64] = [0, 40, 80, 7080, 7120, 52_120, 97_120]
        #expect(times(steady(line)) == line)
    }

    @Test("Sound that comes 5 s later is 5 s later, without reports of the camera")
    func lateSound() { #expect(times([(0, 5000), (20, 5020)], rate: 8000) == [5000, 5020]) }

    @Test("A step that arrives at once is a jump of the clock, in both directions")
    func jumps() {
        #expect(times([(0, 0), (40, 40), (3_600_080, 80), (3_600_120, 120)]) == [0, 40, 80, 120])
        #expect(times([(3_600_000, 0), (3_600_040, 40), (80, 80), (120, 120)]) == [0, 40, 80, 120])
        // With a pause at the same time, what has passed by arrival counts.
        #expect(times([(0, 0), (40, 40), (3_600_080, 8040), (3_600_120, 8080)]) == [0, 40, 8040, 8080])
    }

    @Test("A network that stalls for 20 s and then delivers everything at once changes nothing")
    func stall() {
        var packets = steady((0..<50).map { $0 * 40 })
        packets += (50..<400).map { ($0 * 40, 20_000 + Int64($0)) }
        // The camera dropped eight seconds meanwhile.
        packets += (600..<900).map { ($0 * 40, max($0 * 40, 20_400)) }
        #expect(times(packets) == packets.map(\.media))
    }

    @Test("A clock that stood still while nothing came continues with the time that passed, once that is certain")
    func stoodStill() {
        let packets = (0..<25).map { ($0 * 40, $0 * 40) } + (25..<500).map { ($0 * 40, $0 * 40 + 45_000) }
        let line = times(packets.map { (media: Int64($0.0), arrival: Int64($0.1)) })
        #expect(line.last.map { abs($0 - Int64(packets[499].1)) < 100 } == true, "\(line.last ?? 0)")
        #expect(zip(line, line.dropFirst()).allSatisfy(<))
    }

    @Test("B frames keep their order, and timestamps wrap")
    func order() {
        #expect(times([(0, 0), (120, 10), (40, 20), (80, 30), (240, 40)]) == [0, 120, 40, 80, 240])
        let line = (0..<2000).map { Int64($0) * 30_000 }
        #expect(times(line.map { ($0, $0) }) == line, "16 hours")
    }

    @Test("Reports put sound and picture together, and reports that cannot be true do not", arguments: [300, 60_000])
    func reports(skew: Int64) throws {
        var (video, audio) = (RTPClock(rate: 90_000), RTPClock(rate: 8000))
        _ = video.time(of: 0, arrival: 0)
        // Sound of the same moment arrives later.
        _ = audio.time(of: 0, arrival: 300_000)
        func report(_ milliseconds: Int64, _ timestamp: UInt32) throws -> RTPSenderReport {
            var bytes = ByteBuffer()
            let fraction = UInt32(((milliseconds % 1000) << 32) / 1000)
            bytes.writeMultipleIntegers(
                UInt8(0x80), UInt8(200), UInt16(6), UInt32(5), UInt32(3_900_000_000 + milliseconds / 1000), fraction,
                timestamp, UInt32(0), UInt32(0))
            return try #require(RTPSenderReport(bytes))
        }
        video.take(try report(100_000, 0))
        audio.take(try report(100_300 - skew, 0))
        audio.follow(video)
        let time = audio.time(of: 8000, arrival: 1_300_000) / 1000
        #expect(abs(time - (skew == 300 ? 1000 : 1300)) <= 1)
    }

    @Test("Any timestamps and arrivals stay within bounds", arguments: 0..<UInt64(30))
    func anything(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var clock = RTPClock(rate: [1, 8000, 90_000, 1_000_000][Int.random(in: 0..<4, using: &random)])
        var arrival: Int64 = 0
        for _ in 0..<500 {
            arrival += Int64.random(in: 0...10_000_000, using: &random)
            let time = clock.time(of: UInt32.random(in: 0...(.max), using: &random), arrival: arrival)
            #expect(time.magnitude < 1 << 52)
            if Int.random(in: 0..<50, using: &random) == 0 { clock.restart() }
        }
    }
}
