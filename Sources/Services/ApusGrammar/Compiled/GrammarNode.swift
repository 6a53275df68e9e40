/// A node of a compiled grammar. Equal nodes are one node, so that sentences share what they have in common.
///
/// The children of a node have smaller numbers than the node.
///
/// Pure value.
enum GrammarNode: Sendable, Hashable {
    case word(Int32)
    /// A number, in tenths.
    case number(Int32)
    /// A value of a list: the number of its ``GrammarTemplates/ListUse``, and of the slot.
    case list(use: Int32, slot: Int32)
    /// All children, one after the other. Without children it is the empty text.
    case sequence([Int32])
    /// One of the children.
    case choice([Int32])
}

/// A word of a plain text in a grammar.
///
/// Pure value.
enum GrammarLeaf: Sendable, Hashable {
    case word(Int32)
    /// A number, in tenths.
    case number(Int32)
}
