import Testing

@Suite("Tidy: the code of the SDK's articles")
struct TutorialBlockTests {
    private static let articles = "Sources/Clients/ApusClient/ApusClient.docc/"
    /// Files that `scripts/test` or `scripts/try-sdk` builds.
    private static let built = [
        "Tests/ClusterTests/Tutorial.swift", "Tests/ClusterTests/ClientAPITests.swift", "Examples/App/Package.swift",
    ]

    @Test("Each Swift block of an article is in a file that is built, verbatim but for its indentation")
    func blocks() throws {
        let sources = try Self.built.map { path in
            try #require(SourceTree.files.first { $0.path == path }, "\(path) is missing").lines
        }
        var blockCount = 0
        for article in SourceTree.files where article.path.hasPrefix(Self.articles) {
            for (number, block) in Self.blocks(of: article.lines) {
                blockCount += 1
                let isBuilt = sources.contains { Self.contains($0, block) }
                #expect(isBuilt, "\(article.path):\(number) has code that is in none of \(Self.built)")
            }
        }
        #expect(blockCount >= 8, "the blocks are not found any more")
    }

    @Test("A block is found at any indentation, and not where a line of it differs")
    func reading() {
        let article = ["text", "```swift", "if a {", "    b()", "}", "```", "```sh", "ls", "```"]
        let blocks = Self.blocks(of: article.map { $0[...] })
        #expect(blocks.map(\.number) == [3] && blocks.map(\.text) == [["if a {", "    b()", "}"]])
        func isFound(_ source: [String]) -> Bool { Self.contains(source.map { $0[...] }, blocks[0].text) }
        #expect(isFound(["if a {", "    b()", "}"]))
        #expect(isFound(["func f() {", "    if a {", "        b()", "    }", "}"]))
        #expect(!isFound(["if a {", "    c()", "}"]))
        #expect(!isFound(["if a {", "        b()", "}"]))
        #expect(!isFound(["if a {", "    b()"]))
    }

    /// The Swift blocks of a document, each with the number of its first line.
    private static func blocks(of lines: [Substring]) -> [(number: Int, text: [Substring])] {
        var blocks: [(number: Int, text: [Substring])] = []
        var open: [Substring]?
        for (index, line) in lines.enumerated() {
            if line.hasPrefix("```") {
                if let text = open { blocks.append((index - text.count + 1, text)) }
                open = line == "```swift" ? [] : nil
            } else {
                open?.append(line)
            }
        }
        return blocks
    }

    /// True if the lines have the block, with the same number of spaces before each of its lines.
    private static func contains(_ lines: [Substring], _ block: [Substring]) -> Bool {
        guard let first = block.first, lines.count >= block.count else { return false }
        for start in 0...(lines.count - block.count) where lines[start].hasSuffix(first) {
            let margin = String(repeating: " ", count: lines[start].count - first.count)
            let isSame = zip(lines[start...], block).allSatisfy { line, wanted in
                wanted.isEmpty ? line.isEmpty : String(line) == margin + String(wanted)
            }
            if isSame { return true }
        }
        return false
    }
}
