import ApusMedia
import Testing

@Suite("The ring of a channel's last frames (D7)")
struct FrameRingTests {
    private func ring(_ frames: [RelayFrame], _ limits: FrameRingLimits = FrameRingLimits()) -> FrameRing {
        var ring = FrameRing(limits: limits)
        for frame in frames { #expect(ring.append(frame) == .appended) }
        return ring
    }

    @Test(
        "A frame is taken once, in order, in the newest epoch",
        arguments: [
            (at(10), FrameRing.Appended.appended), (at(9), .duplicate), (at(0), .duplicate),
            (at(12), .gap(expected: 10)),
            (at(0, 2), .appended), (at(7, 2), .appended), (at(99, 0), .stale),
        ])
    func order(position: FramePosition, expected: FrameRing.Appended) {
        var ring = ring(stream(0..<10, keys: [2]))
        #expect(ring.append(relayFrame(position.sequence, epoch: position.epoch)) == expected)
        #expect(ring.last == (expected == .appended ? position : at(9)))
    }

    @Test("Where a gap is allowed, what came before it is forgotten and indexes go on")
    func gap() {
        var ring = ring(stream(0..<10, keys: [2]))
        #expect(ring.append(relayFrame(20, flags: .key), allowingGap: true) == .appended)
        #expect(ring.firstIndex == 10)
        #expect(ring.endIndex == 11)
        #expect(ring.oldest == at(20))
        #expect(ring.liveIndex == 10)
    }

    @Test("The live picture begins at the last key frame, with the configurations right before it")
    func live() {
        #expect(FrameRing().liveIndex == nil)
        #expect(ring(stream(0..<2, keys: [])).liveIndex == nil)
        #expect(ring(stream(0..<10, keys: [2])).liveIndex == 0)
        #expect(ring(stream(0..<10, keys: [2, 7])).liveIndex == 7)
    }

    @Test("A key frame of audio is no place to start where there is video, and is one where there is none")
    func audioKeys() {
        var withVideo = ring(stream(0..<5, keys: [2]))
        _ = withVideo.append(relayFrame(5, track: 1, flags: .key))
        #expect(withVideo.liveIndex == 0)
        var audioOnly = ring([relayFrame(0, track: 1, flags: .configuration, codec: .opus)])
        _ = audioOnly.append(relayFrame(1, track: 1, flags: .key))
        _ = audioOnly.append(relayFrame(2, track: 1, flags: .key))
        #expect(audioOnly.liveIndex == 2)
    }

    @Test(
        "A receiver goes on right after what it has, or hears how much is gone",
        arguments: [
            (at(9), FrameRing.Resumption.at(10)), (at(5), .at(6)), (at(0), .at(1)), (at(30), .at(10)),
            (at(3, 2), .at(10)),
            (at(9, 0), .at(0)),
        ])
    func resume(position: FramePosition, expected: FrameRing.Resumption) {
        #expect(ring(stream(0..<10, keys: [2])).resume(after: position) == expected)
    }

    @Test("What the limits took is counted for a receiver that still wanted it")
    func resumeAfterTrim() {
        let ring = ring(stream(0..<10, keys: [2]), FrameRingLimits(frameCountMax: 4))
        #expect(ring.oldest == at(6))
        #expect(ring.resume(after: at(5)) == .at(6))
        #expect(ring.resume(after: at(3)) == .lost(count: 2))
        #expect(ring.resume(after: at(3, 0)) == .lost(count: nil))
    }

    @Test("Bytes and frames are bounded whatever happens; one frame always stays (D13)")
    func bounds() {
        let bytes = ring(stream(0..<100, keys: [2]), FrameRingLimits(byteCountMax: 500))
        #expect(bytes.byteCount <= 500)
        #expect(ring(stream(0..<100, keys: [2]), FrameRingLimits(frameCountMax: 7)).endIndex == 100)
        var large = FrameRing(limits: FrameRingLimits(byteCountMax: 100))
        #expect(large.append(relayFrame(0, byteCount: 5000)) == .appended)
        #expect(!large.isEmpty)
    }

    @Test("Old frames go by their time, but never the last key frame and what follows it")
    func duration() {
        let limits = FrameRingLimits(duration: .milliseconds(200))
        #expect(ring(stream(0..<100, keys: [2]), limits).firstIndex == 0)
        #expect(ring(stream(0..<100, keys: [2, 50]), limits).firstIndex == 50)
        #expect(ring(stream(0..<100, keys: [2, 50, 98]), limits).firstIndex == 94)
    }

    @Test("A receiver that starts later is given the newest configuration of each track from before its start")
    func configurations() {
        var ring = ring(stream(0..<10, keys: [2, 7]))
        #expect(ring.configurations(before: 0).isEmpty)
        #expect(ring.configurations(before: 7).map(\.position) == [at(0), at(1)])
        _ = ring.append(relayFrame(10, flags: .configuration))
        #expect(ring.configurations(before: 7).map(\.track) == [1])
        #expect(ring.configurations(before: 11).map(\.position) == [at(10), at(1)])
    }

    @Test("Configurations repeated at a join serve every receiver, from the first index on")
    func adopted() {
        var ring = FrameRing()
        ring.adopt(repeated: relayFrame(0, flags: .configuration).repeated())
        ring.adopt(repeated: relayFrame(1, track: 1, flags: .configuration, codec: .aac).repeated())
        _ = ring.append(relayFrame(40, flags: .key))
        #expect(ring.liveIndex == 0)
        #expect(ring.configurations(before: 0).map(\.track) == [0, 1])
        #expect(ring.hasVideo)
    }

    @Test("A new epoch drops the old one's configurations, and keeps its own that were repeated before its first frame")
    func adoptedNewEpoch() {
        var ring = ring(stream(0..<10, keys: [2]))
        ring.adopt(repeated: relayFrame(0, epoch: 2, flags: .configuration).repeated())
        ring.adopt(repeated: relayFrame(1, epoch: 2, track: 1, flags: .configuration, codec: .aac).repeated())
        _ = ring.append(relayFrame(57, epoch: 2, flags: .key))
        #expect(ring.configurations(before: ring.endIndex).map(\.position) == [at(0, 2), at(1, 2)])
        ring.adopt(repeated: relayFrame(0, epoch: 1, flags: .configuration).repeated())
        #expect(ring.configurations(before: ring.endIndex).map(\.position.epoch) == [2, 2])
    }
}
