import ApusCore
import ApusNode
import ApusTestKit
import Foundation
import Testing

@Suite("A node's data directory (D4)")
struct DataDirectoryTests {
    private static let cluster = ClusterID(unchecked: "home")
    private static let name = NodeName(unchecked: "n1")

    private func claim(_ path: String, node: NodeName = name) async throws -> DataDirectoryLock {
        try await DataDirectory(path: path).claim(cluster: Self.cluster, node: node, timeout: .milliseconds(100))
    }

    @Test("A directory that a process uses is refused to another (10020), by the process's number, until it ends")
    func locked() async throws {
        let path = NSTemporaryDirectory() + "/apus-data-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: path) }
        let lock = try await claim(path)
        let refused = await #expect(throws: ApusError.self) { try await claim(path) }
        #expect(refused?.code == .stateForeign)
        let own = ProcessInfo.processInfo.processIdentifier
        #expect(refused?.message.contains("(\(own))") == true, "\(refused as Any)")
        lock.release()
        try await claim(path).release()
    }

    @Test("A copy of a directory is not locked by the process that uses the original")
    func copied() async throws {
        let path = NSTemporaryDirectory() + "/apus-data-\(UUID().uuidString)"
        defer { for path in [path, path + "-copy"] { try? FileManager.default.removeItem(atPath: path) } }
        let lock = try await claim(path)
        defer { lock.release() }
        try FileManager.default.copyItem(atPath: path, toPath: path + "-copy")
        try await claim(path + "-copy").release()
    }

    @Test("Another node's directory is refused (10020), and is not locked by that")
    func foreign() async throws {
        let path = NSTemporaryDirectory() + "/apus-data-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: path) }
        try await claim(path).release()
        let refused = await #expect(throws: ApusError.self) {
            try await claim(path, node: NodeName(unchecked: "n2"))
        }
        #expect(refused?.code == .stateForeign)
        try await claim(path).release()
    }
}
