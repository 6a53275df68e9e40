import ApusCore

/// The language of a grammar, and how it writes numbers.
///
/// Pure value.
package struct GrammarLanguage: Sendable, Hashable, CustomStringConvertible {
    /// The languages whose numbers are read in words.
    package enum Numbers: Sendable, Hashable {
        case english, chinese
        /// Only digits, for every other language.
        case digits
    }

    /// The tag, such as `en` or `zh-CN`, in lower case.
    package let tag: String
    /// How numbers are written in words.
    package let numbers: Numbers
    /// True if a word has one character, and the spaces between words do not matter.
    package let isByCharacter: Bool

    package static let english = GrammarLanguage("en")
    package static let chinese = GrammarLanguage("zh-CN")

    /// A language by its tag (RFC 5646). Any text is a tag: an unknown language has digits as numbers.
    package init(_ tag: String) {
        self.tag = tag.lowercased()
        let primary = self.tag.prefix { $0 != "-" && $0 != "_" }
        switch primary {
        case "en": (numbers, isByCharacter) = (.english, false)
        case "zh", "cmn", "yue": (numbers, isByCharacter) = (.chinese, true)
        case "ja": (numbers, isByCharacter) = (.digits, true)
        default: (numbers, isByCharacter) = (.digits, false)
        }
    }

    package var description: String { tag }

    /// The numbers that begin at a word, the longest last.
    package func spans(in words: [TextWord], from start: Int) -> [NumberSpan] {
        switch numbers {
        case .english: EnglishNumbers.spans(in: words, from: start)
        case .chinese: ChineseNumbers.spans(in: words, from: start)
        case .digits: DigitNumbers.spans(in: words, from: start)
        }
    }

    /// The numbers of which the words from `start` to the end are the beginning, as the number that longer words have,
    /// such as 21 for `twenty`. Not all of them: at least one for each way to continue.
    package func continuations(of words: [TextWord], from start: Int) -> [NumberSpan] {
        let suffixes: [[String]]
        switch numbers {
        case .english: suffixes = EnglishNumbers.suffixes
        case .chinese: suffixes = ChineseNumbers.suffixes
        case .digits: return []
        }
        // Digits continue as their words do: a recogniser may write 20 before it writes 25.
        let said = words[start...].flatMap { word -> [TextWord] in
            guard let tenths = word.tenths, tenths % 10 == 0 else { return [word] }
            return spelled(tenths / 10)[0].map { TextWord($0) }
        }
        guard isNumeric(said) else { return [] }
        return suffixes.flatMap { suffix in
            let longer = said + suffix.map { TextWord($0) }
            return spans(in: longer, from: 0).filter { $0.end == longer.count }
        }
    }

    private func isNumeric(_ words: [TextWord]) -> Bool {
        switch numbers {
        case .english: words.allSatisfy { EnglishNumbers.isNumeric($0.text) }
        case .chinese: words.allSatisfy { ChineseNumbers.isNumeric($0.text) }
        case .digits: false
        }
    }

    /// The words of a number, in each way that people say it, the usual one first.
    ///
    /// - Precondition: the absolute value is at most ``GrammarLimits/numberMax``.
    package func spelled(_ number: Int) -> [[String]] {
        precondition(abs(number) <= GrammarLimits.numberMax, "the number \(number) has no words")
        return switch numbers {
        case .english: EnglishNumbers.spelled(number)
        case .chinese: ChineseNumbers.spelled(number)
        case .digits: DigitNumbers.spelled(number)
        }
    }
}

/// Numbers in digits.
enum DigitNumbers {
    static func spans(in words: [TextWord], from start: Int) -> [NumberSpan] {
        guard start < words.count else { return [] }
        if let tenths = words[start].tenths { return [NumberSpan(end: start + 1, tenths: tenths)] }
        guard words[start].text.isExactly("minus"), start + 1 < words.count, let tenths = words[start + 1].tenths else {
            return []
        }
        return [NumberSpan(end: start + 2, tenths: -tenths)]
    }

    static func spelled(_ number: Int) -> [[String]] { [number < 0 ? ["minus", "\(-number)"] : ["\(number)"]] }
}
