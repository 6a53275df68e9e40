import CoreMetrics
package import Logging
import Synchronization

/// A rate limit for log lines: a number of lines per message and interval. Further lines are counted.
///
/// Pure value; the time is passed in. Memory is bounded by ``messagesMax``; further messages share one allowance.
package struct LogAllowance: Sendable {
    package enum Verdict: Sendable, Equatable {
        /// Write the line. `leftOut` lines of this message were suppressed since the last one.
        case write(leftOut: Int)
        case leaveOut
    }

    private struct Window {
        var start: MonotonicTime
        var written = 0
        var leftOut = 0
    }

    /// The most messages with an allowance of their own.
    package static let messagesMax = 64

    private let linesMax: Int
    private let interval: Duration
    private var windows: [String: Window] = [:]

    /// - Parameter linesMax: lines of one message in one interval.
    package init(linesMax: Int, interval: Duration) {
        self.linesMax = max(1, linesMax)
        self.interval = interval
    }

    package mutating func take(_ message: String, at now: MonotonicTime) -> Verdict {
        let key = windows[message] != nil || windows.count < Self.messagesMax ? message : ""
        var window = windows[key] ?? Window(start: now)
        defer { windows[key] = window }
        if now - window.start >= interval {
            window.start = now
            window.written = 0
        }
        guard window.written < linesMax else {
            window.leftOut += 1
            return .leaveOut
        }
        window.written += 1
        defer { window.leftOut = 0 }
        return .write(leftOut: window.leftOut)
    }

    /// The messages whose interval has ended and that had suppressed lines, with their numbers. Each is returned once.
    package mutating func takeLeftOut(at now: MonotonicTime) -> [(message: String, count: Int)] {
        var found: [(message: String, count: Int)] = []
        for (message, window) in windows where now - window.start >= interval {
            if window.leftOut > 0 { found.append((message, window.leftOut)) }
            windows[message] = nil
        }
        return found.sorted { $0.message < $1.message }
    }
}

/// A logger for messages that traffic from outside can cause. It writes a bounded number of lines for each message, and
/// reports how many were suppressed.
///
/// The next line of the message carries `apus.left_out`. If there is none, ``writeLeftOut(now:)`` reports the number.
/// `apus_log_lines_left_out_total` counts all suppressed lines.
///
/// Concurrency: any thread. A `Mutex` guards the counts; it is not held while a line is written.
package final class LogLimiter: Sendable {
    private let log: Logger
    private let allowance: Mutex<LogAllowance>
    private let leftOut = Counter(label: "apus_log_lines_left_out_total")

    /// - Parameter linesMax: lines of one message in one interval.
    package init(_ log: Logger, linesMax: Int = 10, interval: Duration = .seconds(10)) {
        self.log = log
        allowance = Mutex(LogAllowance(linesMax: linesMax, interval: interval))
    }

    /// Writes the line, or counts it.
    package func log(
        _ level: Logger.Level, _ message: Logger.Message, metadata: @autoclosure () -> Logger.Metadata = [:],
        now: MonotonicTime = .now()
    ) {
        guard log.logLevel <= level else { return }
        switch allowance.withLock({ $0.take(message.description, at: now) }) {
        case .leaveOut: leftOut.increment()
        case .write(let count):
            var facts = metadata()
            if count > 0 { facts[LogKey.leftOut] = "\(count)" }
            log.log(level: level, message, metadata: facts)
        }
    }

    /// Reports suppressed lines that no later line has reported. Call it about once a second.
    package func writeLeftOut(now: MonotonicTime = .now()) {
        for (message, count) in allowance.withLock({ $0.takeLeftOut(at: now) }) {
            log.notice(
                "Lines of a message were left out",
                metadata: [LogKey.message: "\(message)", LogKey.leftOut: "\(count)"])
        }
    }
}
