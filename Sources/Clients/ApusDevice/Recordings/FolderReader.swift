import ApusClient
import ApusCore
import ApusMedia
import Foundation
import Logging

/// Reads a recording from the files of a ``RecordingFolder``, one after the other.
///
/// A file that cannot be read, or not to its end, is left for the next one. Used on one thread.
final class FolderReader: RecordingReader {
    private let folder: RecordingFolder
    private let source: UInt16
    /// The start of the recording, in Unix milliseconds.
    private let start: Int64
    private let interrupt: LibAVInterrupt
    private var file: RecordingIndex.File
    private var reader: FileReader?
    /// What the next calls return, in order.
    private var waiting: [SourceEvent] = []
    private var configurations: [UInt8: TrackConfiguration] = [:]
    /// What is added to the times of this file, in microseconds.
    private var offset: Int64 = 0
    /// The last decode time that was returned.
    private var last = Int64.min

    /// - Throws: 21032 if no file has this time any more, 10026.
    init(
        _ folder: RecordingFolder, source: UInt16, in recording: Recording, at time: Int64
    ) throws(ApusError) {
        (self.folder, self.source, start) = (folder, source, recording.start.milliseconds)
        guard let file = folder.file(of: source, at: time) else { throw ApusError(.recordingListEmpty) }
        self.file = file
        interrupt = try LibAVInterrupt()
        do throws(ApusError) {
            try open(from: max(0, time - file.start) * 1000)
        } catch {
            skip(error)
            guard openNext() else { throw error }
        }
    }

    /// Opens the next file that can be read. Returns false behind the last one.
    private func openNext() -> Bool {
        while let next = folder.file(of: source, after: file) {
            file = next
            do throws(ApusError) {
                try open(from: 0)
                return true
            } catch {
                skip(error)
            }
        }
        return false
    }

    func next() throws(ApusError) -> SourceEvent {
        while true {
            if !waiting.isEmpty { return waiting.removeFirst() }
            if let frame = nextFrame() {
                if let configuration = frame.configuration { configured(frame.track, configuration) }
                waiting.append(event(of: frame))
                continue
            }
            guard openNext() else { return .ended }
        }
    }

    /// Nil at the end of the file, also where it is damaged.
    private func nextFrame() -> SourceFrame? {
        do throws(ApusError) { return try reader?.next() } catch {
            skip(error)
            return nil
        }
    }

    private func skip(_ error: ApusError) {
        reader = nil
        let path = folder.openPath(of: source, file)
        if !FileManager.default.fileExists(atPath: path) { folder.forget(file, of: source) }
        folder.log.warning(
            "A recording cannot be read further",
            metadata: Logger.facts(of: error).merging([LogKey.path: "\(path)"]) { $1 })
    }

    private func event(of frame: SourceFrame) -> SourceEvent {
        let dts = max(frame.dts + offset, last == .min ? .min : last + 1)
        last = dts
        let pts = max(frame.pts + offset, dts)
        return .frame(
            track: frame.track, ptsMicroseconds: pts, dtsDeltaMicroseconds: Int32(clamping: dts - pts),
            flags: frame.flags, payload: frame.payload)
    }

    private func configured(_ track: UInt8, _ configuration: TrackConfiguration) {
        guard configurations.updateValue(configuration, forKey: track) != configuration else { return }
        waiting.append(.configuration(track: track, configuration))
    }

    /// Opens the file at the key frame at this time of it, or before.
    private func open(from time: Int64) throws(ApusError) {
        let path = folder.openPath(of: source, file)
        do throws(ApusError) {
            try open(path, from: time)
        } catch {
            let last = folder.openPath(of: source, file)
            guard last != path else { throw error }
            try open(last, from: time)
        }
    }

    private func open(_ path: String, from time: Int64) throws(ApusError) {
        reader = nil
        offset = (file.start - start) * 1000
        let skipped = time > 0 ? try framesBefore(time, path) : 0
        let reader = try FileReader(path: path, loops: false, interrupt: interrupt)
        for (track, configuration) in try reader.configurations().enumerated() {
            configured(UInt8(track), configuration)
        }
        for _ in 0..<skipped { _ = try reader.next() }
        self.reader = reader
    }

    /// The frames before the last key frame that is not behind a time of the file.
    private func framesBefore(_ time: Int64, _ path: String) throws(ApusError) -> Int {
        let reader = try FileReader(path: path, loops: false, interrupt: interrupt)
        _ = try reader.configurations()
        var (count, found) = (0, 0)
        // The rest of a damaged file is not needed for this.
        while let frame = try? reader.next() {
            if frame.flags.contains(.key) {
                if frame.pts > time { break }
                found = count
            }
            count += 1
        }
        return found
    }

    /// The length of a file, in milliseconds, up to where it can be read.
    ///
    /// - Throws: 10026 if it has no frame that can be read.
    static func length(ofFile path: String) throws(ApusError) -> Int64 {
        LibAV.prepare()
        let reader = try FileReader(path: path, loops: false, interrupt: try LibAVInterrupt())
        _ = try reader.configurations()
        var end: Int64 = 0
        while let frame = try? reader.next() { end = max(end, frame.pts) }
        guard end > 0 else { throw ApusError(.mediaUnreadable, "the file \(path) has no frames") }
        return end / 1000
    }
}
