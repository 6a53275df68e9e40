package import Logging
import Synchronization

/// Keeps what is logged from a level on, for tests to look at.
package final class LogLines: Sendable {
    package struct Line: Sendable {
        package var level: Logger.Level
        package var message: String
        package var facts: Logger.Metadata
    }

    private let all = Mutex<[Line]>([])
    private let level: Logger.Level

    package init(from level: Logger.Level = .trace) { self.level = level }

    package var logger: Logger { Logger(label: "test") { [self] _ in Handler(lines: self, logLevel: level) } }

    package func with(_ message: String) -> [Line] { all.withLock { $0.filter { $0.message == message } } }

    /// One fact of each line; empty where a line does not have it.
    package subscript(_ key: String) -> [String] { all.withLock { $0.map { "\($0.facts[key] ?? "")" } } }

    /// All lines, with their facts.
    package var text: String {
        all.withLock { $0.map { "\($0.level): \($0.message) \($0.facts)\n" }.joined() }
    }

    private struct Handler: LogHandler {
        let lines: LogLines
        var metadata: Logger.Metadata = [:]
        var logLevel: Logger.Level

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            let line = Line(level: event.level, message: "\(event.message)", facts: event.metadata ?? [:])
            lines.all.withLock { $0.append(line) }
        }
    }
}
