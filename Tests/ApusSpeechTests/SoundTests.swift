import ApusCore
import ApusMedia
import ApusSpeech
import ApusWyoming
import NIOCore
import Testing

@Suite("The sound of microphones and replies (docs/voice.md)")
struct SoundTests {
    private static func frame(_ flags: MediaFlags, _ payload: ByteBuffer) throws -> RelayFrame {
        let header = MediaHeader(
            position: FramePosition(epoch: 1, sequence: 0), ptsMicroseconds: 0, flags: flags, track: 0)
        return try RelayFrame(encoding: MediaFrame(header: header, payload: payload)) { _, buffer in
            buffer.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
        }
    }

    private static func reader(_ codec: Codec, _ rate: UInt32, channels: UInt32 = 1) throws -> SoundReader {
        var payload = ByteBuffer()
        TrackConfiguration(codec: codec, trackCount: 1, first: rate, second: channels, third: 0, extraData: [])
            .encode(into: &payload)
        var reader = SoundReader()
        #expect(try reader.read(frame(.configuration, payload)).isEmpty)
        return reader
    }

    private static func l16(_ samples: [Int16]) throws -> RelayFrame {
        var payload = ByteBuffer()
        for sample in samples { payload.writeInteger(sample) }
        return try frame(.key, payload)
    }

    @Test("Three words of the reply are its echo, and fewer or others a person's (field report 12)")
    func echo() {
        let reply = "Should I unlock the front door?"
        for text in ["Unlock the front", "should i unlock the front door", "the front door"] {
            #expect(ReplyEcho.isEcho(text, of: reply), "\(text)")
        }
        for text in ["yes", "front door", "unlock front door", "lock the front door", "", "unlock the front door now"] {
            #expect(!ReplyEcho.isEcho(text, of: reply), "\(text)")
        }
    }

    @Test("L16 with 16,000 samples a second is unchanged, in frames of any length")
    func same() throws {
        var reader = try Self.reader(.l16, 16_000)
        let samples = (0..<1000).map { Int16($0 * 37 % 30_000) }
        #expect(try reader.read(Self.l16(Array(samples[..<333]))) == Array(samples[..<333]))
        #expect(try reader.read(Self.l16(Array(samples[333...]))) == Array(samples[333...]))
    }

    /// A square wave with one change each 20 samples of 16,000 a second.
    @Test("Other rates have the same pitch and length", arguments: [8_000, 22_050, 44_100, 48_000])
    func rates(_ rate: Int) throws {
        var reader = try Self.reader(.l16, UInt32(rate))
        var heard: [Int16] = []
        let samples = (0..<rate).map { Int16($0 * 800 / rate % 2 == 0 ? 8000 : -8000) }
        for first in stride(from: 0, to: rate, by: rate / 50) {
            heard += try reader.read(Self.l16(Array(samples[first..<min(first + rate / 50, rate)])))
        }
        // The last of it is in the filter.
        #expect((15_980...16_000).contains(heard.count), "\(heard.count)")
        // A square wave overshoots at its edges, and crosses zero there only.
        let crossings = zip(heard, heard.dropFirst()).count { ($0 < 0) != ($1 < 0) }
        #expect((797...801).contains(crossings), "\(crossings)")
    }

    @Test("Two channels become one")
    func stereo() throws {
        var reader = try Self.reader(.l16, 16_000, channels: 2)
        #expect(try reader.read(Self.l16([100, 300, -5, 5])) == [200, 0])
    }

    @Test("G.711 is expanded as ITU-T G.711 has it")
    func companding() {
        #expect(G711.linear(muLaw: 0xff) == 0 && G711.linear(muLaw: 0x7f) == 0)
        #expect(G711.linear(muLaw: 0x80) == 32_124 && G711.linear(muLaw: 0x00) == -32_124)
        #expect(G711.linear(aLaw: 0xd5) == 8 && G711.linear(aLaw: 0x55) == -8)
        #expect(G711.linear(aLaw: 0xaa) == 32_256 && G711.linear(aLaw: 0x2a) == -32_256)
    }

    @Test("Another codec, another rate and sound without a configuration are refused with 10026")
    func refused() throws {
        for (codec, rate, channels) in [(Codec.opus, 48_000, 1), (.l16, 7_999, 1), (.l16, 16_000, 3)] {
            #expect(throws: ApusError.self) { _ = try Self.reader(codec, UInt32(rate), channels: UInt32(channels)) }
        }
        var reader = SoundReader()
        let sound = try Self.l16([1])
        do throws(ApusError) {
            _ = try reader.read(sound)
            Issue.record("sound without a configuration was read")
        } catch {
            #expect(error.code == .mediaUnreadable)
        }
    }

    @Test("The power of a window leaves out its constant part")
    func power() {
        var sound = SpokenSound()
        #expect(sound.append([Int16](repeating: 5000, count: 319)).isEmpty)
        #expect(sound.append([5000]) == [0])
        #expect(sound.append((0..<640).map { $0 % 2 == 0 ? 100 : -100 }) == [10_000, 10_000])
        #expect(sound.samples.count == 960)
    }

    @Test("A reply is a configuration, frames of 20 ms, and an end mark")
    func reply() throws {
        var spoken = Spoken(sampleRate: 22_050)
        var audio = ByteBuffer()
        for sample in 0..<1000 { audio.writeInteger(Int16(sample), endianness: .little) }
        spoken.append(.init(format: .init(rate: 22_050, width: 2, channels: 1), audio: audio))
        let frames = spoken.frames
        #expect(frames.count == 5 && frames.first?.header.flags == .configuration)
        #expect(frames.last?.header.flags == .endOfEpoch && frames.last?.payload.readableBytes == 0)
        let samples = frames[1...3].flatMap { frame in
            var payload = frame.payload
            return (0..<payload.readableBytes / 2).compactMap { _ in payload.readInteger(as: Int16.self) }
        }
        #expect(samples == (0..<1000).map { Int16($0) })
        #expect(frames.map(\.header.ptsMicroseconds) == [0, 0, 20_000, 40_000, 45_351])
    }

    @Test("Speech providers are reached over a socket of this machine only")
    func addresses() {
        for text in ["unix:/run/apus/speech.sock", "tcp:127.0.0.1:10300", "tcp:[::1]:10300", "tcp:localhost:1"] {
            #expect(SpeechConfiguration.provider(text)?.description == text)
        }
        for text in [
            "", "unix:", "unix:relative", "unix:/" + String(repeating: "a", count: 107), "tcp:10.0.0.1:10300",
            "tcp:127.0.0.1.example.com:1", "tcp:127.0.0.1", "tcp:127.0.0.1:0", "http://127.0.0.1:1", "tcp:127.1:1",
        ] {
            #expect(SpeechConfiguration.provider(text) == nil, "\(text)")
        }
    }
}
