import ApusCore
import ApusDevice
import ApusMedia
import Foundation
import NIOCore
import Synchronization

/// Frames as a player gives them: a source's events, numbered as a publisher does.
func publish(_ source: any MediaSource, epoch: UInt32 = 1, seconds: Double = 20) async throws -> [MediaFrame] {
    struct State {
        var frames: [MediaFrame] = []
        var failure: ApusError?
    }
    let (stream, continuation) = AsyncStream.makeStream(of: Void.self)
    let state = Mutex(State())
    source.start { event in
        state.withLock { state in
            func append(_ track: UInt8, _ pts: Int64, _ delta: Int32, _ flags: MediaFlags, _ payload: ByteBuffer) {
                let position = FramePosition(epoch: epoch, sequence: UInt64(state.frames.count))
                state.frames.append(
                    MediaFrame(
                        header: MediaHeader(
                            position: position, ptsMicroseconds: pts, dtsDeltaMicroseconds: delta, flags: flags,
                            track: track),
                        payload: payload))
            }
            switch event {
            case .configuration(let track, let configuration):
                var payload = ByteBuffer()
                configuration.encode(into: &payload)
                append(track, 0, 0, .configuration, payload)
            case .frame(let track, let pts, let delta, let flags, let payload):
                append(track, pts, delta, flags, payload)
            case .ended: continuation.finish()
            case .failed(let error):
                state.failure = error
                continuation.finish()
            }
        }
    }
    let deadline = Task {
        try await Task.sleep(for: .seconds(seconds))
        source.stop()
    }
    defer { deadline.cancel() }
    for await _ in stream {}
    let result = state.withLock { $0 }
    if let failure = result.failure { throw failure }
    return result.frames
}

/// A short test pattern as fast as it encodes.
func pattern(_ text: String = "320x240@25", frames: UInt64 = 75, tone: Bool = true) throws -> TestPatternSource {
    var pattern = try TestPattern(parsing: text)
    pattern.keyIntervalSeconds = 1
    pattern.hasTone = tone
    return TestPatternSource(pattern, frameCountMax: frames, isPaced: false)
}

/// A folder of the test's own, removed at its end.
final class Folder: Sendable {
    let path: String
    init() {
        path = FileManager.default.temporaryDirectory.appendingPathComponent("apus-\(UUID().uuidString)").path
        try? FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    }
    func file(_ name: String) -> String { path + "/" + name }
    deinit { try? FileManager.default.removeItem(atPath: path) }
}

/// Tools of others that tests use as makers of clips and as judges, where the machine has them.
enum Tool {
    static let ffmpeg = find("ffmpeg")
    static let ffprobe = find("ffprobe")

    private static func find(_ name: String) -> String? {
        ["/usr/bin/", "/usr/local/bin/"].map { $0 + name }.first { FileManager.default.isExecutableFile(atPath: $0) }
    }

    /// Runs a tool and gives its standard output; nil where it failed.
    static func run(_ tool: String, _ arguments: [String]) -> String? {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: tool)
        process.arguments = arguments
        let output = Pipe()
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        process.standardInput = FileHandle.nullDevice
        do { try process.run() } catch { return nil }
        let data = output.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        return process.terminationStatus == 0 ? String(decoding: data, as: UTF8.self) : nil
    }
}
