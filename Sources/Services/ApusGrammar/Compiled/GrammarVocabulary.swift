import ApusCore

/// The words of a grammar, numbered.
///
/// Pure value.
struct GrammarVocabulary: Sendable {
    private var numbers: [ExactText: Int32] = [:]
    /// The words as recognisers and people write them: with apostrophes.
    private(set) var shown: [String] = []

    /// The number of a word; nil if the grammar does not have it.
    func number(of word: String) -> Int32? { numbers[ExactText(word)] }

    mutating func add(_ word: TextWord, in text: String) -> Int32 {
        if let number = numbers[ExactText(word.text)] { return number }
        let number = Int32(shown.count)
        numbers[ExactText(word.text)] = number
        shown.append(Self.shown(word, in: text))
        return number
    }

    /// The plain text of a grammar as leaves. A number in words is the number that it is, so that digits match it.
    mutating func leaves(of text: String, _ language: GrammarLanguage, _ normalizer: TextNormalizer) -> [GrammarLeaf] {
        let words = normalizer.words(text)
        var leaves: [GrammarLeaf] = []
        var index = 0
        while index < words.count {
            let spans = language.spans(in: words, from: index).filter { $0.whole != nil && !$0.isPercent }
            if let span = spans.max(by: { $0.end < $1.end }) {
                leaves.append(.number(Int32(span.tenths)))
                index = span.end
            } else {
                leaves.append(.word(add(words[index], in: text)))
                index += 1
            }
        }
        return leaves
    }

    private static func shown(_ word: TextWord, in text: String) -> String {
        let bytes = Array(text.utf8)
        guard word.range.upperBound <= bytes.count else { return word.text }
        let written = String(decoding: bytes[word.range], as: UTF8.self).lowercased()
        let isPlain = written.utf8.allSatisfy { (UInt8(ascii: "a")...UInt8(ascii: "z")).contains($0) || $0 == 0x27 }
        return isPlain ? written : word.text
    }
}
