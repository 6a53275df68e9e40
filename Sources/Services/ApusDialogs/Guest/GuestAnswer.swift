package import ApusCore

/// A function that a language model calls.
///
/// Pure value.
package struct GuestCall: Sendable, Equatable {
    package var name: String
    /// Null if they are not JSON.
    package var arguments: JSONValue

    package init(_ name: String, _ arguments: JSONValue) { (self.name, self.arguments) = (name, arguments) }
}

/// What a language model makes of a sentence.
///
/// Pure value.
package enum GuestAnswer: Sendable, Equatable {
    /// It was not asked, it has failed, or it has said nothing.
    case nothing
    /// The reply.
    case text(String)
    /// At least one. They are not checked.
    case calls([GuestCall])

    /// The depth of an answer's JSON. Servers add members of their own.
    private static let depthMax = 16

    /// Reads the answer of a chat completions server. Of tool calls and a text, the text is ignored: the reply says
    /// what the calls have done.
    ///
    /// - Throws: 21005 if it is not such an answer.
    package init(_ bytes: [UInt8]) throws(ApusError) {
        guard let value = JSONValue(bytes[...], depthMax: Self.depthMax), case .array(let choices)? = value["choices"],
            let message = choices.first?["message"], case .object = message
        else { throw ApusError(.passToServerFailed, "the answer is not a chat completion") }
        if case .array(let items)? = message["tool_calls"], !items.isEmpty {
            self = .calls(
                items.map { item in
                    let function = item["function"]
                    return GuestCall(function?["name"]?.string ?? "", Self.arguments(function?["arguments"]))
                })
            return
        }
        let text = GuestText.spoken(Self.text(message["content"]))
        self = text.isEmpty ? .nothing : .text(text)
    }

    /// A JSON object in a text, or the object itself, as some servers send it. An empty text is an empty object.
    private static func arguments(_ value: JSONValue?) -> JSONValue {
        switch value {
        case .string(let text)? where text.isEmpty: .object([])
        case .string(let text)?: JSONValue(ArraySlice(text.utf8)) ?? .null
        case .object(let members)?: .object(members)
        default: .null
        }
    }

    /// A text, or the parts of one.
    private static func text(_ content: JSONValue?) -> String {
        switch content {
        case .string(let text)?: text
        case .array(let parts)?: parts.compactMap { $0["text"]?.string }.joined(separator: " ")
        default: ""
        }
    }
}

/// Texts of a language model, as replies of a dialog.
package enum GuestText {
    /// The text as it is said: one line without markdown, control characters and the model's thoughts, and at most
    /// ``GuestConfiguration/replyByteCountMax`` bytes, cut at the end of a sentence.
    package static func spoken(_ text: String) -> String {
        let lines = withoutThoughts(text).split(whereSeparator: \.isNewline).map { line($0) }
        let spoken = lines.filter { !$0.isEmpty }.joined(separator: " ")
        return cut(spoken, byteCountMax: GuestConfiguration.replyByteCountMax)
    }

    /// Models that reason put their thoughts between `<think>` and `</think>`. Without the end there is no answer.
    private static func withoutThoughts(_ text: String) -> Substring {
        guard let start = text.firstRange(of: "<think>") else { return text[...] }
        guard let end = text[start.upperBound...].firstRange(of: "</think>") else { return "" }
        return text[end.upperBound...]
    }

    /// A line without markdown: headings, lists, quotes, emphasis and code.
    private static func line(_ line: Substring) -> String {
        var text = line.drop(while: \.isWhitespace)
        let rest = text.drop { "#>-*+•".contains($0) }
        // A minus in front of a number is no mark.
        if rest.first?.isWhitespace ?? true { text = rest.drop(while: \.isWhitespace) }
        var spoken = String.UnicodeScalarView()
        let scalars = Array(text.unicodeScalars)
        for (index, scalar) in scalars.enumerated() {
            let (before, after) = (index > 0 ? scalars[index - 1] : " ", scalars.dropFirst(index + 1).first ?? " ")
            switch scalar {
            case "`": continue
            // A product and a name with underscores stay.
            case "*" where before != " " || after != " ": continue
            case "_" where !before.properties.isAlphabetic || !after.properties.isAlphabetic: continue
            default: break
            }
            switch scalar.properties.generalCategory {
            case .control, .spaceSeparator, .lineSeparator, .paragraphSeparator:
                if spoken.last != " " { spoken.append(" ") }
            case .format, .privateUse, .surrogate, .unassigned: continue
            default: spoken.append(scalar)
            }
        }
        while spoken.last == " " { spoken.removeLast() }
        return String(spoken)
    }

    /// The beginning of a text, up to the end of a sentence; up to a word if that would be less than half.
    static func cut(_ text: String, byteCountMax: Int) -> String {
        guard text.utf8.count > byteCountMax else { return text }
        var (whole, word, end) = (text.startIndex, text.startIndex, text.startIndex)
        var byteCount = 0
        for index in text.indices {
            byteCount += text[index].utf8.count
            guard byteCount <= byteCountMax else { break }
            end = text.index(after: index)
            if ".!?。！？".contains(text[index]) { whole = end }
            if text[index] == " " { word = index }
        }
        let half = byteCountMax / 2
        let ends = [whole, word].first { text[..<$0].utf8.count >= half }
        return String(text[..<(ends ?? end)])
    }
}
