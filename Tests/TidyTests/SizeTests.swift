import Testing

@Suite("Tidy: sizes (style 35 to 37)")
struct SizeTests {
    @Test("No file is longer than 600 lines, no machine longer than 900")
    func files() {
        for file in SourceTree.swift {
            let limit = file.name.hasSuffix("StateMachine.swift") ? 900 : 600
            #expect(file.lines.count <= limit, "\(file.path) has \(file.lines.count) lines")
        }
    }

    @Test("No line is longer than 120 characters")
    func lines() {
        for file in SourceTree.swift where file.path != "Package.swift" {
            for (index, line) in file.lines.enumerated() where line.count > 120 {
                Issue.record("\(file.path):\(index + 1) has \(line.count) characters")
            }
        }
    }

    @Test("No function is longer than 70 lines")
    func functions() {
        for file in SourceTree.swift {
            for function in Self.functions(in: file) where function.lineCount > 70 {
                Issue.record("\(file.path):\(function.line) is a function of \(function.lineCount) lines")
            }
        }
    }

    /// Functions by their indentation: from the line that declares one to the line that closes it at the same depth.
    private static func functions(in file: SourceTree.File) -> [(line: Int, lineCount: Int)] {
        var found: [(line: Int, lineCount: Int)] = []
        for (start, line) in file.lines.enumerated() {
            let depth = line.prefix { $0 == " " }.count
            let words = line.split(separator: " ")
            guard words.contains("func") || words.contains(where: { $0.hasPrefix("init(") || $0.hasPrefix("init?(") }),
                let head = words.first, !head.hasPrefix("//"), !head.hasPrefix("*"), !head.hasPrefix("."),
                head != "self"
            else { continue }
            let close = String(repeating: " ", count: depth) + "}"
            for end in start..<file.lines.count {
                // The end of a declaration without a body, or of one on a single line.
                if end == start, line.hasSuffix("}") { break }
                if end > start, file.lines[end].prefix(depth + 1) == close {
                    found.append((start + 1, end - start + 1))
                    break
                }
                let deeper = file.lines[end].prefix { $0 == " " }.count > depth
                let isHead =
                    end == start || deeper || file.lines[end].isEmpty
                    || file.lines[end].hasPrefix(
                        String(repeating: " ", count: depth) + ")")
                guard isHead else { break }
            }
        }
        return found
    }
}
