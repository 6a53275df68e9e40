import ApusCore
import Foundation
import Testing

@Suite("Tidy: documents")
struct DocumentTests {
    @Test("Every link to a file of the repository leads somewhere")
    func links() throws {
        let link = /\]\(([^)\s]+)\)/
        for file in SourceTree.files where file.path.hasSuffix(".md") {
            let folder = URL(fileURLWithPath: "\(SourceTree.root)/\(file.path)").deletingLastPathComponent()
            for (index, line) in file.lines.enumerated() {
                for match in line.matches(of: link) {
                    let target = String(match.1.split(separator: "#", omittingEmptySubsequences: false).first ?? "")
                    guard !target.isEmpty, !target.contains("://"), !target.hasPrefix("mailto:") else { continue }
                    let path = folder.appending(path: target).standardizedFileURL.path
                    #expect(
                        FileManager.default.fileExists(atPath: path), "\(file.path):\(index + 1) links to \(target)")
                }
            }
        }
    }

    @Test("Every file that people meet first is there")
    func houseFiles() {
        for name in ["README.md", "LICENSE", "NOTICE", "CONTRIBUTING.md", "SECURITY.md", ".swift-format", ".ci/run"] {
            #expect(FileManager.default.fileExists(atPath: "\(SourceTree.root)/\(name)"), "\(name) is missing")
        }
    }

    @Test("The table of what ends a client says in the document what it says in the code")
    func endings() throws {
        let lines = SourceTree.files.first { $0.path == "docs/operating.md" }?.lines ?? []
        let start = try #require(lines.firstIndex { $0.hasPrefix("| number | what it ends") })
        let rows = lines[(start + 2)...].prefix { $0.hasPrefix("|") }.map(String.init)
        #expect(rows == ErrorCode.endings.map { "| \($0.code) | \($0.ending.rawValue) | \($0.reason) |" })
    }

    @Test("Every document opens with a title")
    func titles() {
        for file in SourceTree.files where file.path.hasSuffix(".md") {
            #expect(file.lines.first?.hasPrefix("# ") == true, "\(file.path) has no title")
        }
    }

    @Test("Scripts can be run, and stop at the first failure")
    func scripts() {
        for file in SourceTree.files {
            let isScript =
                file.path.hasPrefix("scripts/") && !file.path.hasPrefix("scripts/lib/") && !file.name.contains(".")
            guard isScript || file.path == ".ci/run" else { continue }
            #expect(
                FileManager.default.isExecutableFile(atPath: "\(SourceTree.root)/\(file.path)"),
                "\(file.path) is not executable")
            #expect(file.text.contains("set -euo pipefail"), "\(file.path) goes on after a failure")
        }
    }

    @Test("A target has its folder, and a folder of sources its target")
    func manifest() throws {
        let manifest = try #require(SourceTree.files.first { $0.path == "Package.swift" }).text
        for file in SourceTree.sources {
            let parts = file.path.split(separator: "/")
            guard parts.count > 2 else { continue }
            #expect(manifest.contains("\"\(parts[2])\""), "\(file.path) is in no target")
        }
    }

    @Test("The drawing of the layers has each target of the manifest, and the table says what it is for")
    func drawing() throws {
        let manifest = try #require(SourceTree.files.first { $0.path == "Package.swift" }).text
        let lines = try #require(SourceTree.files.first { $0.path == "docs/concepts.md" }).lines
        let layers = manifest.matches(of: /layer\(\s*"\w+", "(\w+)"/).map { String($0.1) }
        let others = manifest.matches(of: /\.(?:target|systemLibrary|executableTarget)\(\s*name: "([\w\-]+)"/).map {
            String($0.1)
        }
        #expect(layers.count > 15 && others.count > 10, "the manifest is written in another way now")
        let drawn = Set(lines.filter { !$0.hasPrefix("|") }.flatMap { $0.split(separator: " ").map(String.init) })
        for target in layers + others {
            #expect(drawn.contains(target), "\(target) is not drawn in docs/concepts.md")
            #expect(lines.contains { $0.hasPrefix("| \(target) | ") }, "docs/concepts.md has no row for \(target)")
        }
    }
}
