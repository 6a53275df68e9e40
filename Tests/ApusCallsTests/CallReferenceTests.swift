import ApusCalls
import Foundation
import Testing

/// The document on calls has the state diagram of the code. With `APUS_REFERENCE=write` in the environment, as
/// `scripts/reference` sets it, the test writes it instead.
@Suite("The document on calls (CALL-4, CALL-15)")
struct CallReferenceTests {
    private static let path = URL(fileURLWithPath: #filePath).resolvingSymlinksInPath()
        .deletingLastPathComponent().appending(path: "../../docs/calls.md").standardizedFileURL.path

    @Test("CALL-4: the state diagram and the table of transitions are those of the machine")
    func diagram() throws {
        let text = try String(contentsOfFile: Self.path, encoding: .utf8)
        let made = """
            ```mermaid
            \(CallTransition.diagram)```

            | phase | event | next phase | reason of the end |
            |---|---|---|---|
            \(CallTransition.all.map(Self.row).joined(separator: "\n"))

            """
        let (begin, end) = ("<!-- made by scripts/reference -->\n", "<!-- end -->")
        let first = try #require(text.range(of: begin)).upperBound
        let last = try #require(text.range(of: end, range: first..<text.endIndex)).lowerBound
        if ProcessInfo.processInfo.environment["APUS_REFERENCE"] == "write" {
            try text.replacingCharacters(in: first..<last, with: made)
                .write(toFile: Self.path, atomically: true, encoding: .utf8)
            return
        }
        #expect(text[first..<last] == made, "docs/calls.md is not what the code makes: run scripts/reference")
    }

    private static func row(_ row: CallTransition) -> String {
        let reason = row.reason.map { "\($0)".humanized } ?? ""
        return "| \(row.from.name) | \(row.trigger.rawValue) | \(row.to.name) | \(reason) |"
    }
}

extension String {
    /// Words instead of capitals: `notAnswered` is `not answered`.
    fileprivate var humanized: String {
        reduce(into: "") { text, character in
            text += character.isUppercase ? " \(character.lowercased())" : "\(character)"
        }
    }
}
