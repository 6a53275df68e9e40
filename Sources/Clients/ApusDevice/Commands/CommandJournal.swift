public import ApusCore
import Foundation
import Synchronization

/// The file in which a device notes the commands that it carries out, so that each is carried out once, even if the
/// device restarts or loses its power (IV-D15).
///
/// A text file with one entry a line, each with a checksum. What the next start must know is synced to the disk before
/// the device goes on. A damaged line is skipped. Once the file has ``byteCountMax`` bytes, it is replaced by one with
/// what is still needed.
///
/// Concurrency model: any thread; a `Mutex` guards the file. Appending blocks for as long as the disk takes.
public final class CommandJournal: Sendable {
    /// The size at which the file is replaced.
    public static let byteCountMax = 256 << 10

    private struct State {
        var file: Int32
        var byteCount: Int
        var ledger: CommandLedger
        /// The end of the file may have a part of a line.
        var isTorn: Bool
        var replaceAt = CommandJournal.byteCountMax
    }

    private let path: String
    private let state: Mutex<State>
    /// Lines that could not be read when the journal was opened.
    public let damagedCount: Int

    /// Opens the journal, or creates it.
    ///
    /// - Throws: 10021 if the file cannot be read or written, 10020 if another process uses it.
    public init(path: String) throws(ApusError) {
        let file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw Self.failure(path) }
        guard flock(file, LOCK_EX | LOCK_NB) == 0 else {
            close(file)
            throw ApusError(.stateForeign, "another process uses the journal \(path)")
        }
        guard let content = FileManager.default.contents(atPath: path) else {
            close(file)
            throw ApusError(.storageFailed, "the journal \(path) cannot be read")
        }
        var ledger = CommandLedger()
        var damagedCount = 0
        for line in content.split(separator: UInt8(ascii: "\n")) {
            if let entry = Self.entry(String(decoding: line, as: UTF8.self)) {
                ledger.apply(entry)
            } else {
                damagedCount += 1
            }
        }
        let isTorn = !content.isEmpty && content.last != UInt8(ascii: "\n")
        (self.path, self.damagedCount) = (path, damagedCount)
        state = Mutex(State(file: file, byteCount: content.count, ledger: ledger, isTorn: isTorn))
    }

    deinit { _ = state.withLock { close($0.file) } }

    package var ledger: CommandLedger { state.withLock { $0.ledger } }

    /// Appends an entry.
    ///
    /// - Parameter isSynced: return once the entry is on the disk.
    /// - Throws: 10021 if it cannot be written. The entry may then be in the file or not.
    package func append(_ entry: CommandJournalEntry, isSynced: Bool) throws(ApusError) {
        let result = state.withLock { state -> Result<Void, ApusError> in
            do throws(ApusError) {
                let line = Self.line(entry)
                let before = state.isTorn ? "\n" : ""
                state.isTorn = true
                try write(before + line, to: state.file)
                state.isTorn = false
                state.byteCount += before.utf8.count + line.utf8.count
                guard !isSynced || fdatasync(state.file) == 0 else { throw Self.failure(path) }
                state.ledger.apply(entry)
                if state.byteCount >= state.replaceAt { replace(&state) }
                return .success(())
            } catch {
                return .failure(error)
            }
        }
        try result.get()
    }

    private func write(_ text: String, to file: Int32) throws(ApusError) {
        var bytes = Array(text.utf8)[...]
        while !bytes.isEmpty {
            let count = bytes.withUnsafeBytes { Glibc.write(file, $0.baseAddress, $0.count) }
            if count < 0, errno == EINTR { continue }
            guard count > 0 else { throw Self.failure(path) }
            bytes = bytes.dropFirst(count)
        }
    }

    /// Replaces the file by one with what is still needed. If that fails, the old one goes on to grow for a while.
    private func replace(_ state: inout State) {
        let text = state.ledger.entries.map { Self.line($0) }.joined()
        let new = path + ".new"
        let file = open(new, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0o600)
        guard file >= 0, flock(file, LOCK_EX | LOCK_NB) == 0, (try? write(text, to: file)) != nil, fsync(file) == 0,
            rename(new, path) == 0
        else {
            if file >= 0 { close(file) }
            unlink(new)
            return state.replaceAt += Self.byteCountMax
        }
        close(state.file)
        (state.file, state.byteCount, state.isTorn) = (file, text.utf8.count, false)
        state.replaceAt = max(Self.byteCountMax, 2 * state.byteCount)
        // Until the folder is synced, a power cut brings the old file back, which knows the same.
        let folder = open(URL(fileURLWithPath: path).deletingLastPathComponent().path, O_RDONLY | O_CLOEXEC)
        guard folder >= 0 else { return }
        fsync(folder)
        close(folder)
    }

    // MARK: - Lines

    private static func line(_ entry: CommandJournalEntry) -> String {
        let text = entry.text
        return "\(String(StableHash.hash(text), radix: 16)) \(text)\n"
    }

    private static func entry(_ line: String) -> CommandJournalEntry? {
        guard let space = line.firstIndex(of: " "), let sum = UInt64(line[..<space], radix: 16) else { return nil }
        let text = line[line.index(after: space)...]
        return sum == StableHash.hash(text.utf8) ? CommandJournalEntry(text) : nil
    }

    private static func failure(_ path: String) -> ApusError {
        ApusError(.storageFailed, "the journal \(path) cannot be used: \(String(cString: strerror(errno)))")
    }
}
