import ApusCore
import ApusDevice
import ApusMedia
import NIOCore
import Testing

@Suite("The test pattern (issue: device agent)")
struct TestPatternTests {
    @Test(
        "The text form is read, and a wrong one is told",
        arguments: ["", "x", "1280x720", "1280@25", "1280x720@", "a x b@c"])
    func parsing(text: String) throws {
        let pattern = try TestPattern(parsing: "1280x720@25")
        #expect(pattern.description == "1280x720@25")
        let error = #expect(throws: ApusError.self) { try TestPattern(parsing: text) }
        #expect(error?.code == .configurationInvalid)
        #expect(error?.message.contains("1280x720@25") ?? false)
    }

    @Test(
        "Sizes and rates out of range are told",
        arguments: ["63x64@25", "1281x720@25", "64x5000@25", "64x64@0", "64x64@999"])
    func ranges(text: String) {
        let error = #expect(throws: ApusError.self) { try TestPattern(parsing: text) }
        #expect(error?.code == .configurationInvalid)
    }

    @Test("A key frame comes each interval, sound beside it, and no frame refers ahead")
    func stream() async throws {
        var pattern = try TestPattern(parsing: "320x240@25")
        pattern.keyIntervalSeconds = 1
        let result = await collect(from: TestPatternSource(pattern, frameCountMax: 75, isPaced: false))
        #expect(result.failure == nil)
        #expect(result.isEnded)
        let video = result.frames(track: 0)
        #expect(video.count == 75)
        #expect(video.enumerated().filter { $1.flags.contains(.key) }.map(\.offset) == [0, 25, 50])
        #expect(video.enumerated().allSatisfy { $1.pts == Int64($0) * 40_000 && $1.dtsDelta == 0 })
        #expect(result.configuration(0)?.width == 320)
        #expect(ParameterSets.lengthByteCount(record: result.configuration(0)?.extraData ?? [], codec: .h264) == 4)
        #expect(result.configuration(1)?.codec == .aac)
        #expect(abs(result.frames(track: 1).count - 3 * 48_000 / 1024) <= 3)
        for frame in video {
            #expect(NALUnits.ranges(lengthPrefixed: Array(frame.payload.readableBytesView), prefix: 4) != nil)
        }
    }

    @Test("The bit rate is near what was asked for")
    func bitRate() async throws {
        var pattern = try TestPattern(parsing: "1280x720@25")
        pattern.hasTone = false
        let result = await collect(from: TestPatternSource(pattern, frameCountMax: 150, isPaced: false))
        let bytes = result.frames.reduce(0) { $0 + $1.payload.readableBytes }
        let rate = bytes * 8 / 6
        #expect(rate > 500_000 && rate < 1_500_000, "\(rate) bit/s")
        #expect(result.configurations.count == 1)
    }

    @Test("Frames come at their time, and a stop is heard")
    func pace() async throws {
        let pattern = try TestPattern(parsing: "160x120@50")
        let result = await collect(from: TestPatternSource(pattern), frames: 100)
        let video = result.frames(track: 0)
        let first = try #require(video.first)
        let last = try #require(video.last)
        #expect(abs(Double(last.pts - first.pts) / 1000 - (last.at - first.at).milliseconds) < 60)
        #expect(result.isEnded)
    }
}
