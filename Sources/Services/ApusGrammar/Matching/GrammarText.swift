/// A text that is matched: its words, and all numbers in it.
///
/// Positions are between words. A set of positions is a `UInt64`, whose bit `n` is the position in front of word `n`.
///
/// Pure value.
struct GrammarText: Sendable {
    let text: String
    let words: [TextWord]
    /// The numbers of the words in the vocabulary; -1 for unknown words.
    let ids: [Int32]
    /// The same for the words without the `s` of a possessive.
    let bases: [Int32]
    /// The numbers that begin at each word.
    let spans: [[NumberSpan]]
    /// What begins at each word (``FirstWords``).
    let firsts: [UInt64]
    /// The positions that each position reaches by skip words, with itself.
    private(set) var skips: [UInt64]

    var count: Int { words.count }

    /// Nil if the text has more than ``GrammarLimits/textByteCountMax`` bytes or ``GrammarLimits/wordCountMax`` words.
    init?(_ text: String, _ tables: GrammarTables) {
        guard text.utf8.count <= GrammarLimits.textByteCountMax else { return nil }
        let templates = tables.templates
        let words = templates.normalizer.words(text)
        guard words.count <= GrammarLimits.wordCountMax else { return nil }
        (self.text, self.words) = (text, words)
        ids = words.map { tables.vocabulary.number(of: $0.text) ?? -1 }
        bases = words.map { $0.base.flatMap(tables.vocabulary.number) ?? -1 }
        spans = words.indices.map { templates.language.spans(in: words, from: $0) }
        var firsts: [UInt64] = []
        for index in words.indices {
            let word = ids[index] < 0 ? FirstWords.unknown : FirstWords.word(ids[index])
            let base = bases[index] < 0 ? 0 : FirstWords.word(bases[index])
            firsts.append(word | base | (spans[index].isEmpty ? 0 : FirstWords.number))
        }
        self.firsts = firsts
        skips = [UInt64](repeating: 0, count: words.count + 1)
        for index in skips.indices.reversed() {
            skips[index] = 1 << UInt64(index)
            for phrase in templates.skipPhrases {
                ends(of: phrase, from: index).forEachPosition { skips[index] |= skips[$0] }
            }
        }
    }

    /// True if a word of the vocabulary is at a position.
    func has(_ word: Int32, at position: Int) -> Bool { ids[position] == word || bases[position] == word }

    /// The leaves with which a plain text may begin at a position.
    func leaves(at position: Int) -> [GrammarLeaf] {
        var leaves: [GrammarLeaf] = []
        if ids[position] >= 0 { leaves.append(.word(ids[position])) }
        if bases[position] >= 0 { leaves.append(.word(bases[position])) }
        for span in spans[position] where !span.isPercent && !leaves.contains(.number(Int32(span.tenths))) {
            leaves.append(.number(Int32(span.tenths)))
        }
        return leaves
    }

    /// The positions behind a plain text that begins at a position.
    func ends(of leaves: [GrammarLeaf], from start: Int) -> UInt64 {
        var positions = UInt64(1) << UInt64(start)
        for leaf in leaves {
            var next = UInt64(0)
            positions.forEachPosition { position in
                guard position < count else { return }
                switch leaf {
                case .word(let word): if has(word, at: position) { next |= 1 << UInt64(position + 1) }
                case .number(let tenths): next |= ends(ofNumber: tenths, from: position)
                }
            }
            positions = next
            if positions == 0 { break }
        }
        return positions
    }

    /// The positions behind a number that begins at a position.
    func ends(ofNumber tenths: Int32, from start: Int) -> UInt64 {
        guard start < words.count else { return 0 }
        var positions = UInt64(0)
        for span in spans[start] where span.tenths == tenths && !span.isPercent { positions |= 1 << UInt64(span.end) }
        return positions
    }

    /// The positions that a set reaches by skip words, with itself.
    func skipping(_ positions: UInt64) -> UInt64 {
        var reached = UInt64(0)
        positions.forEachPosition { reached |= skips[$0] }
        return reached
    }

    /// The original text of some words.
    func said(_ words: Range<Int>) -> (text: String, range: Range<Int>) {
        guard let first = words.first, let last = words.last else { return ("", 0..<0) }
        let range = self.words[first].range.lowerBound..<self.words[last].range.upperBound
        return (String(decoding: Array(text.utf8)[range], as: UTF8.self), range)
    }
}

extension UInt64 {
    /// Calls the closure with each bit that is set, from the lowest.
    @inline(__always)
    func forEachPosition(_ body: (Int) -> Void) {
        var rest = self
        while rest != 0 {
            body(rest.trailingZeroBitCount)
            rest &= rest - 1
        }
    }

    func has(_ position: Int) -> Bool { self & (1 << UInt64(position)) != 0 }
}
