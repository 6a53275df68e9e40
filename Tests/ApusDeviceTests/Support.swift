import ApusCore
import ApusDevice
import ApusMedia
import NIOCore
import Synchronization

/// What a source delivered, collected until its end.
struct Delivered: Sendable {
    struct Frame: Sendable {
        var track: UInt8
        var pts: Int64
        var dtsDelta: Int32
        var flags: MediaFlags
        var payload: ByteBuffer
        var at: MonotonicTime
        var dts: Int64 { pts + Int64(dtsDelta) }
    }
    var configurations: [(track: UInt8, configuration: TrackConfiguration)] = []
    var frames: [Frame] = []
    var isEnded = false
    var failure: ApusError?

    func frames(track: UInt8) -> [Frame] { frames.filter { $0.track == track } }
    func configuration(_ track: UInt8) -> TrackConfiguration? {
        configurations.first { $0.track == track }?.configuration
    }
}

/// Runs a source until it ends, or until enough frames came; at most `seconds`.
func collect(from source: any MediaSource, frames count: Int = .max, seconds: Double = 20) async -> Delivered {
    let (stream, continuation) = AsyncStream.makeStream(of: Delivered.self)
    let state = Mutex(Delivered())
    source.start { event in
        let isOver = state.withLock { state in
            switch event {
            case .configuration(let track, let configuration): state.configurations.append((track, configuration))
            case .frame(let track, let pts, let delta, let flags, let payload):
                guard state.frames.count < count else { return false }
                state.frames.append(
                    .init(track: track, pts: pts, dtsDelta: delta, flags: flags, payload: payload, at: .now()))
                if state.frames.count == count { source.stop() }
            case .ended: state.isEnded = true
            case .failed(let error): state.failure = error
            }
            return state.isEnded || state.failure != nil
        }
        if isOver {
            continuation.yield(state.withLock { $0 })
            continuation.finish()
        }
    }
    let deadline = Task {
        try await Task.sleep(for: .seconds(seconds))
        source.stop()
    }
    defer { deadline.cancel() }
    for await result in stream { return result }
    return state.withLock { $0 }
}
