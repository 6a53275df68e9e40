public import ApusCore
import Yams

/// Reads settings from a YAML file and from the environment, and refuses what it does not know.
///
/// A key `gateway.handshake_timeout` stands in the file as nested maps and can be overridden by
/// `APUS_GATEWAY_HANDSHAKE_TIMEOUT`. Every key that is asked for counts as known; ``finish()`` fails for
/// a key in the file that nobody asked for, and names the nearest that exists.
public struct ConfigurationReader {
    private struct Entry {
        var text: String
        var line: Int?
    }

    /// Second names of variables, which containers are commonly given.
    private static let shortVariables = ["data_directory": "APUS_DATA_DIR"]

    /// Where the settings come from, for messages.
    private let source: String
    private var entries: [String: Entry] = [:]
    private let environment: [String: String]
    /// Every key that was asked for, in the order of asking.
    public private(set) var knownKeys: [ConfigurationKey] = []
    private var knownNames: Set<String> = []

    /// - Throws: 10022 where the text is not YAML or not a map of maps and plain values.
    public init(yaml: String, source: String, environment: [String: String]) throws(ApusError) {
        self.source = source
        self.environment = environment
        let root: Node?
        do {
            root = try Yams.compose(yaml: yaml)
        } catch {
            throw ApusError(.configurationInvalid, "\(source) is not valid YAML: \(error)")
        }
        if let root { try flatten(root, path: "") }
    }

    private mutating func flatten(_ node: Node, path: String) throws(ApusError) {
        switch node {
        case .mapping(let mapping):
            for (key, value) in mapping {
                guard let name = key.string else { throw invalid(path, key.mark?.line, "a key must be text") }
                try flatten(value, path: path.isEmpty ? name : "\(path).\(name)")
            }
        case .scalar(let scalar):
            entries[path] = Entry(text: scalar.string, line: node.mark?.line)
        case .sequence, .alias:
            throw invalid(path, node.mark?.line, "a plain value is expected, not a list")
        }
    }

    /// A text; `default` nil makes the key required.
    public mutating func string(_ key: String, default fallback: String? = nil) throws(ApusError) -> String {
        if let text = raw(key, .text, default: fallback) { return text }
        guard let fallback else { throw ApusError(.configurationInvalid, "\(source): the key \(key) is missing") }
        return fallback
    }

    /// A whole number.
    public mutating func int(_ key: String, default fallback: Int, in range: ClosedRange<Int>) throws(ApusError) -> Int
    {
        guard let text = raw(key, .number(range), default: "\(fallback)") else { return fallback }
        guard let value = Int(text), range.contains(value) else {
            throw invalid(
                key, "a whole number from \(range.lowerBound) to \(range.upperBound) is expected, not '\(text)'")
        }
        return value
    }

    /// A span of time: `50ms`, `5s`, `2m`, `1h`.
    public mutating func duration(_ key: String, default fallback: Duration) throws(ApusError) -> Duration {
        guard let text = raw(key, .duration, default: Self.text(fallback)) else { return fallback }
        guard let value = Self.duration(text) else {
            throw invalid(key, "a span such as 200ms, 5s or 1h is expected, not '\(text)'")
        }
        return value
    }

    /// A number of bytes: `512`, `64KiB`, `8MiB`, `1GiB`.
    public mutating func bytes(_ key: String, default fallback: Int) throws(ApusError) -> Int {
        guard let text = raw(key, .bytes, default: Self.text(byteCount: fallback)) else { return fallback }
        guard let value = Self.bytes(text) else {
            throw invalid(key, "a size such as 64KiB or 8MiB is expected, not '\(text)'")
        }
        return value
    }

    /// `HOST:PORT`; `default` nil makes the key required.
    public mutating func hostPort(_ key: String, default fallback: HostPort? = nil) throws(ApusError) -> HostPort {
        note(key, .hostPort, default: fallback?.description)
        let text = try string(key, default: fallback?.description)
        guard let value = HostPort(text) else { throw invalid(key, "HOST:PORT is expected, not '\(text)'") }
        return value
    }

    /// A name of the plain alphabet; `default` nil makes the key required.
    public mutating func identifier<ID: IdentifierString>(_ key: String, as type: ID.Type) throws(ApusError) -> ID {
        note(key, .name, default: nil)
        let text = try string(key)
        guard let value = ID(rawValue: text) else {
            throw invalid(key, "\(ID.limits) are expected, not '\(text)'")
        }
        return value
    }

    /// `true` or `false`.
    public mutating func flag(_ key: String, default fallback: Bool) throws(ApusError) -> Bool {
        try choice(key, of: ["true", "false"], default: fallback ? "true" : "false") == "true"
    }

    /// Words with spaces between them; none by default.
    public mutating func words(_ key: String, countMax: Int) throws(ApusError) -> [String] {
        let words = (raw(key, .words(countMax), default: "") ?? "").split(separator: " ").map { String($0) }
        guard words.count <= countMax else { throw invalid(key, "at most \(countMax) words are expected") }
        return words
    }

    /// A value for each word; none by default.
    ///
    /// - Parameters:
    ///   - value: what a word says; nil where it says nothing.
    ///   - expected: what is wrong with such a word, for the error 10022.
    public mutating func values<Value>(
        _ key: String, countMax: Int, _ value: (String) -> Value?, _ expected: (String) -> String
    ) throws(ApusError) -> [Value] {
        var found: [Value] = []
        for word in try words(key, countMax: countMax) {
            guard let value = value(word) else { throw invalid(key, expected(word)) }
            found.append(value)
        }
        return found
    }

    /// One of a few words.
    public mutating func choice(_ key: String, of words: [String], default fallback: String) throws(ApusError) -> String
    {
        guard let text = raw(key, .choice(words), default: fallback) else { return fallback }
        guard words.contains(text) else {
            throw invalid(key, "one of \(words.joined(separator: ", ")) is expected, not '\(text)'")
        }
        return text
    }

    /// Fails with 10022 for a key in the file that nobody asked for.
    public func finish() throws(ApusError) {
        for key in entries.keys.sorted() where !knownNames.contains(key) {
            let nearest = knownKeys.map(\.name).min { Self.distance(key, $0) < Self.distance(key, $1) }
            let hint = nearest.map { "; did you mean \($0)?" } ?? ""
            throw invalid(key, entries[key]?.line, "this key is not known\(hint)")
        }
    }

    private mutating func raw(_ key: String, _ kind: ConfigurationKey.Kind, default fallback: String?) -> String? {
        note(key, kind, default: fallback)
        for variable in Self.variables(of: key) {
            if let text = environment[variable] { return text }
        }
        return entries[key]?.text
    }

    /// The key counts as known. The first kind that it is asked for as is the one that the reference shows.
    private mutating func note(_ key: String, _ kind: ConfigurationKey.Kind, default fallback: String?) {
        guard knownNames.insert(key).inserted else { return }
        knownKeys.append(ConfigurationKey(name: key, kind: kind, fallback: fallback))
    }

    /// The variables that override a key, the first before the second.
    package static func variables(of key: String) -> [String] {
        let variable = "APUS_" + key.uppercased().map { $0 == "." ? "_" : String($0) }.joined()
        return [variable] + [shortVariables[key]].compactMap { $0 }
    }

    /// The variables that would override what the text sets. Who starts several nodes with a file each keeps these from
    /// them: a directory or port for all of them would be no one's.
    ///
    /// - Throws: As ``init(yaml:source:environment:)``.
    public static func variables(overriding yaml: String, source: String) throws(ApusError) -> [String] {
        try ConfigurationReader(yaml: yaml, source: source, environment: [:]).entries.keys.flatMap(variables)
    }

    /// 10022 with the place of a key, for a rule that the reader does not know.
    func invalid(_ key: String, _ sentence: String) -> ApusError { invalid(key, entries[key]?.line, sentence) }

    private func invalid(_ key: String, _ line: Int?, _ sentence: String) -> ApusError {
        let place = line.map { "\(source):\($0)" } ?? source
        return ApusError(.configurationInvalid, "\(place): \(key.isEmpty ? "" : "\(key): ")\(sentence)")
    }

    static func duration(_ text: String) -> Duration? {
        for (suffix, unit) in [
            ("ms", Duration.milliseconds(1)), ("s", .seconds(1)), ("m", .seconds(60)), ("h", .seconds(3600)),
        ]
        where text.hasSuffix(suffix) {
            guard let count = Int(text.dropLast(suffix.count)), (0...1_000_000_000).contains(count) else { return nil }
            return unit * count
        }
        return nil
    }

    static func bytes(_ text: String) -> Int? {
        for (suffix, unit) in [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)]
        where text.hasSuffix(suffix) {
            guard let count = Int(text.dropLast(suffix.count)), count >= 0 else { return nil }
            let (product, overflow) = count.multipliedReportingOverflow(by: unit)
            return overflow ? nil : product
        }
        return nil
    }

    /// A duration as the file has it, in the largest unit that it is a whole number of.
    static func text(_ duration: Duration) -> String {
        let milliseconds = Int(duration.milliseconds)
        for (suffix, unit) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
        where milliseconds != 0 && milliseconds % unit == 0 {
            return "\(milliseconds / unit)\(suffix)"
        }
        return "\(milliseconds)ms"
    }

    /// A number of bytes as the file has it, in the largest unit that it is a whole number of.
    static func text(byteCount: Int) -> String {
        for (suffix, unit) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        where byteCount != 0 && byteCount % unit == 0 {
            return "\(byteCount / unit)\(suffix)"
        }
        return "\(byteCount)"
    }

    /// Levenshtein's distance, for the hint.
    private static func distance(_ left: String, _ right: String) -> Int {
        let right = Array(right)
        var row = Array(0...right.count)
        for (i, a) in left.enumerated() {
            var previous = row[0]
            row[0] = i + 1
            for (j, b) in right.enumerated() {
                (previous, row[j + 1]) = (row[j + 1], min(row[j + 1] + 1, row[j] + 1, previous + (a == b ? 0 : 1)))
            }
        }
        return row[right.count]
    }
}
