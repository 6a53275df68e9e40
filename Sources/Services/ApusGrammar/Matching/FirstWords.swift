/// A filter of the words with which a node may begin: a bit for each class of words. It has no false negatives.
enum FirstWords {
    static let number = UInt64(1) << 60
    /// A word that the grammar does not have.
    static let unknown = UInt64(1) << 61
    static let all = UInt64.max

    static func word(_ word: Int32) -> UInt64 { UInt64(1) << UInt64(word % 60) }

    static func leaf(_ leaf: GrammarLeaf) -> UInt64 {
        switch leaf {
        case .word(let word): Self.word(word)
        case .number: number
        }
    }
}
