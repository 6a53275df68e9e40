import ApusCore
import Foundation

/// A node's own folder, marked with its cluster and node.
struct DataDirectory {
    let path: String

    /// Creates the folder if it is missing, and marks it.
    /// - Throws: 10020 if it belongs to another cluster or node, 10021 if it cannot be created or written.
    func claim(cluster: ClusterID, node: NodeName) throws(ApusError) {
        let marker = "\(path)/node"
        let mine = "cluster \(cluster)\nnode \(node)\n"
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
            if let found = try? String(contentsOfFile: marker, encoding: .utf8) {
                guard found == mine else {
                    let owner = found.split(separator: "\n").joined(separator: ", ")
                    throw ApusError(
                        .stateForeign,
                        "the data directory \(path) belongs to \(owner); this is cluster \(cluster), node \(node)")
                }
                return
            }
            try Data(mine.utf8).write(to: URL(fileURLWithPath: marker), options: .atomic)
        } catch let error as ApusError {
            throw error
        } catch {
            throw ApusError(
                .storageFailed, "the data directory \(path) cannot be written: \(error.localizedDescription)")
        }
    }
}
