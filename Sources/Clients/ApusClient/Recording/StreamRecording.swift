import ApusCore
import ApusMedia
import Synchronization

/// The recording that a player makes while it plays (IV-C12), one at a time.
///
/// Isolation: any thread.
final class StreamRecording: Sendable {
    private struct State {
        var recorder: MP4Recorder?
        /// With which a recording begins.
        var configurations = TrackConfigurations()
    }
    private let state = Mutex(State())

    /// Passes a frame that was played.
    func write(_ frame: MediaFrame) {
        state.withLock { state in
            state.configurations.put(frame)
            state.recorder?.write(frame)
        }
    }

    /// - Throws: 21034 if a recording is in progress, 10021 if the file cannot be written.
    func start(_ path: String) throws(ApusError) {
        // Before the file is touched: it may be the one that is being recorded.
        guard state.withLock({ $0.recorder == nil }) else { throw ApusError(.alreadyRecording) }
        let recorder = try MP4Recorder(path: path)
        let isFirst = state.withLock { state in
            guard state.recorder == nil else { return false }
            for frame in state.configurations.all { recorder.write(frame) }
            state.recorder = recorder
            return true
        }
        guard isFirst else {
            _ = try? recorder.finish()
            throw ApusError(.alreadyRecording)
        }
    }

    /// - Returns: the frames in the file; 0 if nothing was being recorded.
    /// - Throws: as ``MP4Recorder/finish()``.
    func stop() async throws(ApusError) -> Int {
        let recorder = state.withLock { state in
            defer { state.recorder = nil }
            return state.recorder
        }
        guard let recorder else { return 0 }
        return try await BlockingWork.run { () throws(ApusError) in try recorder.finish() }
    }
}
