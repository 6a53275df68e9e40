import ApusCore
import ApusLocal
import Foundation

/// The limits of a row. Every row also requires that no client is ended, no frame is lost, duplicated, wrong or stale,
/// and no live node is declared dead. Times are in milliseconds; nil means no limit.
struct FaultBound: Sendable {
    var gapP99: Double?
    var gapMax: Double?
    /// From the start of a client to its first picture.
    var firstMax: Double?
    /// From the fault to the last `/healthz` that must report it.
    var saidMax: Double?
    /// From a kill to the map that shows it.
    var seenMax: Double?
    /// Limits of figures that only this row has.
    var figures: [String: Double] = [:]

    /// The limits of `apus-bench failover` for kill -9.
    static let kill = FaultBound(gapP99: 120, gapMax: 250)
}

/// A row of the table.
struct FaultRow: Sendable {
    /// Its name in JSON.
    let key: String
    /// The description of the fault.
    let says: String
    let bound: FaultBound
}

/// The results of the rounds of one row.
struct FaultResult: Sendable {
    let row: FaultRow
    private(set) var rounds = 0
    private(set) var clients = 0
    /// Clients that were ended permanently, by error number.
    private(set) var ended: [Int32: Int] = [:]
    /// Clients that were not ended and had no picture.
    private(set) var dark = 0
    private(set) var lost = 0
    private(set) var doubled = 0
    private(set) var wrong = 0
    private(set) var stale = 0
    private(set) var falseDeaths = 0
    private(set) var gaps: [Double] = []
    private(set) var firsts: [Double] = []
    private(set) var said: [Double] = []
    private(set) var unsaid = 0
    private(set) var seen: [Double] = []
    private(set) var figures: [String: Double] = [:]
    /// Rounds that did not complete, and steps that failed.
    private(set) var failures: [String] = []

    init(row: FaultRow) { self.row = row }

    var endedCount: Int { ended.values.reduce(0, +) }

    /// Counts the results of every client of a round.
    /// - Parameter slack: the accepted age of the primary's newest key frame beyond one frame interval: the transit
    ///   time of the camera's frames.
    mutating func count(_ cast: FailoverCast, slack: Duration = .milliseconds(100)) {
        rounds += 1
        clients += cast.viewers.count + cast.publishers.count
        for publisher in cast.publishers { if let error = publisher.endError { end(error) } }
        for (channel, viewer) in cast.viewers {
            let publisher = cast.publishers.indices.contains(channel) ? cast.publishers[channel] : nil
            lost += viewer.lostCount
            doubled += viewer.doubledCount
            wrong += viewer.wrongCount
            stale += viewer.staleCount
            if let publisher { stale += Self.staleAtJoin(viewer, publisher, slack: slack) }
            if let error = viewer.endError {
                end(error)
            } else if let newest = viewer.newest {
                if let publisher, publisher.endError == nil { lost += max(0, publisher.sent - 1 - Int(newest)) }
            } else {
                dark += 1
            }
            if let first = viewer.records.first { firsts.append((first.at - viewer.startedAt).milliseconds) }
        }
    }

    /// The number of frames at the start of a join that are older than the primary's key frame before the join.
    static func staleAtJoin(_ viewer: BenchViewer, _ publisher: BenchPublisher, slack: Duration) -> Int {
        let reached = viewer.startedAt + (Duration.zero - (BenchFrames.interval + slack))
        guard let key = publisher.newestKey(before: reached) else { return 0 }
        return viewer.records.prefix { $0.sequence < key }.count
    }

    mutating func gaps(of cast: FailoverCast, from start: MonotonicTime, to end: MonotonicTime) {
        gaps += cast.viewers.filter { $0.viewer.endError == nil && $0.viewer.newest != nil }
            .map { $0.viewer.gap(from: start, to: end).milliseconds }
    }

    mutating func end(_ error: ApusError) { ended[error.code.number, default: 0] += 1 }

    /// Removes expected ends, such as that of one of two cameras with the same id.
    mutating func excuse(_ count: Int, of code: Int32) {
        ended[code] = max(0, (ended[code] ?? 0) - count)
        if ended[code] == 0 { ended[code] = nil }
    }

    mutating func addRound(clients count: Int) {
        rounds += 1
        clients += count
    }

    mutating func first(_ time: Duration) { firsts.append(time.milliseconds) }
    mutating func noPicture() { dark += 1 }
    mutating func staleFrames(_ count: Int) { stale += count }
    mutating func falseDeaths(_ count: Int) { falseDeaths += count }

    mutating func said(_ times: [Duration?]) {
        for time in times { if let time { said.append(time.milliseconds) } else { unsaid += 1 } }
    }

    mutating func seen(_ time: Duration?) {
        if let time { seen.append(time.milliseconds) } else { failed("the map did not show that a node is dead") }
    }

    /// Adds a figure that only this row has. The largest value of all rounds counts.
    mutating func figure(_ name: String, _ value: Double) { figures[name] = max(figures[name] ?? value, value) }

    mutating func failed(_ what: String) { failures.append(what) }

    // MARK: Evaluation

    /// The limits that this row exceeded, as sentences.
    var misses: [String] {
        var misses = failures
        func zero(_ value: Int, _ what: String) { if value > 0 { misses.append("\(value) \(what), 0 allowed") } }
        func most(_ value: Double?, _ bound: Double?, _ what: String) {
            guard let bound, let value, value > bound else { return }
            misses.append("\(what) \(Int(value.rounded(.up))), at most \(Int(bound)) allowed")
        }
        let codes = ended.sorted { $0.key < $1.key }.map { "\($0.value) × \($0.key)" }.joined(separator: ", ")
        zero(endedCount, "clients ended (\(codes))")
        zero(dark, "clients without a picture")
        zero(lost, "frames lost")
        zero(doubled, "frames doubled")
        zero(wrong, "frames wrong")
        zero(stale, "frames stale")
        zero(falseDeaths, "false deaths")
        if row.bound.saidMax != nil { zero(unsaid, "nodes that did not report it in /healthz") }
        most(Self.quantile(gaps, 0.99), row.bound.gapP99, "gap p99 ms")
        most(gaps.max(), row.bound.gapMax, "gap max ms")
        most(firsts.max(), row.bound.firstMax, "first picture max ms")
        most(said.max(), row.bound.saidMax, "said max ms")
        most(seen.max(), row.bound.seenMax, "death in the map max ms")
        for (name, bound) in row.bound.figures.sorted(by: { $0.key < $1.key }) { most(figures[name], bound, name) }
        return misses
    }

    /// One line about the rounds so far.
    var line: String {
        let extra = figures.sorted { $0.key < $1.key }.map { ", \($0.key) \(Self.text($0.value))" }.joined()
        return "ended \(endedCount), lost \(lost), doubled \(doubled), stale \(stale), no picture \(dark), "
            + "false deaths \(falseDeaths), gap p99 \(Self.text(Self.quantile(gaps, 0.99))) "
            + "max \(Self.text(gaps.max())) ms, first max \(Self.text(firsts.max())) ms, said \(saidText)\(extra)"
            + (failures.last.map { "; \($0)" } ?? "")
    }

    private var saidText: String {
        if unsaid > 0 { return "\(unsaid) never" }
        return Self.text(said.max())
    }

    /// - Parameter before: rows of an earlier run, by their names; each is shown below its current row.
    static func table(_ results: [FaultResult], before: [String: [String: Any]] = [:]) -> String {
        let head = [
            "FAULT", "ROUNDS", "CLIENTS", "ENDED", "NO PICTURE", "LOST", "DOUBLED", "STALE", "FALSE DEATHS", "GAP P50",
            "P99", "MAX ms", "FIRST MAX ms", "SAID MAX ms", "BOUNDS",
        ]
        let rows = results.flatMap { result in
            let row = [
                result.row.says, "\(result.rounds)", "\(result.clients)", "\(result.endedCount)", "\(result.dark)",
                "\(result.lost)", "\(result.doubled)", "\(result.stale)", "\(result.falseDeaths)",
                text(quantile(result.gaps, 0.5)), text(quantile(result.gaps, 0.99)), text(result.gaps.max()),
                text(result.firsts.max()), result.saidText, result.misses.isEmpty ? "kept" : "missed",
            ]
            return [row] + (before[result.row.key].map { [earlier($0)] } ?? [])
        }
        return TextTable.lines([head] + rows).joined(separator: "\n")
    }

    /// The row of an earlier run, from its JSON.
    private static func earlier(_ values: [String: Any]) -> [String] {
        func text(_ name: String) -> String {
            (values[name] as? NSNumber).map { Self.text($0.doubleValue) } ?? "-"
        }
        let unsaid = (values["unsaid"] as? NSNumber)?.intValue ?? 0
        let isKept = (values["misses"] as? [String])?.isEmpty ?? false
        return ["    before"]
            + ["rounds", "clients", "ended", "no_picture", "lost", "doubled", "stale", "false_deaths"].map { text($0) }
            + ["gap_p50_ms", "gap_p99_ms", "gap_max_ms", "first_max_ms"].map { text($0) }
            + [unsaid > 0 ? "\(unsaid) never" : text("said_max_ms"), isKept ? "kept" : "missed"]
    }

    static func json(_ results: [FaultResult]) throws -> String {
        let entries = results.map { ($0.row.key, $0.values) }
        let data = try JSONSerialization.data(
            withJSONObject: Dictionary(entries) { $1 }, options: [.sortedKeys, .withoutEscapingSlashes])
        return String(decoding: data, as: UTF8.self)
    }

    private var values: [String: Any] {
        var values: [String: Any] = [
            "rounds": rounds, "clients": clients, "ended": endedCount, "no_picture": dark, "lost": lost,
            "doubled": doubled, "wrong": wrong, "stale": stale, "false_deaths": falseDeaths, "unsaid": unsaid,
            "misses": misses,
        ]
        for (code, count) in ended { values["ended_\(code)"] = count }
        for (name, list) in [("gap", gaps), ("first", firsts), ("said", said), ("seen", seen)] {
            values["\(name)_p50_ms"] = Self.quantile(list, 0.5)
            values["\(name)_p99_ms"] = Self.quantile(list, 0.99)
            values["\(name)_max_ms"] = list.max()
        }
        for (name, value) in figures { values[name.replacingOccurrences(of: " ", with: "_")] = value }
        return values
    }

    private static func quantile(_ values: [Double], _ share: Double) -> Double? {
        FailoverResult.quantile(values, share)
    }

    private static func text(_ value: Double?) -> String { value.map { String(format: "%.0f", $0) } ?? "-" }
}
