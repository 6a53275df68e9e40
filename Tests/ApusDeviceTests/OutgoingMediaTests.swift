import ApusDevice
import ApusMedia
import Testing

@Suite("Tracks that are muted, and sources that are replaced (IV-C7, IV-C8)")
struct OutgoingMediaTests {
    private func configuration(_ codec: Codec) -> TrackConfiguration {
        TrackConfiguration(codec: codec, trackCount: 2, first: 1, second: 1, third: 0, extraData: [])
    }

    private func media() -> OutgoingMedia {
        var media = OutgoingMedia()
        media.configured(0, configuration(.h264))
        media.configured(1, configuration(.aac))
        return media
    }

    @Test("A muted microphone sends nothing, the camera goes on, and what is unmuted is sent at once")
    func microphone() {
        var media = media()
        #expect(media.time(of: 1, ptsMicroseconds: 0, flags: []) == 0)
        media.setMuted(.audio, true)
        #expect(media.time(of: 1, ptsMicroseconds: 20_000, flags: []) == nil)
        #expect(media.time(of: 0, ptsMicroseconds: 20_000, flags: []) == 20_000)
        media.setMuted(.audio, false)
        #expect(media.time(of: 1, ptsMicroseconds: 40_000, flags: []) == 40_000)
    }

    @Test("A camera that is opened again goes on with a key frame")
    func camera() {
        var media = media()
        media.setMuted(.video, true)
        #expect(media.time(of: 0, ptsMicroseconds: 0, flags: .key) == nil)
        #expect(media.time(of: 1, ptsMicroseconds: 0, flags: []) == 0)
        media.setMuted(.video, false)
        #expect(media.time(of: 0, ptsMicroseconds: 40_000, flags: []) == nil)
        #expect(media.time(of: 0, ptsMicroseconds: 80_000, flags: .key) == 80_000)
        #expect(media.time(of: 0, ptsMicroseconds: 120_000, flags: []) == 120_000)
    }

    @Test("The times of another source go on behind those of the one before, and what is muted stays so")
    func switched() {
        var media = media()
        #expect(media.time(of: 0, ptsMicroseconds: 5_000_000, flags: .key) == 5_000_000)
        media.setMuted(.audio, true)
        media.sourceChanged()
        media.configured(0, configuration(.h264))
        media.configured(1, configuration(.aac))
        #expect(media.time(of: 0, ptsMicroseconds: 100, flags: .key) == 5_040_000)
        #expect(media.time(of: 1, ptsMicroseconds: 100, flags: []) == nil)
        #expect(media.time(of: 0, ptsMicroseconds: 40_100, flags: []) == 5_080_000)
        // The pause is counted from the last frame of any source.
        media.sourceChanged()
        media.configured(0, configuration(.h264))
        #expect(media.time(of: 0, ptsMicroseconds: 0, flags: .key) == 5_120_000)
    }
}
