import ApusChannels
import ApusCore
import ApusMedia
import Synchronization

/// Listens to one utterance: the frames of a device's microphone until the end of what is said.
///
/// Concurrency model: one task runs ``run(_:_:until:)``; ``stop()`` may be called from any thread.
final class Listener: Sendable {
    struct Result: Sendable {
        var end: HearingEnd
        var heard = Heard()
        /// When the words ended, and how much silence followed, in microseconds of the microphone.
        var spoken: Int64
        var waited: Int64
        /// When the end was found.
        var endedAt: MonotonicTime
    }

    /// Frames come every 20 ms; a later look delays the end by as much.
    private static let interval = Duration.milliseconds(10)
    /// No frame came for this time: the device has left, or was never there.
    private static let frameTimeout = Duration.seconds(4)
    /// The longest time of an utterance in addition to its longest sound, which may come late.
    private static let lateTime = Duration.seconds(4)

    private let stopped = Mutex(false)

    /// Ends the utterance, since another one of the device begins.
    func stop() { stopped.withLock { $0 = true } }

    var isStopped: Bool { stopped.withLock(\.self) }

    /// - Parameters:
    ///   - isComplete: nothing that may follow changes the meaning of a sentence.
    ///   - sounded: called with true when the person begins to make a sound, and with false if it has no words so far.
    /// - Throws: 10006 if it was stopped, 10005 at the deadline, 10026 if the microphone's codec cannot be read, 10015
    ///   if no frame comes, otherwise why the last provider failed.
    func run(
        _ tap: FrameTap, _ recognition: Recognition, _ limits: HearingLimits, recognitionTime: Duration,
        isComplete: (String) -> Bool, sounded: (Bool) -> Void, until deadline: MonotonicTime
    ) async throws(ApusError) -> Result {
        let soundEnd = min(deadline, .now() + .microseconds(limits.utteranceMax) + Self.lateTime)
        var machine = HearingStateMachine(limits)
        var (reader, sound) = (SoundReader(), SpokenSound())
        var lastFrame = MonotonicTime.now()
        try await recognition.start()
        while machine.end == nil {
            guard !isStopped, !Task.isCancelled else { throw ApusError(.cancelled, "stopped") }
            _ = try soundEnd.timeLeft()
            var actions: [HearingStateMachine.Action] = []
            let taken = tap.take()
            for frame in taken.frames {
                guard machine.end == nil else { break }
                let samples = try reader.read(frame)
                if !samples.isEmpty { lastFrame = .now() }
                recognition.append(samples)
                for power in sound.append(samples) { machine.heard(power: power, &actions) }
                if frame.flags.contains(.endOfEpoch) { machine.microphoneEnded(&actions) }
            }
            if machine.end == nil, MonotonicTime.now() - lastFrame > Self.frameTimeout {
                throw ApusError(.idleTimeout, "no sound came from the microphone")
            }
            for (number, heard) in try await recognition.take() {
                var answer = heard
                if answer.text.isEmpty { sounded(false) }
                if answer.isWhole, answer.isBeginning, isComplete(answer.text) { answer.isBeginning = false }
                machine.answered(number, answer, &actions)
            }
            for action in actions {
                switch action {
                case .ask(let number, _, let isPause): recognition.ask(number, isPause: isPause)
                case .began: sounded(true)
                case .resumed:
                    sounded(true)
                    recognition.resumed()
                case .ended: break
                }
            }
            if machine.end == nil { try? await Task.sleep(for: Self.interval) }
        }
        let endedAt = MonotonicTime.now()
        let end = machine.end ?? .tooLong
        var result = Result(
            end: end, spoken: machine.speechEnd, waited: machine.now - machine.speechEnd, endedAt: endedAt)
        guard end != .nothing else { return result }
        result.heard = try await recognition.finish(within: recognitionTime, until: deadline)
        return result
    }
}
