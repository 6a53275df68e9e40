import ApusCore
import Logging
import Synchronization
import Testing

@Suite("Limited log lines")
struct LogLimiterTests {
    private let start = MonotonicTime(nanoseconds: 5_000_000_000)

    @Test("So many lines of a message in an interval; the next one says how many were left out")
    func window() {
        var allowance = LogAllowance(linesMax: 2, interval: .seconds(10))
        #expect(allowance.take("a", at: start) == .write(leftOut: 0))
        #expect(allowance.take("a", at: start) == .write(leftOut: 0))
        for _ in 0..<1000 { #expect(allowance.take("a", at: start + .seconds(9)) == .leaveOut) }
        #expect(allowance.take("b", at: start + .seconds(9)) == .write(leftOut: 0))
        #expect(allowance.take("a", at: start + .seconds(10)) == .write(leftOut: 1000))
        #expect(allowance.take("a", at: start + .seconds(10)) == .write(leftOut: 0))
    }

    @Test("What no later line reports is reported once, when the interval is over")
    func leftOut() {
        var allowance = LogAllowance(linesMax: 1, interval: .seconds(10))
        for _ in 0..<5 { _ = allowance.take("a", at: start) }
        _ = allowance.take("b", at: start)
        #expect(allowance.takeLeftOut(at: start + .seconds(9)).isEmpty)
        let found = allowance.takeLeftOut(at: start + .seconds(10))
        #expect(found.map(\.message) == ["a"] && found.map(\.count) == [4])
        #expect(allowance.takeLeftOut(at: start + .seconds(20)).isEmpty)
    }

    @Test("Messages beyond the bound share one allowance, so that memory is bounded")
    func messages() {
        var allowance = LogAllowance(linesMax: 1, interval: .seconds(10))
        for number in 0..<LogAllowance.messagesMax {
            #expect(allowance.take("message \(number)", at: start) == .write(leftOut: 0))
        }
        #expect(allowance.take("one more", at: start) == .write(leftOut: 0))
        #expect(allowance.take("and another", at: start) == .leaveOut)
        #expect(allowance.take("message 0", at: start) == .leaveOut)
    }

    @Test("A limiter writes the lines and the number that was left out, and nothing below the log's level")
    func limiter() {
        let lines = Mutex<[String]>([])
        let limiter = LogLimiter(
            Logger(label: "test") { _ in Handler(lines: { line in lines.withLock { $0.append(line) } }) }, linesMax: 1)
        for _ in 0..<3 { limiter.log(.warning, "full", now: start) }
        limiter.log(.trace, "quiet", now: start)
        limiter.writeLeftOut(now: start + .seconds(10))
        #expect(lines.withLock { $0 } == ["full ", "Lines of a message were left out 2"])
    }

    private struct Handler: LogHandler {
        let lines: @Sendable (String) -> Void
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.info

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            lines("\(event.message) \(event.metadata?[LogKey.leftOut].map { "\($0)" } ?? "")")
        }
    }
}
