import Foundation
import Testing

@Suite("Tidy: the top level")
struct TopLevelTests {
    @Test("The top level has the files and folders of the project, and nothing that a trial has left")
    func entries() throws {
        let known: Set = [
            ".ci", ".gitignore", ".swift-format", "Benchmarks", "CONTRIBUTING.md", "Examples", "LICENSE", "NOTICE",
            "Package.swift", "README.md", "SECURITY.md", "Sources", "Tests", "cluster-configs", "docs", "proto",
            "scripts",
        ]
        let found = Set(try FileManager.default.contentsOfDirectory(atPath: SourceTree.root))
        // What git ignores: the versions of a build, and the state of a local cluster. Hidden ones belong to tools.
        let ignored: Set = ["Package.resolved", "state", "__pycache__"]
        let others = found.subtracting(known).subtracting(ignored).filter { !$0.hasPrefix(".") }
        #expect(others.isEmpty, "\(others)")
        #expect(known.subtracting(found) == [])
    }
}
