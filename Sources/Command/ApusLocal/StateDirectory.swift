package import ApusCore
import Foundation

/// The state directory of a local cluster.
/// `cluster.json` is its mark. A directory without the mark, or with another cluster's, is never written to.
package struct StateDirectory: Sendable {
    /// A node in `cluster.json`.
    package struct Node: Codable, Sendable, Equatable {
        /// Unique in the cluster.
        package var name: String
        /// HOST:PORT for other nodes.
        package var transport: String
        /// HOST:PORT for devices and apps.
        package var clients: String
        /// HOST:PORT of the HTTP listener.
        package var http: String
        /// HOST:PORT of the relay; nil if the node has none.
        package var relay: String?
        /// The file of the program that the last upgrade has given the node; nil for that of whoever starts the node.
        package var program: String?

        /// The program to start the node with; nil for that of this process.
        ///
        /// - Throws: 10022 if the file is gone.
        package func startedProgram() throws(ApusError) -> String? {
            guard let program else { return nil }
            guard FileManager.default.isExecutableFile(atPath: program) else {
                throw ApusError(
                    .configurationInvalid,
                    "\(name) was upgraded to \(program), which is no program any more; upgrade it to another one with "
                        + "`apus cluster upgrade`")
            }
            return program
        }
    }

    /// A member of etcd in `cluster.json`.
    package struct Store: Codable, Sendable, Equatable {
        /// Differs from the nodes' names.
        package var name: String
        /// HOST:PORT for its clients, the nodes.
        package var clients: String
        /// HOST:PORT for the other members.
        package var peers: String
    }

    /// The content of `cluster.json`.
    package struct Mark: Codable, Sendable, Equatable {
        /// Distinguishes the file from those of other programs.
        package static let format = "apus-local-cluster"
        /// The layout of the directory.
        package static let version = 1

        /// The ``format`` of the writer.
        package var format = Self.format
        /// The ``version`` of the writer.
        package var version = Self.version
        /// The cluster's name.
        package var cluster: String
        /// In the order of their numbers, from 1.
        package var nodes: [Node]
        /// The networks of an isolated cluster; nil if the nodes use the addresses of the machine.
        package var network: NetworkPlan?
        /// The members of etcd that hold the ownership store; nil for a store in a directory.
        package var stores: [Store]?
        /// The PostgreSQL database of the records; nil for a file.
        package var recordsURL: String?

        /// A mark of this release's format.
        package init(
            cluster: String, nodes: [Node], network: NetworkPlan? = nil, stores: [Store]? = nil,
            recordsURL: String? = nil
        ) {
            self.cluster = cluster
            self.nodes = nodes
            self.network = network
            self.stores = stores
            self.recordsURL = recordsURL
        }
    }

    /// The default of `--dir`: `apus/local` in `XDG_STATE_HOME` if that is set and there is no cluster in
    /// `~/.apus/local`.
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

    /// Replaces `~` by `HOME`, or by the user's home directory of the system if `HOME` is not set. Foundation always
    /// uses the latter.
    private static func expand(_ path: String, environment: [String: String]) -> String {
        guard path == "~" || path.hasPrefix("~/"), let home = environment["HOME"], home.hasPrefix("/") else {
            return NSString(string: path).expandingTildeInPath
        }
        return home + path.dropFirst()
    }

    /// The absolute path.
    package let path: String

    /// A directory by its path; `~` is the user's home. Nothing is read or created.
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
    /// A node's output.
    package func logFile(_ node: String) -> String { "\(path)/\(node)/log" }
    /// The file with a node's process id.
    package func pidFile(_ node: String) -> String { "\(path)/\(node)/pid" }

    /// The mark; nil if there is no directory, or it contains nothing except the lock.
    /// - Throws: 10020 if the directory belongs to something else.
    package func mark() throws(ApusError) -> Mark? {
        guard let data = FileManager.default.contents(atPath: markFile) else {
            let names = (try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []
            var isDirectory: ObjCBool = false
            let exists = FileManager.default.fileExists(atPath: path, isDirectory: &isDirectory)
            guard !exists || (isDirectory.boolValue && names.allSatisfy { $0 == Self.lockName }) else {
                throw ApusError(
                    .stateForeign, "\(path) has other content and no local cluster; use an empty directory with --dir"
                )
            }
            return nil
        }
        guard let mark = try? JSONDecoder().decode(Mark.self, from: data), mark.format == Mark.format else {
            throw ApusError(.stateForeign, "\(markFile) is not the mark of a local cluster; use another --dir")
        }
        guard mark.version == Mark.version else {
            throw ApusError(
                .stateForeign, "\(path) was created by another release (format \(mark.version)); use another --dir")
        }
        return mark
    }

    /// The mark of a cluster that must exist.
    /// - Throws: 10020, also if there is no cluster.
    package func requireMark() throws(ApusError) -> Mark {
        guard let mark = try mark() else {
            throw ApusError(
                .stateForeign, "there is no local cluster in \(path); `apus cluster up --dir \(path)` creates one")
        }
        return mark
    }

    /// Writes the mark, and creates the directory if it is missing.
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

    /// The node with an index from 1, or with a name.
    /// - Throws: 21031 with the existing names.
    package static func node(_ text: String, in mark: Mark) throws(ApusError) -> Node {
        if let index = Int(text), mark.nodes.indices.contains(index - 1) { return mark.nodes[index - 1] }
        if let node = mark.nodes.first(where: { $0.name == text }) { return node }
        let names = mark.nodes.map(\.name).joined(separator: ", ")
        throw ApusError(
            .badParameter, "there is no node '\(text)'; the nodes are 1 to \(mark.nodes.count), \(names)")
    }
}
