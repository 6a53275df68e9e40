import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import Testing

@Suite("Sound as AMR, narrow and wide band (IV-C7)")
struct AMREncoderTests {
    let folder = Folder()

    /// The bytes of a frame of each mode, with the byte of its mode: 3GPP TS 26.101 and 26.201, annex A.
    private static let narrowSizes = [13, 14, 16, 18, 20, 21, 27, 32]
    private static let wideSizes = [18, 24, 33, 37, 41, 47, 51, 59, 61]

    /// The amplitude of a tone of 8,000 that is heard. libavcodec's decoders play steady tones up to 6 dB quieter than
    /// those of opencore, which play them as they were.
    private static let levels = 4_000.0...8_500

    private static func tone(
        _ sampleRate: Int, hertz: Double = 1_000, seconds: Double = 2, level: Double = 8_000
    ) -> SoundSamples {
        let step = hertz * 2 * Double.pi / Double(sampleRate)
        let samples = (0..<Int(seconds * Double(sampleRate))).map { Int16(level * sin(Double($0) * step)) }
        return SoundSamples(sampleRate: sampleRate, ptsMicroseconds: 0, samples: samples)
    }

    private func encoded(_ encoder: SoundEncoder, _ sound: SoundSamples) throws -> [EncodedFrame] {
        try encoder.encode(sound) + encoder.finish()
    }

    /// What another side hears, with the rate of the codec.
    private func decoded(_ frames: [EncodedFrame], _ configuration: TrackConfiguration) throws -> [Int16] {
        let decoder = try SoundDecoder(configuration, sampleRate: Int(configuration.sampleRate))
        var sounds = try frames.flatMap { frame in
            let position = FramePosition(epoch: 1, sequence: 0)
            let header = MediaHeader(position: position, ptsMicroseconds: frame.ptsMicroseconds)
            return try decoder.decode(MediaFrame(header: header, payload: frame.payload))
        }
        sounds += try decoder.finish()
        return sounds.flatMap(\.samples)
    }

    /// The amplitude of one frequency, and of all of them together as if they were one, without the first and last
    /// tenth of a second.
    private func amplitudes(_ samples: [Int16], _ sampleRate: Int, hertz: Double) -> (tone: Double, all: Double) {
        let inner = samples.dropFirst(sampleRate / 10).dropLast(sampleRate / 10).map(Double.init)
        let step = hertz * 2 * Double.pi / Double(sampleRate)
        var (cosines, sines, squares) = (0.0, 0.0, 0.0)
        for (index, sample) in inner.enumerated() {
            cosines += sample * cos(Double(index) * step)
            sines += sample * sin(Double(index) * step)
            squares += sample * sample
        }
        let count = Double(max(inner.count, 1))
        return (2 * (cosines * cosines + sines * sines).squareRoot() / count, (2 * squares / count).squareRoot())
    }

    @Test(
        "A tone is heard as it was, in a frame each 20 ms", arguments: [(Codec.amrNarrow, 8_000), (.amrWide, 16_000)])
    func tone(codec: Codec, sampleRate: Int) throws {
        let encoder = try SoundEncoder(try SoundEncoding(codec: codec))
        #expect(
            encoder.configuration
                == TrackConfiguration(
                    codec: codec, trackCount: 1, first: UInt32(sampleRate), second: 1, third: UInt32(sampleRate / 50),
                    extraData: []))
        let frames = try encoded(encoder, Self.tone(sampleRate))
        #expect(frames.map(\.ptsMicroseconds) == (0..<100).map { $0 * 20_000 })
        let samples = try decoded(frames, encoder.configuration)
        #expect(samples.count == 2 * sampleRate)
        let (tone, all) = amplitudes(samples, sampleRate, hertz: 1_000)
        #expect(Self.levels.contains(tone) && tone > 0.95 * all, "\(tone) of \(all)")
        for hertz in [500.0, 980, 1_020, 2_000] {
            let other = amplitudes(samples, sampleRate, hertz: hertz).tone
            #expect(other < 0.1 * all, "\(hertz) Hz: \(other) of \(all)")
        }
    }

    @Test("Silence is silent", arguments: [Codec.amrNarrow, .amrWide])
    func silence(codec: Codec) throws {
        let encoding = try SoundEncoding(codec: codec)
        let encoder = try SoundEncoder(encoding)
        let frames = try encoded(encoder, Self.tone(encoding.sampleRate, level: 0))
        // There is no discontinuous transmission: each frame is one of speech.
        #expect(frames.count == 100 && Set(frames.map(\.payload.readableBytes)).count == 1)
        let all = amplitudes(try decoded(frames, encoder.configuration), encoding.sampleRate, hertz: 1_000).all
        #expect(all < 20, "\(all)")
    }

    @Test(
        "Each bit rate has its mode, in the frames' first byte and in their size (RFC 4867 §5.3)",
        arguments: narrowSizes.indices.map { (Codec.amrNarrow, $0) } + wideSizes.indices.map { (Codec.amrWide, $0) })
    func modes(codec: Codec, mode: Int) throws {
        let isWide = codec == .amrWide
        let rate = (isWide ? SoundEncoding.amrWideBitRates : SoundEncoding.amrNarrowBitRates)[mode]
        let size = (isWide ? Self.wideSizes : Self.narrowSizes)[mode]
        // The speech bits are those of 20 ms, filled up to whole bytes.
        #expect((rate / 50 + 7) / 8 + 1 == size)
        let encoding = try SoundEncoding(codec: codec, bitsPerSecond: rate)
        #expect(encoding.bitsPerSecond == rate)
        let encoder = try SoundEncoder(encoding)
        let frames = try encoded(encoder, Self.tone(encoding.sampleRate))
        #expect(frames.count == 100)
        // Frame type, and the quality bit of a good frame.
        #expect(frames.allSatisfy { $0.payload.readableBytes == size })
        #expect(frames.allSatisfy { $0.payload.readableBytesView.first == UInt8(mode << 3 | 4) })
        let (tone, all) = amplitudes(
            try decoded(frames, encoder.configuration), encoding.sampleRate, hertz: 1_000)
        #expect(Self.levels.contains(tone) && tone > 0.9 * all, "\(rate) bits a second: \(tone) of \(all)")
    }

    @Test(
        "A bit rate has the highest mode that is not above it, else the lowest one",
        arguments: [
            (Codec.amrNarrow, nil as Int?, 12_200), (.amrNarrow, 1, 4_750), (.amrNarrow, 4_749, 4_750),
            (.amrNarrow, 5_149, 4_750), (.amrNarrow, 12_199, 10_200), (.amrNarrow, 256_000, 12_200),
            (.amrWide, nil, 23_850), (.amrWide, 1, 6_600), (.amrWide, 12_650, 12_650), (.amrWide, 23_049, 19_850),
            (.amrWide, 256_000, 23_850),
        ])
    func bitRates(codec: Codec, asked: Int?, taken: Int) throws {
        #expect(try SoundEncoding(codec: codec, bitsPerSecond: asked).bitsPerSecond == taken)
    }

    @Test(
        "Rates that AMR does not have are refused with 10022",
        arguments: [
            (Codec.amrNarrow, 16_000 as Int?, nil as Int?), (.amrNarrow, 48_000, nil), (.amrNarrow, 0, nil),
            (.amrWide, 8_000, nil), (.amrWide, 48_000, nil), (.amrNarrow, nil, 0), (.amrNarrow, nil, -1),
            (.amrWide, nil, 256_001), (.amrWide, nil, .min),
        ])
    func refused(codec: Codec, sampleRate: Int?, bits: Int?) {
        let error = #expect(throws: ApusError.self) {
            try SoundEncoding(codec: codec, sampleRate: sampleRate, bitsPerSecond: bits)
        }
        #expect(error?.code == .configurationInvalid)
    }

    @Test(
        "The last samples are sent with silence behind them",
        arguments: [(Codec.amrNarrow, 8_000), (.amrWide, 16_000)])
    func last(codec: Codec, sampleRate: Int) throws {
        for (milliseconds, count) in [(0.0, 0), (1, 1), (20, 1), (21, 2)] {
            let encoder = try SoundEncoder(try SoundEncoding(codec: codec))
            let frames = try encoded(encoder, Self.tone(sampleRate, seconds: milliseconds / 1_000))
            #expect(frames.count == count, "\(milliseconds) ms")
        }
    }

    @Test("Encoders share nothing: frames of two that take turns are those of one alone")
    func turns() throws {
        let encodings = [
            try SoundEncoding(codec: .amrNarrow), try SoundEncoding(codec: .amrNarrow, bitsPerSecond: 5_900),
            try SoundEncoding(codec: .amrWide), try SoundEncoding(codec: .amrWide, bitsPerSecond: 8_850),
        ]
        let alone = try encodings.map { try encoded(try SoundEncoder($0), Self.tone($0.sampleRate)).map(\.payload) }
        let encoders = try encodings.map { try SoundEncoder($0) }
        var together = encodings.map { _ in [ByteBuffer]() }
        for number in 0..<100 {
            for (index, encoder) in encoders.enumerated() {
                let rate = encodings[index].sampleRate
                let samples = Self.tone(rate).samples[number * rate / 50..<(number + 1) * rate / 50]
                let sound = SoundSamples(
                    sampleRate: rate, ptsMicroseconds: Int64(number) * 20_000, samples: Array(samples))
                together[index] += try encoder.encode(sound).map(\.payload)
            }
        }
        #expect(alone == together)
    }

    // A file that is not there, one that is no library, and a library without an encoder.
    @Test(
        "Without the library, the encoder is missing with 21036, and the error names Debian's package",
        arguments: [(Codec.amrNarrow, "libopencore-amrnb0"), (.amrWide, "libvo-amrwbenc0")],
        ["libapus-none.so.0", "/dev/null", "libm.so.6"])
    func missing(codec: (Codec, String), library: String) throws {
        let encoding = try SoundEncoding(codec: codec.0)
        let error = #expect(throws: ApusError.self) { try SoundEncoder(encoding, libraryOfAMR: library) }
        #expect(error?.code == .encoderUnavailable)
        let text = String(describing: error)
        #expect(text.contains("install the package \(codec.1)") && text.contains(library), "\(text)")
        // Others need no library.
        #expect(throws: Never.self) { try SoundEncoder(.standard, libraryOfAMR: library) }
    }

    @Test(
        "A recording has the frames as they are, and is read as AMR (3GPP TS 26.244)",
        .enabled(if: Tool.ffprobe != nil),
        arguments: [(Codec.amrNarrow, "amr_nb", [0x81, 0xff] as [UInt8]), (.amrWide, "amr_wb", [0x83, 0xff])])
    func recording(codec: Codec, name: String, modes: [UInt8]) async throws {
        var pattern = try TestPattern(width: 160, height: 120, frameRate: 25)
        pattern.sound = try SoundEncoding(codec: codec)
        let sent = await collect(from: TestPatternSource(pattern, frameCountMax: 50, isPaced: false))
        let configuration = try #require(sent.configuration(1))
        #expect(configuration.codec == codec && sent.frames(track: 1).count == 100)
        let path = folder.file("amr.mp4")
        try record(sent, to: path)

        let probe = try #require(Tool.ffprobe)
        let entries = ["-select_streams", "a", "-show_entries", "stream=codec_name,sample_rate,channels"]
        let stream = Tool.run(probe, ["-v", "error"] + entries + ["-of", "csv=p=0", path])
        #expect(stream?.split(separator: "\n") == ["\(name),\(configuration.sampleRate),1"])
        let bytes = try Data(contentsOf: URL(fileURLWithPath: path))
        let box = try #require(bytes.range(of: Data("damr".utf8)))
        #expect(Array(bytes[box.upperBound..<box.upperBound + 9]) == Array("apus".utf8) + [0] + modes + [0, 1])

        // A file source sends what the encoder has made.
        let log = Logger(label: "test")
        let read = await collect(from: FileSource(path: path, loops: false, isPaced: false, log: log))
        #expect(read.failure == nil && read.configuration(1) == configuration)
        let (before, after) = (sent.frames(track: 1), read.frames(track: 1))
        #expect(after.count == before.count)
        #expect(zip(before, after).allSatisfy { $0.payload == $1.payload && $0.pts == $1.pts })
    }

    private func record(_ sent: Delivered, to path: String) throws {
        let recorder = try MP4Recorder(path: path)
        for (track, configuration) in sent.configurations {
            var payload = ByteBuffer()
            configuration.encode(into: &payload)
            let position = FramePosition(epoch: 1, sequence: UInt64(track))
            recorder.write(
                MediaFrame(
                    header: MediaHeader(
                        position: position, ptsMicroseconds: 0, flags: .configuration, track: track),
                    payload: payload))
        }
        for (number, frame) in sent.frames.enumerated() {
            let position = FramePosition(epoch: 1, sequence: UInt64(number + sent.configurations.count))
            recorder.write(
                MediaFrame(
                    header: MediaHeader(
                        position: position, ptsMicroseconds: frame.pts, dtsDeltaMicroseconds: frame.dtsDelta,
                        flags: frame.flags, track: frame.track),
                    payload: frame.payload))
        }
        #expect(try recorder.finish() == sent.frames.count)
    }
}
