package import ApusCore

/// Folds runs of lines of one kind, such as those of packets, into one line with the facts of the last one and the
/// number of lines: `{…17}` (IV-G1).
///
/// A line of another kind ends the run, and so does a line that comes ``runMax`` after its first one. All other lines
/// pass at once, after the run before them.
///
/// Pure: times are passed in.
package struct LogFolding: Sendable {
    /// The longest time for which a run is held back.
    package static let runMax = Duration.seconds(1)

    private struct Run {
        var kind: String
        var line: String
        var count: Int
        var since: MonotonicTime
    }

    private var run: Run?

    package init() {}

    /// Adds a line, and returns what is to be written.
    ///
    /// - Parameter kind: of a line that may be folded; nil: it may not.
    package mutating func add(_ line: String, kind: String?, now: MonotonicTime) -> [String] {
        guard let kind else { return flush() + [line] }
        guard var current = run, current.kind == kind else {
            let before = flush()
            run = Run(kind: kind, line: line, count: 1, since: now)
            return before
        }
        (current.line, current.count) = (line, current.count + 1)
        run = current
        return now - current.since >= Self.runMax ? flush() : []
    }

    /// Ends the run.
    package mutating func flush() -> [String] {
        guard let run else { return [] }
        self.run = nil
        return [run.count == 1 ? run.line : "\(run.line) {…\(run.count)}"]
    }
}
