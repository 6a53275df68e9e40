package import ApusCore
import Foundation

/// The state directory of a local cluster: what it holds and whose it is.
///
/// `cluster.json` is its mark. A directory without the mark, or with another cluster's, is never written to.
package struct StateDirectory: Sendable {
    /// A node as `cluster.json` names it.
    package struct Node: Codable, Sendable, Equatable {
        /// Unique in the cluster.
        package var name: String
        /// HOST:PORT for other nodes.
        package var transport: String
        /// HOST:PORT for devices and apps.
        package var clients: String
        /// HOST:PORT of the HTTP listener.
        package var http: String
        /// Nil where the node relays nothing.
        package var relay: String?
    }

    /// The content of `cluster.json`.
    package struct Mark: Codable, Sendable, Equatable {
        /// Tells the file from another program's.
        package static let format = "apus-local-cluster"
        /// The layout of the directory.
        package static let version = 1

        /// ``format`` of what wrote it.
        package var format = Self.format
        /// ``version`` of what wrote it.
        package var version = Self.version
        /// The cluster's name.
        package var cluster: String
        /// In the order of their numbers, from 1.
        package var nodes: [Node]

        /// A mark of this release's format.
        package init(cluster: String, nodes: [Node]) {
            self.cluster = cluster
            self.nodes = nodes
        }
    }

    /// The default of `--dir`: `apus/local` in `XDG_STATE_HOME` where that is set and no cluster is in `~/.apus/local`.
    package static let defaultPath = defaultPath(environment: ProcessInfo.processInfo.environment) {
        FileManager.default.fileExists(atPath: $0)
    }

    private static func defaultPath(environment: [String: String], exists: (String) -> Bool) -> String {
        let path = "~/.apus/local"
        guard let state = environment["XDG_STATE_HOME"], state.hasPrefix("/"),
            !exists(expand(path, environment: environment))
        else { return path }
        return "\(state)/apus/local"
    }

    /// A path with `~` replaced by `HOME`, or by the user's directory of the system where that is not set. Foundation
    /// takes the latter always.
    private static func expand(_ path: String, environment: [String: String]) -> String {
        guard path == "~" || path.hasPrefix("~/"), let home = environment["HOME"], home.hasPrefix("/") else {
            return NSString(string: path).expandingTildeInPath
        }
        return home + path.dropFirst()
    }

    /// Absolute.
    package let path: String

    /// A directory by its path; `~` is the user's own. Nothing is read or made.
    package init(_ path: String) {
        let expanded = Self.expand(path, environment: ProcessInfo.processInfo.environment)
        self.path = URL(fileURLWithPath: expanded).standardizedFileURL.path
    }

    /// The file of the mark.
    package var markFile: String { "\(path)/cluster.json" }
    /// The cluster's keys and certificates.
    package var pki: PKIDirectory { PKIDirectory(path: "\(path)/pki") }
    /// A node's configuration.
    package func configurationFile(_ node: String) -> String { "\(path)/\(node).yaml" }
    /// A node's data directory.
    package func nodeFolder(_ node: String) -> String { "\(path)/\(node)" }
    /// What a node wrote.
    package func logFile(_ node: String) -> String { "\(path)/\(node)/log" }
    /// A node's process number.
    package func pidFile(_ node: String) -> String { "\(path)/\(node)/pid" }

    /// The mark; nil where there is no directory, or one that is empty but for the lock.
    ///
    /// - Throws: 10020 where the directory belongs to something else.
    package func mark() throws(ApusError) -> Mark? {
        guard let data = FileManager.default.contents(atPath: markFile) else {
            let names = (try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []
            var isDirectory: ObjCBool = false
            let exists = FileManager.default.fileExists(atPath: path, isDirectory: &isDirectory)
            guard !exists || (isDirectory.boolValue && names.allSatisfy { $0 == Self.lockName }) else {
                throw ApusError(
                    .stateForeign, "\(path) holds other things and no local cluster; give an empty directory with --dir"
                )
            }
            return nil
        }
        guard let mark = try? JSONDecoder().decode(Mark.self, from: data), mark.format == Mark.format else {
            throw ApusError(.stateForeign, "\(markFile) is not the mark of a local cluster; give another --dir")
        }
        guard mark.version == Mark.version else {
            throw ApusError(
                .stateForeign, "\(path) was made by another release (format \(mark.version)); give another --dir")
        }
        return mark
    }

    /// The mark of a cluster that must be there.
    ///
    /// - Throws: 10020, also where there is no cluster.
    package func requireMark() throws(ApusError) -> Mark {
        guard let mark = try mark() else {
            throw ApusError(
                .stateForeign, "there is no local cluster in \(path); `apus cluster up --dir \(path)` makes one")
        }
        return mark
    }

    /// Writes the mark, and the directory where it is missing.
    ///
    /// - Throws: 10021.
    package func write(_ mark: Mark) throws(ApusError) {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .sortedKeys, .withoutEscapingSlashes]
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
            try encoder.encode(mark).write(to: URL(fileURLWithPath: markFile), options: .atomic)
        } catch {
            throw ApusError(.storageFailed, "\(markFile) cannot be written: \(error.localizedDescription)")
        }
    }

    /// The node of an index from 1, or of a name.
    ///
    /// - Throws: 21031 with the names that there are.
    package static func node(_ text: String, in mark: Mark) throws(ApusError) -> Node {
        if let index = Int(text), mark.nodes.indices.contains(index - 1) { return mark.nodes[index - 1] }
        if let node = mark.nodes.first(where: { $0.name == text }) { return node }
        let names = mark.nodes.map(\.name).joined(separator: ", ")
        throw ApusError(
            .badParameter, "there is no node '\(text)' in this cluster; there are 1 to \(mark.nodes.count): \(names)")
    }
}
