import ApusCore
import ApusDevice
import ApusMedia
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
