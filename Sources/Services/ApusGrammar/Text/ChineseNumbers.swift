import ApusCore

/// Chinese numbers in characters and digits: 0 to 9999, negative ones (负五, 零下五), tenths (二十点五), 半, and percent
/// (百分之五十, 50%).
enum ChineseNumbers {
    private static let digits = ["零", "一", "二", "三", "四", "五", "六", "七", "八", "九"]
    private static let units: [(word: String, value: Int)] = [("千", 1000), ("百", 100), ("十", 10)]

    private static let values: [ExactText: Int] = {
        var values: [ExactText: Int] = [ExactText("两"): 2, ExactText("〇"): 0]
        for (value, word) in digits.enumerated() { values[ExactText(word)] = value }
        return values
    }()

    private static let joints: Set<ExactText> = Set(
        ["十", "百", "千", "点", "半", "分", "之", "负", "下"].map { ExactText($0) })

    /// True for a character that is part of a number.
    static func isNumeric(_ word: String) -> Bool {
        values[ExactText(word)] != nil || joints.contains(ExactText(word))
    }

    /// The characters that may follow the beginning of a number.
    static let suffixes: [[String]] =
        digits.map { [$0] } + [["十"], ["百"], ["千"], ["点", "五"], ["半"], ["分", "之", "五"], ["之", "五"]]
        + ["一", "五", "九"].map { ["零", $0] } + ["十", "百"].map { ["五", $0] }

    // MARK: Reading

    static func spans(in words: [TextWord], from start: Int) -> [NumberSpan] {
        let reader = Reader(words: words)
        if reader.text(start) == "百", reader.text(start + 1) == "分", reader.text(start + 2) == "之" {
            return reader.unsigned(start + 3).map { NumberSpan(end: $0.end, tenths: $0.tenths, isPercent: true) }
        }
        let isBelowZero = reader.text(start) == "零" && reader.text(start + 1) == "下"
        guard reader.text(start) == "负" || isBelowZero else { return reader.unsigned(start) + reader.percents(start) }
        return reader.unsigned(start + (isBelowZero ? 2 : 1)).filter { $0.tenths > 0 }.map {
            NumberSpan(end: $0.end, tenths: -$0.tenths)
        }
    }

    private struct Reader {
        let words: [TextWord]

        func text(_ index: Int) -> String { index < words.count ? words[index].text : "" }

        private func digit(_ index: Int) -> Int? {
            guard index < words.count, words[index].tenths == nil else { return nil }
            return ChineseNumbers.values[ExactText(words[index].text)]
        }

        private func unit(_ index: Int) -> Int? {
            let text = text(index)
            return ChineseNumbers.units.first { $0.word == text }?.value
        }

        /// Numbers with a percent sign behind them.
        func percents(_ start: Int) -> [NumberSpan] {
            unsigned(start).filter { text($0.end) == "%" }.map {
                NumberSpan(end: $0.end + 1, tenths: $0.tenths, isPercent: true)
            }
        }

        func unsigned(_ start: Int) -> [NumberSpan] {
            guard start < words.count else { return [] }
            if let tenths = words[start].tenths { return [NumberSpan(end: start + 1, tenths: tenths)] }
            if text(start) == "半" { return [NumberSpan(end: start + 1, tenths: 5)] }
            var spans = withUnits(start) + positional(start)
            for span in spans where text(span.end) == "点" {
                guard let tenth = digit(span.end + 1) else { continue }
                spans.append(NumberSpan(end: span.end + 2, tenths: span.tenths + tenth))
            }
            var seen: Set<NumberSpan> = []
            return spans.filter { seen.insert($0).inserted }
        }

        /// Digits without units: 二零二五, 零五.
        private func positional(_ start: Int) -> [NumberSpan] {
            var spans: [NumberSpan] = []
            var number = 0
            var index = start
            while index - start < 4, let digit = digit(index) {
                number = number * 10 + digit
                index += 1
                spans.append(NumberSpan(end: index, tenths: number * 10))
            }
            return spans
        }

        /// 一百二十, 一百零五, 十五, 两千; the colloquial 一百二 is 120.
        private func withUnits(_ start: Int) -> [NumberSpan] {
            var spans: [NumberSpan] = []
            var (number, unitBefore, index, hasZero) = (0, 10_000, start, false)
            while index < words.count {
                if let digit = digit(index), digit > 0, let unit = unit(index + 1), unit < unitBefore {
                    (number, unitBefore, index, hasZero) = (number + digit * unit, unit, index + 2, false)
                } else if unit(index) == 10, unitBefore > 10 {
                    (number, unitBefore, index, hasZero) = (number + 10, 10, index + 1, false)
                } else if digit(index) == 0, number > 0, !hasZero, unitBefore > 10 {
                    hasZero = true
                    index += 1
                    continue
                } else {
                    break
                }
                spans.append(NumberSpan(end: index, tenths: number * 10))
            }
            guard number > 0, let last = digit(index), last > 0 else { return spans }
            let value = hasZero || unitBefore == 10 ? last : last * unitBefore / 10
            return spans + [NumberSpan(end: index + 1, tenths: (number + value) * 10)]
        }
    }

    // MARK: Spelling

    static func spelled(_ number: Int) -> [[String]] {
        guard number >= 0 else { return spelled(-number).map { ["零", "下"] + $0 } }
        guard number > 9 else { return number == 2 ? [["二"], ["两"]] : [[digits[number]]] }
        var words: [String] = []
        var (rest, hasGap) = (number, false)
        for (word, unit) in units {
            let digit = rest / unit
            rest %= unit
            if digit > 0 {
                if hasGap { words.append("零") }
                // 十五 and not 一十五, but 一百一十五.
                if unit > 10 || digit > 1 || !words.isEmpty { words.append(digits[digit]) }
                words.append(word)
            }
            hasGap = !words.isEmpty && digit == 0
        }
        if rest > 0 { words += (hasGap ? ["零"] : []) + [digits[rest]] }
        guard words[0] == "二", words[1] == "百" || words[1] == "千" else { return [words] }
        return [words, ["两"] + words.dropFirst()]
    }
}
