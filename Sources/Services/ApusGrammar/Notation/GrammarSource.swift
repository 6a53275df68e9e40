import ApusCore

/// A name with a value: an entry of a context, of a value's metadata, or a fixed slot.
///
/// Pure value.
package struct GrammarFact: Sendable, Hashable {
    package var name: String
    package var value: String

    package init(_ name: String, _ value: String) { (self.name, self.value) = (name, value) }
}

extension [GrammarFact] {
    /// The value of the last entry of a name; nil if the name is missing.
    package func value(of name: String) -> String? { last { $0.name.isExactly(name) }?.value }
}

/// A condition of a data block on the context: `requires_context` or `excludes_context`.
///
/// Pure value.
package struct GrammarCondition: Sendable, Hashable {
    package var name: String
    /// The values that fit; empty: every value.
    package var values: [String]
    /// True if the value of the context becomes a slot of the same name (`slot: true`).
    package var fillsSlot: Bool

    package init(_ name: String, _ values: [String] = [], fillsSlot: Bool = false) {
        (self.name, self.values, self.fillsSlot) = (name, values, fillsSlot)
    }

    func fits(_ value: String) -> Bool { values.isEmpty || values.contains { $0.isExactly(value) } }
}

/// A value of a list: what people say, and what it stands for.
///
/// Several values may have the same text, such as two devices of one name. One value may have several texts: it is then
/// several times in the list.
///
/// Pure value.
package struct GrammarValue: Sendable, Hashable {
    /// What people say. In a file it is a template; in a list that is bound at run time it is plain text.
    package var text: String
    /// What the slot has, such as the id of a device.
    package var value: String
    /// Facts about the value, which conditions of data blocks see.
    package var context: [GrammarFact]
    /// Facts about the value for the receiver of a match.
    package var metadata: [GrammarFact]

    package init(
        _ text: String, value: String? = nil, context: [GrammarFact] = [], metadata: [GrammarFact] = []
    ) {
        (self.text, self.value, self.context, self.metadata) = (text, value ?? text, context, metadata)
    }
}

/// The numbers of a list.
///
/// Pure value.
package struct GrammarRange: Sendable, Hashable {
    /// What the numbers are (`type`).
    package enum Kind: String, Sendable { case number, percentage, temperature }
    /// The fractions that a number may have.
    package enum Fractions: String, Sendable { case none, halves, tenths }

    /// A percentage may include the word for percent, as 百分之五十 does.
    package var kind = Kind.number
    /// The first number.
    package var from: Int
    /// The last number, included.
    package var to: Int
    /// The difference of two numbers. Numbers with fractions are not checked for it.
    package var step = 1
    package var fractions = Fractions.none
    /// The slot has the number times this factor.
    package var multiplier = 1

    package init(_ from: Int, _ to: Int, step: Int = 1, kind: Kind = .number) {
        (self.from, self.to, self.step, self.kind) = (from, to, step, kind)
    }

    /// True if the range contains a number.
    func contains(_ span: NumberSpan) -> Bool {
        guard !span.isPercent || kind == .percentage, span.tenths >= from * 10, span.tenths <= to * 10 else {
            return false
        }
        return switch fractions {
        case .none: (span.tenths - from * 10) % (step * 10) == 0
        case .halves: span.tenths % 5 == 0
        case .tenths: true
        }
    }

    /// The number of whole numbers in the range.
    var count: Int { (to - from) / step + 1 }

    /// The value of a slot for a number in tenths.
    func value(ofTenths tenths: Int) -> String {
        let product = tenths * multiplier
        guard product % 10 != 0 else { return "\(product / 10)" }
        return "\(product < 0 ? "-" : "")\(abs(product) / 10).\(abs(product) % 10)"
    }

    /// The range without the numbers over ``GrammarLimits/numberMax``, which no text has.
    ///
    /// - Throws: 21031 if nothing is left, or a member is out of range.
    func checked(_ place: GrammarPlace) throws(ApusError) -> GrammarRange {
        let numberMax = GrammarLimits.numberMax
        guard (-numberMax...numberMax).contains(from), from <= to else {
            throw ApusError(
                grammar: place, "a range has 'from' up to 'to', and 'from' is from -\(numberMax) to \(numberMax)")
        }
        guard (1...GrammarLimits.numberMax).contains(step), multiplier != 0, abs(multiplier) <= 1_000_000 else {
            throw ApusError(grammar: place, "'step' is 1 or more, and 'multiplier' is not 0")
        }
        var range = self
        range.to = min(to, numberMax)
        return range
    }
}

/// A list that sentences name, as it is written.
///
/// Pure value.
package struct GrammarList: Sendable, Equatable {
    /// What the list has.
    package enum Content: Sendable, Equatable {
        case values([GrammarValue])
        case range(GrammarRange)
        /// Any words, at least one.
        case wildcard
    }

    package var name: String
    package var content: Content

    package init(_ name: String, _ content: Content) { (self.name, self.content) = (name, content) }

    /// A list of values.
    package init(_ name: String, _ values: [GrammarValue]) { self.init(name, .values(values)) }
}

/// A rule that sentences name, as it is written.
///
/// Pure value.
package struct GrammarRule: Sendable, Equatable {
    package var name: String
    package var text: String

    package init(_ name: String, _ text: String) { (self.name, self.text) = (name, text) }
}

/// The sentences of a language, as files have them (the notation of home-assistant-intents).
///
/// Pure value.
package struct GrammarSource: Sendable, Equatable {
    /// An intent: a name for what sentences mean.
    package struct Intent: Sendable, Equatable {
        package var name: String
        package var blocks: [Block]

        package init(_ name: String, _ blocks: [Block]) { (self.name, self.blocks) = (name, blocks) }
    }

    /// An element of `data`: sentences, and what they have in common.
    package struct Block: Sendable, Equatable {
        package var sentences: [String]
        /// The slots that every match of the block has.
        package var slots: [GrammarFact] = []
        /// The facts that the context, or the value of a slot, must have.
        package var requires: [GrammarCondition] = []
        /// The facts that neither may have.
        package var excludes: [GrammarCondition] = []
        /// Rules and lists of this block alone. They hide global ones of the same name.
        package var rules: [GrammarRule] = []
        package var lists: [GrammarList] = []

        package init(_ sentences: [String]) { self.sentences = sentences }
    }

    package var language: GrammarLanguage
    package var intents: [Intent] = []
    package var lists: [GrammarList] = []
    package var rules: [GrammarRule] = []
    /// Words that a text may have anywhere between others, such as `please`.
    package var skipWords: [String] = []
    /// Sentences of others, with rules and lists of their own, which hide those of this source for these sentences
    /// alone. Of two meanings that are equally good, theirs comes first.
    package var extensions: [GrammarSource] = []

    /// A source without sentences.
    package init(_ language: GrammarLanguage) { self.language = language }

    /// Adds another file of the same language. Sentences of an intent are added to those that the intent has.
    package mutating func add(_ other: GrammarSource) {
        for intent in other.intents {
            if let index = intents.firstIndex(where: { $0.name.isExactly(intent.name) }) {
                intents[index].blocks += intent.blocks
            } else {
                intents.append(intent)
            }
        }
        lists += other.lists
        rules += other.rules
        skipWords += other.skipWords
    }
}
