import ApusCore

/// English numbers in words and digits: 0 to 9999, negative ones, tenths (`twenty point five`) and halves (`two and a
/// half`).
enum EnglishNumbers {
    private static let ones = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    private static let teens = [
        "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    ]
    private static let tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

    private static let values: [ExactText: Int] = {
        var values: [ExactText: Int] = [ExactText("zero"): 0, ExactText("fourty"): 40]
        for (index, word) in (ones + teens).enumerated() { values[ExactText(word)] = index + 1 }
        for (index, word) in tens.enumerated() { values[ExactText(word)] = 10 * (index + 2) }
        return values
    }()

    private static let joints: Set<ExactText> = Set(
        ["a", "and", "half", "hundred", "minus", "negative", "o", "oh", "point", "thousand"].map { ExactText($0) })

    /// True for a word that is part of a number.
    static func isNumeric(_ word: String) -> Bool {
        values[ExactText(word)] != nil || joints.contains(ExactText(word))
    }

    /// The words that may follow the beginning of a number.
    static let suffixes: [[String]] =
        (ones + teens + tens).map { [$0] } + ones.map { ["and", $0] }
        + [["hundred"], ["thousand"], ["point", "five"], ["and", "a", "half"], ["a", "half"], ["half"]]

    // MARK: Reading

    static func spans(in words: [TextWord], from start: Int) -> [NumberSpan] {
        let reader = Reader(words: words)
        var spans = reader.unsigned(start)
        if ["minus", "negative"].contains(reader.text(start)) {
            spans = reader.unsigned(start + 1).filter { $0.tenths > 0 }
            for index in spans.indices { spans[index].tenths.negate() }
        }
        return spans
    }

    private struct Reader {
        let words: [TextWord]

        func text(_ index: Int) -> String { index < words.count ? words[index].text : "" }

        private func value(_ index: Int) -> Int? {
            guard index < words.count, words[index].tenths == nil else { return nil }
            return EnglishNumbers.values[ExactText(words[index].text)]
        }

        func unsigned(_ start: Int) -> [NumberSpan] {
            guard start < words.count else { return [] }
            if text(start) == "half" { return [NumberSpan(end: start + 1, tenths: 5)] }
            var spans: [NumberSpan] = []
            if let tenths = words[start].tenths { spans.append(NumberSpan(end: start + 1, tenths: tenths)) }
            spans += whole(start)
            for span in spans where span.tenths % 10 == 0 { spans += fractions(of: span) }
            var seen: Set<NumberSpan> = []
            return spans.filter { $0.tenths <= GrammarLimits.numberMax * 10 && seen.insert($0).inserted }
        }

        /// `point five`, and `and a half`.
        private func fractions(of span: NumberSpan) -> [NumberSpan] {
            let end = span.end
            if text(end) == "point" {
                if let digit = digit(end + 1) { return [NumberSpan(end: end + 2, tenths: span.tenths + digit)] }
            } else if text(end) == "and", text(end + 1) == "a", text(end + 2) == "half" {
                return [NumberSpan(end: end + 3, tenths: span.tenths + 5)]
            }
            return []
        }

        private func digit(_ index: Int) -> Int? {
            if ["o", "oh"].contains(text(index)) { return 0 }
            let number = value(index) ?? words[safe: index]?.tenths.map { $0 / 10 }
            return number.flatMap { (0...9).contains($0) ? $0 : nil }
        }

        private func whole(_ start: Int) -> [NumberSpan] {
            if value(start) == 0 { return [NumberSpan(end: start + 1, tenths: 0)] }
            if ["o", "oh"].contains(text(start)), let digit = value(start + 1), (1...9).contains(digit) {
                return [NumberSpan(end: start + 2, tenths: digit * 10)]
            }
            var spans = belowThousand(start)
            if let factor = factor(start), factor <= 9, text(start + 1) == "thousand" {
                spans.append(NumberSpan(end: start + 2, tenths: factor * 10_000))
                spans += rests(start + 2, added: factor * 10_000) { belowThousand($0) }
            }
            return spans
        }

        private func belowThousand(_ start: Int) -> [NumberSpan] {
            var spans = belowHundred(start)
            if let factor = factor(start), factor <= 19, text(start + 1) == "hundred" {
                spans.append(NumberSpan(end: start + 2, tenths: factor * 1000))
                spans += rests(start + 2, added: factor * 1000) { belowHundred($0) }
            }
            return spans
        }

        private func rests(_ start: Int, added: Int, _ read: (Int) -> [NumberSpan]) -> [NumberSpan] {
            let begin = text(start) == "and" ? start + 1 : start
            let isRest: (NumberSpan) -> Bool = { $0.tenths < (added % 10_000 == 0 ? 10_000 : 1000) }
            return read(begin).filter(isRest).map { NumberSpan(end: $0.end, tenths: $0.tenths + added) }
        }

        private func belowHundred(_ start: Int) -> [NumberSpan] {
            guard let first = value(start), first > 0 else { return [] }
            let span = NumberSpan(end: start + 1, tenths: first * 10)
            guard first >= 20, let second = value(start + 1), (1...9).contains(second) else { return [span] }
            return [span, NumberSpan(end: start + 2, tenths: (first + second) * 10)]
        }

        /// The number in front of `hundred` and `thousand`, in words or digits.
        private func factor(_ index: Int) -> Int? {
            if text(index) == "a" { return 1 }
            let number = value(index) ?? words[safe: index]?.tenths.flatMap { $0 % 10 == 0 ? $0 / 10 : nil }
            return number.flatMap { $0 > 0 ? $0 : nil }
        }
    }

    // MARK: Spelling

    static func spelled(_ number: Int) -> [[String]] {
        guard number >= 0 else { return spelled(-number).map { ["minus"] + $0 } }
        guard number > 0 else { return [["zero"]] }
        let (thousands, hundreds, rest) = (number / 1000, number % 1000 / 100, number % 100)
        var parts: [[String]] = [[]]
        if thousands > 0 { parts = parts.map { $0 + [ones[thousands - 1], "thousand"] } }
        if hundreds > 0 { parts = parts.map { $0 + [ones[hundreds - 1], "hundred"] } }
        if rest > 0 {
            let end = belowHundred(rest)
            parts = parts.flatMap { $0.isEmpty ? [end] : [$0 + end, $0 + ["and"] + end] }
        }
        if number == 100 { parts.append(["a", "hundred"]) }
        return parts
    }

    private static func belowHundred(_ number: Int) -> [String] {
        switch number {
        case 1...9: [ones[number - 1]]
        case 10...19: [teens[number - 10]]
        default: number % 10 == 0 ? [tens[number / 10 - 2]] : [tens[number / 10 - 2], ones[number % 10 - 1]]
        }
    }
}

extension Array {
    /// The element at an index; nil if the index is out of range.
    subscript(safe index: Int) -> Element? { indices.contains(index) ? self[index] : nil }
}
