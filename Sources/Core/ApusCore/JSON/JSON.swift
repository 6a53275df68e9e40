/// A JSON text under construction, with the fields of objects in the order in which they are given (RFC 8259).
package indirect enum JSON: Sendable {
    case object([(String, JSON)])
    case array([JSON])
    case string(String)
    case int(Int)
    case bool(Bool)
    /// Text that is JSON already.
    case raw(String)

    package static func strings(_ texts: [String]) -> JSON { .array(texts.map { .string($0) }) }

    package var text: String {
        var text = ""
        write(to: &text, indent: nil)
        return text
    }

    /// One field a line.
    package var indented: String {
        var text = ""
        write(to: &text, indent: 0)
        return text + "\n"
    }

    private func write(to text: inout String, indent: Int?) {
        switch self {
        case .object(let fields):
            Self.write(fields, "{", "}", to: &text, indent: indent) { field, text, indent in
                Self.write(field.0, to: &text)
                text += indent == nil ? ":" : ": "
                field.1.write(to: &text, indent: indent)
            }
        case .array(let items):
            Self.write(items, "[", "]", to: &text, indent: indent) { $0.write(to: &$1, indent: $2) }
        case .string(let string): Self.write(string, to: &text)
        case .int(let number): text += "\(number)"
        case .bool(let flag): text += flag ? "true" : "false"
        case .raw(let raw): text += raw
        }
    }

    private static func write<Item>(
        _ items: [Item], _ open: String, _ close: String, to text: inout String, indent: Int?,
        _ body: (Item, inout String, Int?) -> Void
    ) {
        text += open
        let inner = indent.map { $0 + 2 }
        for (index, item) in items.enumerated() {
            if index > 0 { text += "," }
            if let inner { text += "\n" + String(repeating: " ", count: inner) }
            body(item, &text, inner)
        }
        if let indent, !items.isEmpty { text += "\n" + String(repeating: " ", count: indent) }
        text += close
    }

    private static func write(_ string: String, to text: inout String) {
        text += "\""
        for scalar in string.unicodeScalars {
            switch scalar {
            case "\"": text += "\\\""
            case "\\": text += "\\\\"
            case "\n": text += "\\n"
            case "\t": text += "\\t"
            case "\r": text += "\\r"
            case _ where scalar.value < 0x20:
                let hex = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - hex.count) + hex
            default: text.unicodeScalars.append(scalar)
            }
        }
        text += "\""
    }
}
