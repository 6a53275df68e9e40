/// A word of a text, or one Han character, after normalization.
///
/// Pure value.
package struct TextWord: Sendable, Equatable {
    /// In lower case, without accents and apostrophes.
    package var text: String
    /// The word without the `s` of an English possessive: `kitchen` of `kitchen's`; nil for other words.
    package var base: String?
    /// The value of digits, in tenths; nil for other words.
    package var tenths: Int?
    /// The place in the original text, in bytes of UTF-8.
    package var range: Range<Int>

    package init(_ text: String, tenths: Int? = nil, range: Range<Int> = 0..<0) {
        (self.text, self.tenths, self.range) = (text, tenths, range)
    }
}

/// A number that begins at a word, such as `twenty five`.
///
/// Numbers of one text may overlap: `twenty five` is 25, and also 20 and 5.
///
/// Pure value.
package struct NumberSpan: Sendable, Hashable {
    /// The position behind its last word.
    package var end: Int
    /// The value, in tenths.
    package var tenths: Int
    /// True for a number that includes the word for percent, as in 百分之五十.
    package var isPercent = false

    package init(end: Int, tenths: Int, isPercent: Bool = false) {
        (self.end, self.tenths, self.isPercent) = (end, tenths, isPercent)
    }

    /// The value without a fraction; nil if it has one.
    package var whole: Int? { tenths % 10 == 0 ? tenths / 10 : nil }
}
