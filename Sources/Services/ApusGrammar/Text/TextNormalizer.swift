/// Splits a text into normalized words.
///
/// - Case, accents, punctuation and repeated spaces do not matter.
/// - Apostrophes are dropped in English, and separate words in other languages: `What's` is `whats`, and `l'album` is
///   `l` and `album`.
/// - Digits are words of their own: `30s` is 30 and `s`. A point and one digit are tenths, three digits behind a comma
///   are thousands.
/// - `%` is the word for percent, `°` the one for degrees, and `-` in front of a digit the one for minus.
/// - A Han character is a word, so spaces in Chinese text do not matter.
///
/// Pure value.
package struct TextNormalizer: Sendable, Equatable {
    private let percent: String
    private let degrees: String
    private let minus: String
    private let and: String
    private let dropsApostrophes: Bool

    /// The normalizer of a language, which has the words for its signs.
    package init(_ language: GrammarLanguage) {
        dropsApostrophes = language.numbers != .digits
        switch language.numbers {
        case .chinese: (percent, degrees, minus, and) = ("%", "度", "负", "和")
        case .english: (percent, degrees, minus, and) = ("percent", "degrees", "minus", "and")
        case .digits: (percent, degrees, minus, and) = ("%", "°", "minus", "&")
        }
    }

    /// The words of a text. Each has its place in the text. Never fails; the text may be anything.
    package func words(_ text: String) -> [TextWord] {
        var words: [TextWord] = []
        // Each character with the place of its bytes.
        var characters: [(folded: TextFolding.Scalar, start: Int, end: Int)] = []
        var offset = 0
        for scalar in text.unicodeScalars {
            let end = offset + UTF8.width(scalar)
            characters.append((TextFolding.fold(scalar), offset, end))
            offset = end
        }
        var index = 0
        while index < characters.count {
            let start = characters[index].start
            switch characters[index].folded {
            case .letters:
                words.append(word(characters, &index))
                continue
            case .digit:
                words.append(Self.number(characters, &index))
                continue
            case .ideograph(let text): words.append(TextWord(text, range: start..<characters[index].end))
            case .symbol(let symbol):
                let text = symbol == "%" ? percent : symbol == "°" ? degrees : and
                words.append(TextWord(text, range: start..<characters[index].end))
            case .mark("-"):
                if Self.isMinus(characters, index) {
                    words.append(TextWord(minus, range: start..<characters[index].end))
                }
            case .mark, .ignored, .apostrophe, .separator: break
            }
            index += 1
        }
        return words
    }

    private typealias Characters = [(folded: TextFolding.Scalar, start: Int, end: Int)]

    /// A run of letters. Points between single letters are dropped: `a.m.` is `am`.
    private func word(_ characters: Characters, _ index: inout Int) -> TextWord {
        let start = characters[index].start
        var (text, end) = ("", start)
        var base: String?
        var isAbbreviation = true
        var letterCount = 0
        loop: while index < characters.count {
            switch characters[index].folded {
            case .letters(let letters):
                text += letters
                if base.map({ text != $0 + "s" }) ?? false { base = nil }
                letterCount += 1
                if letterCount > 1 { isAbbreviation = false }
                end = characters[index].end
            case .ignored: break
            case .apostrophe:
                guard dropsApostrophes else { break loop }
                base = text
            case .mark("."):
                guard isAbbreviation, letterCount == 1, index + 1 < characters.count,
                    case .letters = characters[index + 1].folded
                else { break loop }
                letterCount = 0
            case .digit, .ideograph, .symbol, .mark, .separator: break loop
            }
            index += 1
        }
        var word = TextWord(text, range: start..<end)
        if let base, !base.isEmpty, base.utf8.count < text.utf8.count { word.base = base }
        return word
    }

    /// A run of digits, with a group of thousands or tenths. A number over ``GrammarLimits/numberMax`` is a word
    /// without a value.
    private static func number(_ characters: Characters, _ index: inout Int) -> TextWord {
        func digits(from first: Int) -> [Int] {
            var digits: [Int] = []
            while first + digits.count < characters.count,
                case .digit(let digit) = characters[first + digits.count].folded
            {
                digits.append(digit)
            }
            return digits
        }
        func mark(at place: Int) -> Unicode.Scalar? {
            guard place < characters.count, case .mark(let mark) = characters[place].folded else { return nil }
            return mark
        }
        let start = characters[index].start
        var whole = digits(from: index)
        index += whole.count
        if whole.count <= 3, whole.first != 0, mark(at: index) == "," {
            let group = digits(from: index + 1)
            if group.count == 3 {
                whole += group
                index += 4
            }
        }
        var tenth: Int?
        if mark(at: index) == "." {
            let fraction = digits(from: index + 1)
            if fraction.count == 1, mark(at: index + 2) != "." {
                tenth = fraction[0]
                index += 2
            }
        }
        let range = start..<characters[index - 1].end
        let significant = whole.drop { $0 == 0 }
        let text = (significant.isEmpty ? [0] : Array(significant)).map(String.init).joined()
        guard significant.count <= 4 else { return TextWord(text + (tenth.map { ".\($0)" } ?? ""), range: range) }
        let tenths = significant.reduce(0) { $0 * 10 + $1 } * 10 + (tenth ?? 0)
        return TextWord(tenth == nil || tenth == 0 ? text : "\(text).\(tenth ?? 0)", tenths: tenths, range: range)
    }

    private static func isMinus(_ characters: Characters, _ index: Int) -> Bool {
        guard index + 1 < characters.count, case .digit = characters[index + 1].folded else { return false }
        guard index > 0 else { return true }
        return switch characters[index - 1].folded {
        case .separator, .ideograph: true
        case .letters, .digit, .symbol, .ignored, .apostrophe, .mark: false
        }
    }
}
