/// Splits a reply into parts that are spoken one after the other, so the first sound does not wait for the whole.
///
/// The first part is as short as a sentence may be, since people wait for it. The others are longer: while one is
/// played, there is time to make the next one.
package enum ReplyParts {
    /// A part ends only after so many bytes: what is shorter takes no time to speak.
    static let firstByteCountMin = 24
    /// The same for the parts after the first one.
    static let byteCountMin = 160
    /// The most parts of a reply. The last one has the rest.
    static let countMax = 8

    private static let ends: Set<Character> = [".", "!", "?"]
    /// These end a sentence without a space after them.
    private static let wideEnds: Set<Character> = ["。", "！", "？"]

    /// The parts, at least one. With spaces between them, they are the text.
    package static func parts(of text: String) -> [String] {
        var parts: [String] = []
        var start = text.startIndex
        for end in sentenceEnds(of: text) where parts.count < countMax - 1 {
            let part = text[start..<end]
            guard part.utf8.count >= (parts.isEmpty ? firstByteCountMin : byteCountMin) else { continue }
            parts.append(trimmed(part))
            start = end
        }
        let rest = trimmed(text[start...])
        if !rest.isEmpty || parts.isEmpty { parts.append(rest) }
        return parts
    }

    /// The places after the ends of sentences. A period within a number, or before a word in lower case such as after
    /// "a.m.", is none.
    private static func sentenceEnds(of text: String) -> [String.Index] {
        var found: [String.Index] = []
        for index in text.indices {
            let next = text.index(after: index)
            if wideEnds.contains(text[index]) {
                found.append(next)
            } else if ends.contains(text[index]), next < text.endIndex, text[next] == " " {
                let rest = text[next...].drop { $0 == " " }
                if let first = rest.first, !first.isLowercase { found.append(next) }
            }
        }
        return found
    }

    private static func trimmed(_ part: Substring) -> String {
        var part = part.drop { $0 == " " }
        while part.last == " " { part.removeLast() }
        return String(part)
    }
}
