import ApusConfiguration
import ApusCore
import ApusNodeConfiguration
import ApusRelayNode
import Foundation

/// docs/reference/configuration.md: types, limits and defaults from the readers, everything else from the comments of
/// cluster-configs/.
struct ConfigurationReference {
    private struct Missing: Error, CustomStringConvertible {
        let description: String
    }

    /// Every key of a node, and of a standalone relay.
    let keys: [String: ConfigurationKey]
    let relayKeys: [String: ConfigurationKey]
    private let node: CommentedKeys
    private let relay: CommentedKeys

    /// Defaults that are other keys' values.
    private static let derived = [
        "advertise.transport": "as `listen.transport`", "advertise.clients": "as `listen.clients`",
        "advertise.http": "as `listen.http`", "ownership.directory": "required",
    ]

    init() throws {
        let folder = "\(SourceTree.root)/cluster-configs"
        func read(_ name: String) throws -> CommentedKeys {
            CommentedKeys(try String(contentsOfFile: "\(folder)/\(name)", encoding: .utf8))
        }
        func byName(_ keys: [ConfigurationKey]) -> [String: ConfigurationKey] {
            Dictionary(uniqueKeysWithValues: keys.map { ($0.name, $0) })
        }
        keys = byName(try NodeConfiguration(file: "\(folder)/one-node.yaml", environment: [:]).keys)
        relayKeys = byName(try RelayNodeConfiguration(file: "\(folder)/relay-only.yaml", environment: [:]).keys)
        (node, relay) = (try read("one-node.yaml"), try read("relay-only.yaml"))
    }

    /// The keys that the reference file has; a test compares them with ``keys``.
    var documented: [String] { node.keys.filter { !$0.isMap }.map(\.name) }

    func text() throws -> String {
        var text = Self.head
        var rows: [[String]] = []
        /// The map of the table that is being filled, and the key above that has a comment.
        var (map, explained) = ("", "")
        func endTable() {
            guard !rows.isEmpty else { return }
            text += "\n" + ReferenceDocument.table(["key", "takes", "default", "what, and when to change it"], rows)
            rows = []
        }
        for key in node.keys {
            if let section = key.section {
                endTable()
                let (title, rest) = Self.split(section)
                text += "\n## \(title)\n" + (rest.isEmpty ? "" : "\n\(rest)\n")
            }
            let parent = key.name.split(separator: ".").dropLast().joined(separator: ".")
            if key.isMap {
                endTable()
                text += "\n### `\(key.name)`\n" + (key.comment.isEmpty ? "" : "\n\(key.comment)\n")
                (map, explained) = (key.name, "")
                continue
            }
            if parent != map {
                endTable()
                // After a nested map its parent goes on.
                text += parent.isEmpty ? "" : "\n### `\(parent)`, continued\n"
                (map, explained) = (parent, "")
            }
            if !key.comment.isEmpty { explained = key.name }
            rows.append(try row(key, explained: explained))
        }
        endTable()
        return text + (try relayOnly())
    }

    private func row(_ key: CommentedKeys.Key, explained: String) throws -> [String] {
        guard let known = keys[key.name] ?? relayKeys[key.name] else {
            throw Missing(description: "no reader asks for the key \(key.name)")
        }
        let words = key.comment.isEmpty ? (explained.isEmpty ? "See above." : "See `\(explained)`.") : key.comment
        return ["`\(key.name)`", Self.kind(known.kind), Self.derived[key.name] ?? Self.fallback(known), words]
    }

    private func relayOnly() throws -> String {
        let own = relay.keys.filter { !$0.isMap && !$0.name.contains(".") }
        let rows = try own.map { try row($0, explained: "") }
        return """

            ## A standalone relay

            The configuration of `apus relay serve` has these keys, and all keys of `relay` above.

            \(ReferenceDocument.table(["key", "takes", "default", "what, and when to change it"], rows))
            """
    }

    private static let head = """
        # Configuration

        Every key of a configuration. `scripts/reference` makes this page from the readers in the code and from the
        comments of [one-node.yaml](../../cluster-configs/one-node.yaml); do not edit it.

        The environment overrides each key: `gateway.keepalive` is `APUS_GATEWAY_KEEPALIVE`. A key that is not known
        stops the start with 10022, its line, and the nearest key that exists. Relative paths start at the folder of the
        file.

        | takes | written as |
        |---|---|
        | duration | `200ms`, `5s`, `2m`, `1h` |
        | size | bytes: `512`, `64KiB`, `8MiB`, `1GiB` |
        | address | `HOST:PORT`, or `[V6]:PORT` |
        | name | 1 to 63 letters, digits, `-`, `_` or `.` |
        | list | words with spaces between them, in quotation marks |

        """

    /// A title, and the sentences behind it.
    private static func split(_ section: String) -> (title: String, rest: String) {
        guard let end = section.range(of: ". ") else { return (section, "") }
        return (String(section[..<end.lowerBound]), String(section[end.upperBound...]))
    }

    private static func kind(_ kind: ConfigurationKey.Kind) -> String {
        switch kind {
        case .text: "text"
        case .name: "name"
        case .number(let range): "number, \(range.lowerBound) to \(range.upperBound)"
        case .ratio: "number, 0 to 1"
        case .duration: "duration"
        case .bytes: "size"
        case .hostPort: "address"
        case .words(let most): "list, \(most) at most"
        case .choice(let words): words.map { "`\($0)`" }.joined(separator: ", ")
        }
    }

    private static func fallback(_ key: ConfigurationKey) -> String {
        guard let fallback = key.fallback else { return "required" }
        return fallback.isEmpty ? "empty" : "`\(fallback)`"
    }
}
