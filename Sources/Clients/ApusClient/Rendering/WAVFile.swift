public import ApusCore
public import ApusMedia
import Glibc
import Synchronization

/// Writes sound to a WAV file, with silence where the sound has gaps.
///
/// The sizes in the header are written at the end. Of a file without its end, players take everything that is there.
///
/// Concurrency model: see ``AudioRenderable``.
public final class WAVFile: AudioRenderable {
    /// How much longer than the time since the file was created all silence can be, in seconds. Longer gaps are
    /// shortened: their length is a number of another side.
    public static let silenceMaxSeconds = 60
    /// Gaps of less than this, in microseconds, are not filled: times of decoded frames are not exact.
    private static let gapMinMicroseconds: Int64 = 60_000
    private static let headerByteCount = 44

    public let sampleRate: Int
    private let path: String
    private let file: Int32
    private let state = Mutex(State())
    private let created = MonotonicTime.now()

    private struct State {
        var byteCount = 0
        /// The samples of silence in the file.
        var silence = 0
        /// The time after the last sample; nil before the first.
        var end: Int64?
        var isClosed = false
    }

    /// Creates the file, or empties it.
    ///
    /// - Throws: 10021 if it cannot be written; 10022 if the rate is not one of ``SoundSamples/sampleRates``.
    public init(path: String, sampleRate: Int = 48_000) throws(ApusError) {
        guard SoundSamples.sampleRates.contains(sampleRate) else {
            throw ApusError(.configurationInvalid, "a WAV file with \(sampleRate) samples a second is not supported")
        }
        (self.path, self.sampleRate) = (path, sampleRate)
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o644)
        guard file >= 0 else { throw Self.failed(path, errno) }
        if let number = writeAll(file, Self.header(sampleRate: sampleRate, byteCount: nil)) {
            // The file is closed when this is released.
            throw Self.failed(path, number)
        }
    }

    deinit { try? finish() }

    public func render(_ sound: SoundSamples) throws(ApusError) {
        let silence = state.withLock { state in
            defer { state.end = sound.endMicroseconds }
            guard let end = state.end else { return 0 }
            let (gap, isTooLong) = sound.ptsMicroseconds.subtractingReportingOverflow(end)
            guard isTooLong || gap >= Self.gapMinMicroseconds else { return 0 }
            let seconds = Self.silenceMaxSeconds + Int((MonotonicTime.now() - created).components.seconds)
            let room = max(0, seconds * sampleRate - state.silence)
            let longest = Int64(seconds) * 1_000_000
            let wanted = Int((isTooLong ? longest : min(gap, longest)) * Int64(sampleRate) / 1_000_000)
            let count = min(wanted, room)
            state.silence += count
            return count
        }
        if silence > 0 { try write([UInt8](repeating: 0, count: silence * 2)) }
        // The samples of this machine and those of the file are little endian.
        try write(sound.samples.withUnsafeBytes { Array($0) })
    }

    private func write(_ bytes: [UInt8]) throws(ApusError) {
        guard !state.withLock({ $0.isClosed }) else { return }
        if let number = writeAll(file, bytes) { throw Self.failed(path, number) }
        state.withLock { $0.byteCount += bytes.count }
    }

    public func finish() throws(ApusError) {
        let byteCount: Int? = state.withLock { state in
            guard !state.isClosed else { return nil }
            state.isClosed = true
            return state.byteCount
        }
        guard let byteCount else { return }
        defer { close(file) }
        let header = Self.header(sampleRate: sampleRate, byteCount: byteCount)
        // SAFETY: the pointer is used only inside the closure.
        let written = header.withUnsafeBytes { pwrite(file, $0.baseAddress, $0.count, 0) }
        // A pipe cannot be written from its start again; its reader takes what came.
        guard written == header.count || errno == ESPIPE else { throw Self.failed(path, errno) }
    }

    private static func failed(_ path: String, _ number: Int32) -> ApusError {
        ApusError(.storageFailed, "the sound file \(path) cannot be written: \(String(cString: strerror(number)))")
    }

    /// RIFF with one chunk of PCM format and one of data.
    ///
    /// - Parameter byteCount: nil: the size is not known yet.
    private static func header(sampleRate: Int, byteCount: Int?) -> [UInt8] {
        func four(_ value: Int) -> [UInt8] { (0..<4).map { UInt8(truncatingIfNeeded: value >> ($0 * 8)) } }
        func two(_ value: Int) -> [UInt8] { Array(four(value)[..<2]) }
        let unknown = Int(UInt32.max)
        let size = min(byteCount ?? unknown, unknown)
        var bytes = Array("RIFF".utf8) + four(min(size + headerByteCount - 8, unknown)) + Array("WAVEfmt ".utf8)
        bytes += four(16) + two(1) + two(1) + four(sampleRate) + four(sampleRate * 2) + two(2) + two(16)
        return bytes + Array("data".utf8) + four(size)
    }
}
