import Logging
import Synchronization

/// Collects the metadata of what is logged.
final class LogFacts: LogHandler, Sendable {
    private let lines = Mutex<[Logger.Metadata]>([])

    var logger: Logger { Logger(label: "test") { [self] _ in self } }

    /// One fact of each line; empty where a line has none.
    subscript(_ key: String) -> [String] { lines.withLock { $0.map { "\($0[key] ?? "")" } } }

    var metadata: Logger.Metadata {
        get { [:] }
        set { _ = newValue }
    }
    var logLevel: Logger.Level {
        get { .trace }
        set { _ = newValue }
    }
    subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { nil }
        set { _ = newValue }
    }

    func log(event: LogEvent) { lines.withLock { $0.append(event.metadata ?? [:]) } }
}
