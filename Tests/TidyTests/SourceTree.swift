import Foundation

/// The repository's own text files, read once.
struct SourceTree {
    struct File {
        /// From the repository's top.
        let path: String
        let text: String
        let lines: [Substring]

        init(path: String, text: String) {
            self.path = path
            self.text = text
            lines = text.split(separator: "\n", omittingEmptySubsequences: false)
        }

        var isGenerated: Bool { path.contains("/Generated/") }
        var isSwift: Bool { path.hasSuffix(".swift") }
        var name: String { String(path.split(separator: "/").last ?? "") }

        /// The modules that the file imports.
        var imports: [String] {
            lines.compactMap { line in
                var words = line.split(separator: " ").map { String($0) }
                guard !line.hasPrefix(" ") || line.contains("import ") else { return nil }
                while let first = words.first,
                    ["public", "package", "internal", "private", "@_exported"].contains(first)
                {
                    words.removeFirst()
                }
                guard words.first == "import", words.count > 1 else { return nil }
                let kinds = ["struct", "class", "enum", "protocol", "func", "typealias", "var", "let"]
                let module = kinds.contains(words[1]) && words.count > 2 ? words[2] : words[1]
                return String(module.split(separator: ".").first ?? "")
            }
        }
    }

    static let root = URL(fileURLWithPath: #filePath)
        .deletingLastPathComponent().appending(path: "../..").standardizedFileURL.path

    /// Folders that hold what people write; build products and state are elsewhere.
    private static let folders = [
        "Sources", "Examples", "Tests", "Benchmarks", "scripts", "docs", "proto", "cluster-configs", ".ci",
    ]
    private static let topFiles = ["Package.swift", "README.md", "CONTRIBUTING.md", "SECURITY.md", "NOTICE"]
    private static let binarySuffixes = [".mp4", ".png", ".bin", ".gz"]

    static let files: [File] = {
        var paths = topFiles
        for folder in folders {
            let names = FileManager.default.enumerator(atPath: "\(root)/\(folder)")?.compactMap { $0 as? String } ?? []
            paths += names.map { "\(folder)/\($0)" }
        }
        return paths.sorted().compactMap { path in
            guard !binarySuffixes.contains(where: { path.hasSuffix($0) }), !path.contains("/Corpus/"),
                !path.contains("/Crashes/"), !path.contains("/.build/"),
                let data = FileManager.default.contents(atPath: "\(root)/\(path)"),
                let text = String(data: data, encoding: .utf8)
            else { return nil }
            return File(path: path, text: text)
        }
    }()

    static let swift = files.filter { $0.isSwift && !$0.isGenerated }
    static let sources = swift.filter { $0.path.hasPrefix("Sources/") }
    /// Where numbers on the wire are given.
    static let numbered = swift.filter { $0.path.hasPrefix("Sources/") || $0.path.hasPrefix("Examples/") }
}
