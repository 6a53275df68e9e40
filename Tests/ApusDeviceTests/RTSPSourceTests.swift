import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
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

    @Test("A camera that refuses everybody, as while it starts, is asked again, and no log has the password")
    func refused() async throws {
        let (configuration, frames) = try await film()
        let camera = try CameraServer(configuration: configuration, frames: frames, status: "401 Unauthorized")
        defer { camera.stop() }
        let lines = LogLines()
        let url = "rtsp://me:Pw/SECRET1@127.0.0.1:\(camera.port)/user=me&password=SECRET2"
        let result = await collect(from: RTSPSource(url: url, log: lines.logger), seconds: 3)
        #expect(result.isEnded && result.failure == nil)
        // After a second, then after longer: many attempts in a row would lock the camera's account.
        #expect((2...4).contains(camera.connectionCount.load(ordering: .relaxed)))
        #expect(lines.text.contains("127.0.0.1:\(camera.port)") && lines.text.contains("password"))
        #expect(!lines.text.contains("SECRET"), "\(lines.text)")
    }

    @Test("The operator's stop is not logged as the camera's end")
    func stopped() async throws {
        let (configuration, frames) = try await film()
        let camera = try CameraServer(configuration: configuration, frames: frames)
        defer { camera.stop() }
        let lines = LogLines()
        let source = RTSPSource(url: "rtsp://127.0.0.1:\(camera.port)/live", log: lines.logger)
        let result = await collect(from: source, frames: 10)
        #expect(result.isEnded && result.frames.count == 10)
        #expect(lines.text.isEmpty, "\(lines.text)")
    }

    @Test("Neither is a stop while the connection is opened, which the camera does not answer")
    func stoppedEarly() async throws {
        let port = try SilentPort()
        let lines = LogLines()
        let source = RTSPSource(url: "rtsp://127.0.0.1:\(port.port)/live", log: lines.logger)
        let result = await collect(from: source, seconds: 0.5)
        #expect(result.isEnded && result.failure == nil)
        #expect(lines.text.isEmpty, "\(lines.text)")
    }

    @Test("A camera that comes back with another size has another configuration, and its times go on")
    func changed() async throws {
        let (configuration, frames) = try await film()
        var pattern = try TestPattern(parsing: "160x120@25")
        (pattern.hasTone, pattern.keyIntervalSeconds) = (false, 1)
        let small = await collect(from: TestPatternSource(pattern, frameCountMax: 50, isPaced: false))
        let other = try #require(small.configuration(0))
        let camera = try CameraServer(configuration: configuration, frames: frames, then: (other, small.frames))
        defer { camera.stop() }
        let source = RTSPSource(url: "rtsp://127.0.0.1:\(camera.port)/live", log: log)
        let result = await collect(from: source, frames: 70, seconds: 30)
        #expect(result.configurations.map(\.configuration.width) == [320, 160])
        #expect(result.configurations.map(\.configuration.height) == [240, 120])
        let times = result.frames.map(\.dts)
        #expect(result.frames.count == 70 && zip(times, times.dropFirst()).allSatisfy(<))
    }

    @Test("An address that is none ends the source; one where nobody answers is tried until the stop")
    func addresses() async throws {
        let wrong = await collect(from: RTSPSource(url: "http://127.0.0.1/", log: log))
        #expect(wrong.failure?.code == .configurationInvalid)
        let secret = await collect(from: RTSPSource(url: "rtsp//me:secret@127.0.0.1/", log: log))
        #expect(secret.failure.map { !$0.message.contains("secret") } ?? false)
        let start = MonotonicTime.now()
        let absent = await collect(from: RTSPSource(url: "rtsp://127.0.0.1:9/", log: log), seconds: 1)
        #expect(absent.isEnded && absent.failure == nil)
        #expect((MonotonicTime.now() - start) < .seconds(3))
    }
}
