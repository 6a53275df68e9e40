import Foundation

/// A folder of a test, removed at its end.
package final class Folder: Sendable {
    /// Absolute.
    package let path: String

    /// Creates it, empty, in the system's temporary folder.
    package init() {
        path = FileManager.default.temporaryDirectory.appendingPathComponent("apus-\(UUID().uuidString)").path
        try? FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    }

    /// The path of a file in it.
    package func file(_ name: String) -> String { path + "/" + name }

    deinit { try? FileManager.default.removeItem(atPath: path) }
}
