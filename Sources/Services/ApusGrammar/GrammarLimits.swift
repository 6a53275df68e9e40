/// The bounds of grammars, of what is matched against them, and of what is made from them.
///
/// A grammar that exceeds one is refused when it is read. Matching takes a number of steps that is at most the product
/// of the nodes and of the words of a text, and ``stepCountMax`` ends it before that.
package enum GrammarLimits {
    /// The longest file, in bytes.
    package static let fileByteCountMax = 2 << 20
    /// The maximum number of values and keys in a file, after aliases are replaced.
    package static let yamlNodeCountMax = 400_000
    /// The maximum number of intents of a grammar.
    package static let intentCountMax = 512
    /// The maximum number of sentences of a grammar.
    package static let sentenceCountMax = 20_000
    /// The longest sentence, rule or value of a list, in bytes.
    package static let sentenceByteCountMax = 4096
    /// The maximum number of rules, global ones and those of blocks.
    package static let ruleCountMax = 4096
    /// The maximum number of lists, global ones and those of blocks.
    package static let listCountMax = 512
    /// The maximum number of values of one list.
    package static let valueCountMax = 20_000
    /// The maximum number of skip words, each of one word or several.
    package static let skipWordCountMax = 256
    /// The maximum number of conditions, or of fixed slots, of a data block.
    package static let conditionCountMax = 32
    /// The maximum nesting depth of groups within one sentence.
    package static let depthMax = 24
    /// The maximum nesting depth of rules that name one another.
    package static let ruleDepthMax = 32
    /// The maximum nesting depth of a sentence after its rules are replaced.
    package static let nodeDepthMax = 96
    /// The maximum number of nodes of a compiled grammar.
    package static let nodeCountMax = 400_000
    /// The maximum number of forms of one sentence. A list counts as one form, as do the numbers of a range.
    package static let formCountMax: UInt64 = 1_000_000_000
    /// The maximum number of spellings of one word, such as the three of `turn(s|ed|ing)`.
    package static let spellingCountMax = 128
    /// The maximum number of parts of a permutation. Five parts have 120 orders.
    package static let permutationPartCountMax = 5
    /// The largest absolute value of a number in a text.
    package static let numberMax = 9999
    /// The maximum number of words of a text that is matched. Positions are bits of a `UInt64`.
    package static let wordCountMax = 63
    /// The longest text that is matched, in bytes.
    package static let textByteCountMax = 4096
    /// The maximum number of steps of one match. A step visits a node at a position, or puts two
    /// bindings together.
    package static let stepCountMax = 400_000
    /// The maximum number of different bindings that a node has between two positions.
    package static let bindingCountMax = 32
    /// The maximum number of matches of one text.
    package static let matchCountMax = 64
    /// The maximum number of values that one slot of a match has.
    package static let candidateCountMax = 32
}
