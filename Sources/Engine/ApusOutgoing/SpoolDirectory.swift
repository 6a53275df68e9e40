package import ApusCore
import Foundation
import Synchronization

/// A directory with one file for each message, for a program that sends the messages by other means.
///
/// A file appears with its whole content, by a rename. The program removes it after it has sent the message.
///
/// Isolation: any thread; calls block for the file system.
package final class SpoolDirectory: Sendable {
    private let path: String
    private let countMax: Int
    /// The number of files at the last count, and the time of the count.
    private let counted = Mutex<(count: Int, at: MonotonicTime)>((0, .zero))
    private static let countInterval = Duration.seconds(1)

    package init(path: String, countMax: Int) { (self.path, self.countMax) = (path, countMax) }

    /// Writes a message. A repetition of the message replaces its file.
    ///
    /// - Throws: 10007 if the directory has too many files, 10021 if the file cannot be written.
    package func write(_ message: WebhookMessage) throws(ApusError) {
        let name = "\(path)/\(message.id).json"
        // A repetition needs no room.
        guard FileManager.default.fileExists(atPath: name) || take() else {
            throw ApusError(.overloaded, "the spool directory \(path) is full")
        }
        do {
            let partial = "\(path)/.\(message.id).\(UInt64.random(in: 0...(.max)))"
            defer { try? FileManager.default.removeItem(atPath: partial) }
            try Data(message.body).write(to: URL(fileURLWithPath: partial))
            guard rename(partial, name) == 0 else { throw CocoaError(.fileWriteUnknown) }
        } catch {
            throw ApusError(.storageFailed, "\(name) cannot be written: \(error.localizedDescription)")
        }
    }

    /// Removes a message that the program has not removed yet.
    ///
    /// - Returns: false if the message has no file.
    @discardableResult
    package func remove(_ id: String) -> Bool { unlink("\(path)/\(id).json") == 0 }

    private func take() -> Bool {
        counted.withLock { counted in
            let now = MonotonicTime.now()
            if counted.at == .zero || now - counted.at > Self.countInterval {
                let names = (try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []
                counted = (names.count, now)
            }
            guard counted.count < countMax else { return false }
            counted.count += 1
            return true
        }
    }
}
