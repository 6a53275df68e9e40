import ApusCore

/// The position of an error in a grammar.
///
/// Pure value.
struct GrammarPlace: Sendable, Equatable, CustomStringConvertible {
    /// The intent, rule or list, such as `intent DeviceOn`; empty: the whole file.
    var owner: String
    /// The sentence, truncated; empty: none.
    var sentence: String
    /// In characters, from 1; 0: unknown.
    var column: Int

    /// The longest part of a sentence that a message shows, in characters.
    private static let shownCountMax = 80

    init(_ owner: String = "", sentence: String = "", column: Int = 0) {
        (self.owner, self.sentence, self.column) = (owner, sentence, column)
    }

    /// The same place with a column.
    func at(_ column: Int) -> GrammarPlace { GrammarPlace(owner, sentence: sentence, column: column) }

    var description: String {
        var parts = owner.isEmpty ? [] : [owner]
        if !sentence.isEmpty {
            let isWhole = sentence.unicodeScalars.count <= Self.shownCountMax
            let shown = isWhole ? sentence : String(sentence.unicodeScalars.prefix(Self.shownCountMax)) + "…"
            parts.append("'\(shown)'")
        }
        if column > 0 { parts.append("column \(column)") }
        return UntrustedText.escaped(parts.joined(separator: ", "))
    }
}

extension ApusError {
    /// The error of a grammar that is not valid (21031), with its place.
    init(grammar place: GrammarPlace, _ reason: String) {
        let text = place.description
        self.init(.badParameter, "grammar: \(text.isEmpty ? "" : "\(text): ")\(reason)")
    }

    /// The error of a grammar that exceeds a bound (10002), with its place.
    init(grammarTooLarge place: GrammarPlace, _ reason: String) {
        let text = place.description
        self.init(.frameTooLarge, "grammar: \(text.isEmpty ? "" : "\(text): ")\(reason)")
    }
}
