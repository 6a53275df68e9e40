public import ApusCore
import Yams

/// Reads settings from a YAML file and from the environment, and refuses unknown keys.
/// The key `gateway.handshake_timeout` is written as nested maps in the file. The variable
/// `APUS_GATEWAY_HANDSHAKE_TIMEOUT` overrides it. Every requested key counts as known. ``finish()`` fails if the file
/// has another key, and suggests the most similar known one.
public struct ConfigurationReader {
    private struct Entry {
        var text: String
        var line: Int?
    }

    /// Alternative names of variables, which are common for containers.
    private static let shortVariables = ["data_directory": "APUS_DATA_DIR"]

    /// The source of the settings, for messages.
    private let source: String
    /// Where relative paths start.
    private let folder: String
    private var entries: [String: Entry] = [:]
    private let environment: [String: String]
    /// All requested keys, in the order of the requests.
    public private(set) var knownKeys: [ConfigurationKey] = []
    private var knownNames: Set<String> = []
    /// The keys of ``ignore(_:)`` that the file or the environment has.
    public private(set) var ignoredKeys: [String] = []

    /// - Parameter folder: where the relative paths of ``path(_:default:)`` start.
    /// - Throws: 10022 if the text is not YAML, or not a map of maps and plain values.
    public init(
        yaml: String, source: String, folder: String = ".", environment: [String: String]
    ) throws(ApusError) {
        (self.source, self.folder) = (source, folder)
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

    /// Reads a text. The key is required if `default` is nil.
    public mutating func string(_ key: String, default fallback: String? = nil) throws(ApusError) -> String {
        if let text = raw(key, .text, default: fallback) { return text }
        guard let fallback else { throw ApusError(.configurationInvalid, "\(source): the key \(key) is missing") }
        return fallback
    }

    /// Reads the path of a file or directory. A relative path starts at the folder of the configuration. The key is
    /// required, and must not be empty, if `default` is nil. Otherwise an empty path stays empty.
    public mutating func path(_ key: String, default fallback: String? = nil) throws(ApusError) -> String {
        let text = try string(key, default: fallback)
        guard !text.isEmpty || fallback != nil else { throw invalid(key, "a path is expected") }
        return text.isEmpty || text.hasPrefix("/") ? text : "\(folder)/\(text)"
    }

    /// Reads a whole number.
    public mutating func int(_ key: String, default fallback: Int, in range: ClosedRange<Int>) throws(ApusError) -> Int
    {
        guard let text = raw(key, .number(range), default: "\(fallback)") else { return fallback }
        guard let value = Int(text), range.contains(value) else {
            throw invalid(
                key, "a whole number from \(range.lowerBound) to \(range.upperBound) is expected, not '\(text)'")
        }
        return value
    }

    /// Reads a part of a whole: `0`, `0.01`, `1`.
    public mutating func ratio(_ key: String, default fallback: Double) throws(ApusError) -> Double {
        guard let text = raw(key, .ratio, default: "\(fallback)") else { return fallback }
        guard let value = Double(text), (0...1).contains(value) else {
            throw invalid(key, "a number from 0 to 1 is expected, not '\(text)'")
        }
        return value
    }

    /// Reads a duration: `50ms`, `5s`, `2m`, `1h`.
    public mutating func duration(_ key: String, default fallback: Duration) throws(ApusError) -> Duration {
        guard let text = raw(key, .duration, default: Self.text(fallback)) else { return fallback }
        guard let value = Self.duration(text) else {
            throw invalid(key, "a duration such as 200ms, 5s or 1h is expected, not '\(text)'")
        }
        return value
    }

    /// Reads a number of bytes: `512`, `64KiB`, `8MiB`, `1GiB`.
    public mutating func bytes(_ key: String, default fallback: Int) throws(ApusError) -> Int {
        guard let text = raw(key, .bytes, default: Self.text(byteCount: fallback)) else { return fallback }
        guard let value = Self.bytes(text) else {
            throw invalid(key, "a size such as 64KiB or 8MiB is expected, not '\(text)'")
        }
        return value
    }

    /// Reads `HOST:PORT`. The key is required if `default` is nil.
    public mutating func hostPort(_ key: String, default fallback: HostPort? = nil) throws(ApusError) -> HostPort {
        note(key, .hostPort, default: fallback?.description)
        let text = try string(key, default: fallback?.description)
        guard let value = HostPort(text) else { throw invalid(key, "HOST:PORT is expected, not '\(text)'") }
        return value
    }

    /// Reads a required identifier.
    public mutating func identifier<ID: IdentifierString>(_ key: String, as type: ID.Type) throws(ApusError) -> ID {
        note(key, .name, default: nil)
        let text = try string(key)
        guard let value = ID(rawValue: text) else {
            throw invalid(key, "\(ID.limits) are expected, not '\(text)'")
        }
        return value
    }

    /// Reads `true` or `false`.
    public mutating func flag(_ key: String, default fallback: Bool) throws(ApusError) -> Bool {
        try choice(key, of: ["true", "false"], default: fallback ? "true" : "false") == "true"
    }

    /// Reads words that are separated by spaces; by default none.
    public mutating func words(_ key: String, countMax: Int) throws(ApusError) -> [String] {
        let words = (raw(key, .words(countMax), default: "") ?? "").split(separator: " ").map { String($0) }
        guard words.count <= countMax else { throw invalid(key, "at most \(countMax) words are expected") }
        return words
    }

    /// Reads a value for each word; by default none.
    /// - Parameters:
    ///   - value: parses a word; nil if it is not valid.
    ///   - expected: the message of error 10022 for such a word.
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

    /// Reads one of several words.
    public mutating func choice(_ key: String, of words: [String], default fallback: String) throws(ApusError) -> String
    {
        guard let text = raw(key, .choice(words), default: fallback) else { return fallback }
        guard words.contains(text) else {
            throw invalid(key, "one of \(words.joined(separator: ", ")) is expected, not '\(text)'")
        }
        return text
    }

    /// Takes keys that an earlier release had, without reading them. The reference does not list them.
    public mutating func ignore(_ keys: [String]) {
        knownNames.formUnion(keys)
        ignoredKeys += keys.filter { key in
            entries[key] != nil || Self.variables(of: key).contains { environment[$0] != nil }
        }
    }

    /// Fails with 10022 if the file has a key that was not requested.
    public func finish() throws(ApusError) {
        for key in entries.keys.sorted() where !knownNames.contains(key) {
            let nearest = knownKeys.map(\.name).min { Self.distance(key, $0) < Self.distance(key, $1) }
            let hint = nearest.map { "; did you mean \($0)?" } ?? ""
            throw invalid(key, entries[key]?.line, "the key is unknown\(hint)")
        }
    }

    private mutating func raw(_ key: String, _ kind: ConfigurationKey.Kind, default fallback: String?) -> String? {
        note(key, kind, default: fallback)
        for variable in Self.variables(of: key) {
            if let text = environment[variable] { return text }
        }
        return entries[key]?.text
    }

    /// Notes a known key. The reference shows the first kind with which it is requested.
    private mutating func note(_ key: String, _ kind: ConfigurationKey.Kind, default fallback: String?) {
        guard knownNames.insert(key).inserted else { return }
        knownKeys.append(ConfigurationKey(name: key, kind: kind, fallback: fallback))
    }

    /// The variables that override a key, in the order of precedence.
    package static func variables(of key: String) -> [String] {
        let variable = "APUS_" + key.uppercased().map { $0 == "." ? "_" : String($0) }.joined()
        return [variable] + [shortVariables[key]].compactMap { $0 }
    }

    /// The variables that would override keys of the text. A program that starts several nodes, each with its own file,
    /// removes those of some keys: one directory or port cannot serve several nodes.
    ///
    /// - Parameter isIncluded: whether the variables of a key are wanted.
    /// - Throws: as ``init(yaml:source:environment:)``.
    public static func variables(
        overriding yaml: String, source: String, where isIncluded: (_ key: String) -> Bool
    ) throws(ApusError) -> [String] {
        try ConfigurationReader(yaml: yaml, source: source, environment: [:]).entries.keys.filter(isIncluded)
            .flatMap(variables)
    }

    /// The error of a value that is not valid (10022), with its place.
    package func invalid(_ key: String, _ sentence: String) -> ApusError { invalid(key, entries[key]?.line, sentence) }

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

    /// A duration in the notation of the file, in the largest unit without a remainder.
    static func text(_ duration: Duration) -> String {
        let milliseconds = Int(duration.milliseconds)
        for (suffix, unit) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
        where milliseconds != 0 && milliseconds % unit == 0 {
            return "\(milliseconds / unit)\(suffix)"
        }
        return "\(milliseconds)ms"
    }

    /// A number of bytes in the notation of the file, in the largest unit without a remainder.
    static func text(byteCount: Int) -> String {
        for (suffix, unit) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        where byteCount != 0 && byteCount % unit == 0 {
            return "\(byteCount / unit)\(suffix)"
        }
        return "\(byteCount)"
    }

    /// The Levenshtein distance, for the suggestion.
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
