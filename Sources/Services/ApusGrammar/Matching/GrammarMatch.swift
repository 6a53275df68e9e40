import ApusCore

/// A slot of a match.
///
/// Pure value.
package struct GrammarSlot: Sendable, Hashable {
    package var name: String
    /// The values that have the text that was said, at least one. There are several if devices have the same name: the
    /// receiver asks which one is meant. At most ``GrammarLimits/candidateCountMax``.
    package var candidates: [GrammarValue]
    /// What was said, as the text has it; empty for a slot that the sentence fixes, or that the context fills.
    package var text: String
    /// The place of ``text`` in the text, in bytes of UTF-8; nil if the slot was not said.
    package var range: Range<Int>?

    /// - Parameter candidates: at least one.
    package init(name: String, candidates: [GrammarValue], text: String, range: Range<Int>? = nil) {
        (self.name, self.candidates, self.text, self.range) = (name, candidates, text, range)
    }

    /// The first value.
    package var value: String { candidates.first?.value ?? "" }
    /// True if the text stands for several values.
    package var isAmbiguous: Bool {
        candidates.contains { !$0.value.isExactly(value) }
    }
}

/// One meaning of a text.
///
/// Pure value.
package struct GrammarMatch: Sendable, Hashable {
    /// The name of the intent, such as those of ``VoiceIntent``.
    package var intent: String
    /// In the order of the text; then those that were not said.
    package var slots: [GrammarSlot]
    /// The number of words that the sentence itself has. Values of lists and skip words do not count.
    package var literalWordCount: Int
    /// The number of words that stand for a wildcard.
    package var wildcardWordCount: Int
    /// The sentence as the source has it.
    package var sentence: String

    /// The first slot of a name; nil if the match does not have it.
    package func slot(_ name: String) -> GrammarSlot? { slots.first { $0.name.isExactly(name) } }

    /// The value of a slot; nil if the match does not have it.
    package func value(_ name: String) -> String? { slot(name)?.value }
}

/// The meanings of a text, the best first.
///
/// Pure value.
package struct GrammarMatches: Sendable, Equatable {
    /// Whether these are all meanings of the text.
    package enum Extent: Sendable, Equatable {
        /// All meanings were found.
        case complete
        /// There are more than ``GrammarLimits/matchCountMax``, or a part has too many bindings.
        case truncated
        /// The walk took more than ``GrammarLimits/stepCountMax`` steps. There are no matches.
        case stopped
        /// The text has more than ``GrammarLimits/textByteCountMax`` bytes or ``GrammarLimits/wordCountMax`` words.
        /// There are no matches.
        case tooLong
    }

    /// At most ``GrammarLimits/matchCountMax``.
    package var all: [GrammarMatch]
    package var extent: Extent

    package init(_ all: [GrammarMatch] = [], extent: Extent = .complete) { (self.all, self.extent) = (all, extent) }

    /// The first meaning. Another one may be as good: compare what the matches have.
    package var best: GrammarMatch? { all.first }
    package var isEmpty: Bool { all.isEmpty }
}

/// Whether a text is a sentence of a grammar, for the end of speech.
package enum GrammarVerdict: Sendable, Equatable {
    /// No sentence, and no beginning of one.
    case none
    /// The beginning of a sentence.
    case beginning
    /// A sentence.
    case whole
    /// A sentence, and also the beginning of a longer one.
    case wholeAndBeginning
}
