public import ApusClient
public import ApusCore
public import Foundation

/// Where a device keeps what it has recorded (IV-C5), such as a ``RecordingFolder``. A device with a store of its own
/// implements this.
///
/// Isolation: called from any task or thread; ``reader(of:at:)`` and the reader may block.
public protocol RecordingStore: Sendable {
    /// The recordings that have a part between two times, oldest first.
    ///
    /// - Parameters:
    ///   - source: the number of the recorded source.
    ///   - limit: of those, the oldest.
    func recordings(of source: UInt16, from: Date, to: Date, limit: Int) -> [Recording]

    /// Reads a recording from the key frame at a time, or before it. Called on a thread of the playback.
    ///
    /// - Parameter time: lies within the recording.
    /// - Throws: 21032 if it was removed meanwhile, 10026 if it cannot be read.
    func reader(of source: UInt16, in recording: Recording, at time: Date) throws(ApusError) -> any RecordingReader

    /// Erases what had ended at a time: the device was handed over then, without its data (docs/sharing.md). The
    /// default erases nothing; the cluster lets no account see what is older in any case.
    func erase(before time: Date)
}

extension RecordingStore {
    public func erase(before time: Date) {}
}

/// Reads one recording in decode order. Used on one thread.
public protocol RecordingReader: AnyObject {
    /// The next event: the configurations first, then frames, and `.ended` behind the last one. Times count from the
    /// start of the recording, in microseconds.
    ///
    /// - Throws: 10026 if the rest cannot be read.
    func next() throws(ApusError) -> SourceEvent
}

extension RecordingStore {
    /// The recording that has this time, or the next one.
    func recording(of source: UInt16, at time: Date) -> Recording? {
        let latest = Date(milliseconds: PlaybackMessages.timeMax)
        return recordings(of: source, from: time, to: max(time, latest), limit: 1).first
    }
}
