import ApusCore

/// Folds characters, so that the ways to write one text become equal: case, width, ligatures, Latin letters with and
/// without accents.
///
/// It covers what keyboards and recognisers write, and not all of NFKC: that needs the tables of Foundation.
enum TextFolding {
    /// A folded character.
    enum Scalar: Sendable, Equatable {
        /// A letter, or several for a ligature, in lower case. It is part of a word.
        case letters(String)
        /// A character that is a whole word: Han, Kana.
        case ideograph(String)
        /// 0 to 9.
        case digit(Int)
        /// `%`, `°` or `&`.
        case symbol(Unicode.Scalar)
        /// A combining accent: it is dropped.
        case ignored
        case apostrophe
        /// `.`, `,` or `-`, which mean something between digits.
        case mark(Unicode.Scalar)
        /// Spaces, punctuation and everything else.
        case separator
    }

    /// Folds one character. A folded character stays the same when it is folded again.
    static func fold(_ scalar: Unicode.Scalar) -> Scalar {
        let value = scalar.value
        if value < 0x80 { return ascii(UInt8(value)) }
        switch value {
        case 0xff01...0xff5e: return ascii(UInt8(value - 0xfee0))
        case 0x0300...0x036f, 0x200b...0x200f, 0xfe00...0xfe0f, 0xfeff, 0x00ad: return .ignored
        case 0x2018, 0x2019, 0x02bc, 0x2032, 0x00b4: return .apostrophe
        case 0x00b0, 0x2103, 0x2109: return .symbol("°")
        case 0x2030, 0xfe6a: return .symbol("%")
        case 0x2010...0x2015, 0x2212: return .mark("-")
        case 0xfb00...0xfb06: return .letters(ligatures[Int(value - 0xfb00)])
        default: break
        }
        if isIdeograph(value) { return .ideograph(String(scalar)) }
        if let base = bases[scalar] { return .letters(base) }
        let properties = scalar.properties
        if let digit = properties.numericType == .decimal ? properties.numericValue : nil { return .digit(Int(digit)) }
        switch properties.generalCategory {
        case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter, .spacingMark,
            .nonspacingMark, .enclosingMark:
            // The mapping of some letters has a combining accent: İ.
            let letters = properties.lowercaseMapping.unicodeScalars.filter { !(0x0300...0x036f).contains($0.value) }
            return .letters(letters.map { bases[$0] ?? String($0) }.joined())
        default: return .separator
        }
    }

    private static func ascii(_ byte: UInt8) -> Scalar {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"): .letters(String(Unicode.Scalar(byte)))
        case UInt8(ascii: "A")...UInt8(ascii: "Z"): .letters(String(Unicode.Scalar(byte + 0x20)))
        case UInt8(ascii: "0")...UInt8(ascii: "9"): .digit(Int(byte - UInt8(ascii: "0")))
        case UInt8(ascii: "%"), UInt8(ascii: "&"): .symbol(Unicode.Scalar(byte))
        case UInt8(ascii: "."), UInt8(ascii: ","), UInt8(ascii: "-"): .mark(Unicode.Scalar(byte))
        case UInt8(ascii: "'"), UInt8(ascii: "`"): .apostrophe
        default: .separator
        }
    }

    /// True for a character that is a whole word.
    static func isIdeograph(_ value: UInt32) -> Bool {
        switch value {
        case 0x3007, 0x3040...0x30ff, 0x3400...0x4dbf, 0x4e00...0x9fff, 0xf900...0xfaff, 0x20000...0x3ffff: true
        default: false
        }
    }

    private static let ligatures = ["ff", "fi", "fl", "ffi", "ffl", "st", "st"]

    /// The letters without accents of Latin letters, in both cases.
    private static let bases: [Unicode.Scalar: String] = {
        let rows = [
            ("a", "àáâãäåāăąǎ"), ("c", "çćĉċč"), ("d", "ďđ"), ("e", "èéêëēĕėęěẽ"), ("g", "ĝğġģ"), ("h", "ĥħ"),
            ("i", "ìíîïĩīĭįıǐ"), ("j", "ĵ"), ("k", "ķ"), ("l", "ĺļľŀł"), ("n", "ñńņňŉ"), ("o", "òóôõöøōŏőǒ"),
            ("r", "ŕŗř"), ("s", "śŝşšș"), ("t", "ţťŧț"), ("u", "ùúûüũūŭůűųǔǜǘǚ"), ("w", "ŵ"), ("y", "ýÿŷ"),
            ("z", "źżž"), ("ae", "æ"), ("oe", "œ"), ("ss", "ß"),
        ]
        var bases: [Unicode.Scalar: String] = [:]
        for (base, letters) in rows {
            for letter in letters.unicodeScalars {
                bases[letter] = base
                for upper in letter.properties.uppercaseMapping.unicodeScalars where upper.value > 0x7f {
                    bases[upper] = base
                }
            }
        }
        return bases
    }()
}
