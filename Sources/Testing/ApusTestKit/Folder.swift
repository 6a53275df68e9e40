import Foundation

/// A folder of the test's own, removed at its end.
package final class Folder: Sendable {
    /// Absolute.
    package let path: String

    /// Makes it, empty, in the system's folder for such.
    package init() {
        path = FileManager.default.temporaryDirectory.appendingPathComponent("apus-\(UUID().uuidString)").path
        try? FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
    }

    /// The path of a file in it.
    package func file(_ name: String) -> String { path + "/" + name }

    deinit { try? FileManager.default.removeItem(atPath: path) }
}
