/// A sentence in hassil's notation, as it is written.
///
/// Pure value.
indirect enum Template: Sendable, Equatable {
    /// A piece of text without spaces. It is empty at the end of a group that ends with a space.
    case text(String)
    /// Parts that follow one another.
    case sequence([Part])
    /// `(a|b)`; the last one of `[a]` is empty.
    case choice([Template])
    /// `(a;b)`: all parts in any order.
    case permutation([Template])
    /// `{list}` or `{list:slot}`.
    case list(String, slot: String, column: Int)
    /// `<rule>`.
    case rule(String, column: Int)

    struct Part: Sendable, Equatable {
        var template: Template
        /// True if no space separates the part from the one before it, or, for the first part, from what is before its
        /// group: `light[s]`.
        var isGlued: Bool

        init(_ template: Template, isGlued: Bool = false) {
            (self.template, self.isGlued) = (template, isGlued)
        }
    }

    /// A template that matches nothing but the end of what is before it.
    static let empty = Template.sequence([])
}
