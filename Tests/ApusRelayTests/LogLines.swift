import Logging
import Synchronization

/// Keeps what is logged, for tests to look at.
final class LogLines: Sendable {
    struct Line: Sendable {
        var message: String
        var facts: Logger.Metadata
    }

    private let all = Mutex<[Line]>([])

    func with(_ message: String) -> [Line] { all.withLock { $0.filter { $0.message == message } } }

    var logger: Logger { Logger(label: "test", factory: { [self] _ in Handler(lines: self) }) }

    private struct Handler: LogHandler {
        let lines: LogLines
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.info

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            lines.all.withLock { $0.append(Line(message: "\(event.message)", facts: event.metadata ?? [:])) }
        }
    }
}
