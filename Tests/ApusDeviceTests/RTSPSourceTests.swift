import ApusCore
import ApusDevice
import ApusMedia
import Logging
import NIOCore
import Synchronization
import Testing

@Suite("A network camera (RFC 2326)", .serialized)
struct RTSPSourceTests {
    let log = Logger(label: "test")

    private func film() async throws -> (TrackConfiguration, [Delivered.Frame]) {
        var pattern = try TestPattern(parsing: "320x240@25")
        pattern.hasTone = false
        pattern.keyIntervalSeconds = 1
        let film = await collect(from: TestPatternSource(pattern, frameCountMax: 50, isPaced: false))
        return (try #require(film.configuration(0)), film.frames)
    }

    @Test("The camera's pictures come unchanged, and go on after it went away")
    func reconnect() async throws {
        let (configuration, frames) = try await film()
        let camera = try CameraServer(configuration: configuration, frames: frames)
        defer { camera.stop() }
        let source = RTSPSource(url: "rtsp://127.0.0.1:\(camera.port)/live", log: log)
        let result = await collect(from: source, frames: 70, seconds: 30)
        #expect(result.failure == nil)
        #expect(result.configuration(0)?.codec == .h264)
        #expect(result.configuration(0)?.trackCount == 1)
        #expect(camera.connectionCount.load(ordering: .relaxed) == 2)
        try #require(result.frames.count == 70)
        #expect(result.frames.first?.flags.contains(.key) ?? false)
        for index in 0..<48 { #expect(result.frames[index].payload == frames[index].payload, "frame \(index)") }
        let times = result.frames.map(\.dts)
        #expect(zip(times, times.dropFirst()).allSatisfy(<))
    }

    @Test("A wrong password ends the source and is not shown")
    func refused() async throws {
        let (configuration, frames) = try await film()
        let camera = try CameraServer(configuration: configuration, frames: frames, status: "401 Unauthorized")
        defer { camera.stop() }
        let result = await collect(from: RTSPSource(url: "rtsp://me:secret@127.0.0.1:\(camera.port)/live", log: log))
        let failure = try #require(result.failure)
        #expect(failure.code == .mediaUnreadable)
        #expect(failure.message.contains("password") && !failure.message.contains("secret"))
    }

    @Test("An address that is none ends the source; one where nobody answers is tried until the stop")
    func addresses() async throws {
        let wrong = await collect(from: RTSPSource(url: "http://127.0.0.1/", log: log))
        #expect(wrong.failure?.code == .configurationInvalid)
        let start = MonotonicTime.now()
        let absent = await collect(from: RTSPSource(url: "rtsp://127.0.0.1:9/", log: log), seconds: 1)
        #expect(absent.isEnded && absent.failure == nil)
        #expect((MonotonicTime.now() - start) < .seconds(3))
    }
}
