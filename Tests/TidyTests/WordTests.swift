import ApusCore
import Foundation
import Testing

@Suite("Tidy: words")
struct WordTests {
    /// A word that must not stand in the sources, and what to do instead. Spelled in parts, so that this file passes.
    static let banned: [(word: String, instead: String)] = [
        ("TO" + "DO", "do it, or open an issue"), ("FIX" + "ME", "fix it"), ("XX" + "X", "say it in a sentence"),
        ("HA" + "CK", "say why in a sentence"), ("try" + "!", "handle the error"),
        ("as" + "!", "use as? and handle nil"),
        ("fatal" + "Error(", "throw, or precondition with the state in the message"),
        ("@test" + "able", "use package access"), ("XCT" + "est", "use Swift Testing"),
    ]

    @Test("Banned words do not appear", arguments: banned.map(\.word))
    func bannedWords(word: String) {
        let instead = Self.banned.first { $0.word == word }?.instead ?? ""
        for file in SourceTree.files where file.isSwift || file.path.hasPrefix("scripts/") {
            // A script may explain a Swift word; an unfinished thing is one everywhere.
            guard !file.isGenerated, file.isSwift || ["TO" + "DO", "FIX" + "ME"].contains(word) else { continue }
            for (index, line) in file.lines.enumerated() where Self.contains(line, word) {
                Issue.record("\(file.path):\(index + 1) says \(word): \(instead)")
            }
        }
    }

    /// Whole words only, so that base64 text and longer names are no hit.
    private static func contains(_ line: Substring, _ word: String) -> Bool {
        guard let range = line.range(of: word) else { return false }
        let before = range.lowerBound == line.startIndex ? nil : line[line.index(before: range.lowerBound)]
        let after = range.upperBound == line.endIndex ? nil : line[range.upperBound]
        let isStart = before.map { !$0.isLetter && !$0.isNumber && $0 != "_" } ?? true
        let endsInLetter = word.last?.isLetter ?? false
        let isEnd = after.map { !endsInLetter || (!$0.isLetter && !$0.isNumber && $0 != "_") } ?? true
        return isStart && isEnd
    }

    /// The compiler (6.3) wraps such a closure once more at each access, so each call is slower than the one before.
    @Test("No closure is by itself the value of a lock")
    func lockedClosures() {
        for file in SourceTree.files where file.path.hasPrefix("Sources/") && file.path.hasSuffix(".swift") {
            let found = file.text.firstMatch(of: /Mutex<\(*@/)
            #expect(found == nil, "\(file.path) has a closure as the value of a Mutex: put it in a structure")
        }
    }

    @Test("Libraries do not print: they log or return")
    func noPrint() {
        for file in SourceTree.sources where !file.path.hasPrefix("Sources/Command/") {
            for (index, line) in file.lines.enumerated() {
                let code = line.drop { $0 == " " }
                guard code.hasPrefix("print(") || code.contains(" print(") else { continue }
                Issue.record("\(file.path):\(index + 1) prints")
            }
        }
    }

    @Test("No file names a developer's machine")
    func noForeignPaths() {
        let roots = ["/ho" + "me/", "/Us" + "ers/", "/ro" + "ot/", "/wo" + "rk/"]
        for file in SourceTree.files {
            for (index, line) in file.lines.enumerated() {
                for root in roots where line.contains(root) && !line.contains("https://") {
                    Issue.record("\(file.path):\(index + 1) names \(root)")
                }
            }
        }
    }

    @Test("Every use of an unsafe construct says who keeps it safe (style 39)")
    func safetyComments() {
        let onTheLine = ["@unchecked Sendable", "nonisolated(unsafe)", "try" + "!", "as" + "! "]
        let nearby = ["unsafeBitCast", "assumingMemoryBound"]
        for file in SourceTree.swift where file.name != "WordTests.swift" {
            for (index, line) in file.lines.enumerated() {
                let code = line.drop { $0 == " " }
                guard !code.hasPrefix("//") else { continue }
                if onTheLine.contains(where: { code.contains($0) }), !code.contains("// SAFETY: ") {
                    Issue.record("\(file.path):\(index + 1) has no SAFETY note on the line")
                }
                guard nearby.contains(where: { code.contains($0) }) else { continue }
                let around = file.lines[max(0, index - 8)...min(index + 2, file.lines.count - 1)]
                #expect(
                    around.contains { $0.contains("SAFETY:") }, "\(file.path):\(index + 1) has no SAFETY comment")
            }
        }
    }

    @Test("Every error number is unique, in a known family, and has a sentence")
    func errorCatalogue() {
        let numbers = ErrorCode.all.map(\.number)
        #expect(Set(numbers).count == numbers.count)
        let families: [ClosedRange<Int32>] = [
            -2599 ... -2500, 8000...8499, 8500...8699, 10_000...10_999, 12_000...12_999, 20_000...20_999,
            21_000...21_999,
        ]
        for code in ErrorCode.all {
            #expect(families.contains { $0.contains(code.number) }, "\(code) is in no family")
            #expect(!code.summary.isEmpty)
            #expect(ErrorCode(number: code.number) == code)
        }
        let declared = SourceTree.sources.first { $0.path.hasSuffix("ApusCore/ApusError.swift") }?.lines
            .count { $0.contains("public static let") && $0.contains("= Self(") }
        #expect(declared == numbers.count, "a code is declared but not in ErrorCode.all")
    }
}
