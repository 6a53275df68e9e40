package import ApusCore

/// The sentences of a language, compiled. It has no lists of an account yet: ``Grammar`` binds them.
///
/// Compiling takes milliseconds, and binding less, so one value serves all accounts.
///
/// Pure value.
package struct GrammarTemplates: Sendable {
    /// A sentence of the source.
    struct Sentence: Sendable {
        var text: String
        var root: Int32
        /// The number of its block.
        var block: Int
    }

    /// A data block of the source.
    struct Block: Sendable {
        var intent: String
        var slots: [GrammarFact]
        var filter: Filter
    }

    /// The conditions of a block. They select the values that its lists have.
    struct Filter: Sendable, Hashable {
        var requires: [GrammarCondition] = []
        var excludes: [GrammarCondition] = []

        /// True if a value may be in a slot of the block.
        func admits(_ value: GrammarValue) -> Bool {
            guard !value.context.isEmpty else { return true }
            let isRequired = requires.allSatisfy { condition in
                value.context.value(of: condition.name).map(condition.fits) ?? true
            }
            return isRequired
                && !excludes.contains { condition in
                    value.context.value(of: condition.name).map(condition.fits) ?? false
                }
        }
    }

    /// A list as the blocks of one filter see it.
    struct ListUse: Sendable, Hashable {
        var list: Int
        var filter: Filter
    }

    struct List: Sendable {
        enum Content: Sendable {
            case values([Value])
            case range(GrammarRange)
            case wildcard
            /// Bound at run time.
            case bound
        }

        var name: String
        var content: Content
    }

    /// A value of a list, with its text as leaves or, if it is no plain text, as a node.
    struct Value: Sendable {
        enum Text: Sendable {
            case leaves([GrammarLeaf])
            case node(Int32)
        }

        var value: GrammarValue
        var text: Text
    }

    /// The language of the source, which decides how texts are split into words.
    package let language: GrammarLanguage
    let normalizer: TextNormalizer
    let nodes: [GrammarNode]
    /// Whether a node matches the empty text.
    let isNullable: [Bool]
    let vocabulary: GrammarVocabulary
    let slots: [String]
    let sentences: [Sentence]
    let blocks: [Block]
    let lists: [List]
    let uses: [ListUse]
    let skipPhrases: [[GrammarLeaf]]
    /// Whether there are sentences of others (``GrammarSource/extensions``).
    package let isExtended: Bool

    /// Compiles sentences.
    ///
    /// - Parameter boundLists: the names of lists that ``Grammar`` gets at run time. A list of this name in the source
    ///   is the default.
    /// - Throws: 21031 with the intent, the sentence and the column if a sentence is not in the notation, names an
    ///   unknown list or rule, or a rule reaches itself; 10002 if a bound of ``GrammarLimits`` is exceeded.
    package init(
        _ source: GrammarSource, boundLists: [String] = VoiceList.allCases.map(\.rawValue)
    ) throws(ApusError) {
        var compiler = try GrammarCompiler(source, boundLists: boundLists)
        try compiler.compile()
        language = source.language
        isExtended = !source.extensions.isEmpty
        normalizer = compiler.normalizer
        nodes = compiler.nodes.nodes
        isNullable = compiler.nodes.isNullable
        vocabulary = compiler.vocabulary
        slots = compiler.slots
        sentences = compiler.sentences
        blocks = compiler.blocks
        lists = compiler.lists
        uses = compiler.uses
        skipPhrases = compiler.skipPhrases
    }

    /// The names of the intents, in the order of the source.
    package var intentNames: [String] {
        var names: [String] = []
        for block in blocks where names.last?.isExactly(block.intent) != true { names.append(block.intent) }
        return names
    }

    /// The number of sentences of the source, each with all of its forms.
    package var sentenceCount: Int { sentences.count }
    /// The number of nodes, at most ``GrammarLimits/nodeCountMax``.
    package var nodeCount: Int { nodes.count }

    /// The lists that are bound at run time, in the order in which sentences name them first.
    package var boundListNames: [String] {
        lists.compactMap { list in
            if case .bound = list.content { list.name } else { nil }
        }
    }
}
