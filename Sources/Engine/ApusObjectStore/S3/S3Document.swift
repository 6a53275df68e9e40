package import ApusCore

/// An element of the XML that S3 servers answer with: elements and texts, without namespaces and attributes.
///
/// The reader knows no document types and no entities but the five of XML, and is bounded in depth and number.
package struct S3Element: Sendable, Equatable {
    /// Without its prefix.
    package var name: String
    package var text = ""
    package var children: [S3Element] = []

    /// The deepest element.
    package static let depthMax = 8
    /// The most elements of a document.
    package static let countMax = 32_768

    /// The first child of a name.
    package func child(_ name: String) -> S3Element? { children.first { $0.name.isExactly(name) } }

    /// The text of the first child of a name.
    package func text(_ name: String) -> String? { child(name)?.text }

    /// All children of a name.
    package func all(_ name: String) -> [S3Element] { children.filter { $0.name.isExactly(name) } }

    init(name: String) { self.name = name }

    /// Reads a document.
    ///
    /// - Throws: 10001 if it is not well-formed.
    package init(reading bytes: [UInt8]) throws(ApusError) {
        var reader = S3DocumentReader(bytes)
        self = try reader.document()
    }
}

private struct S3DocumentReader {
    private let bytes: [UInt8]
    private var index = 0
    private var count = 0

    init(_ bytes: [UInt8]) { self.bytes = bytes }

    private static func malformed(_ reason: String) -> ApusError {
        ApusError(.malformed, "the server's answer is not XML: \(reason)")
    }

    mutating func document() throws(ApusError) -> S3Element {
        // The stack of open elements; the document is the child of the first.
        var open = [S3Element(name: "")]
        while index < bytes.count {
            if bytes[index] != UInt8(ascii: "<") {
                open[open.count - 1].text += try text()
            } else if starts(with: "<?") {
                try skip(to: "?>")
            } else if starts(with: "<!--") {
                try skip(to: "-->")
            } else if starts(with: "<!") {
                throw Self.malformed("it has a document type")
            } else if starts(with: "</") {
                try close(&open)
            } else {
                try begin(&open)
            }
        }
        guard open.count == 1, let root = open[0].children.first else { throw Self.malformed("it is truncated") }
        return root
    }

    private mutating func close(_ open: inout [S3Element]) throws(ApusError) {
        index += 2
        let name = self.name()
        try skip(to: ">")
        guard open.count > 1, let element = open.popLast(), element.name.isExactly(name) else {
            throw Self.malformed("an element ends that has not begun")
        }
        open[open.count - 1].children.append(element)
    }

    private mutating func begin(_ open: inout [S3Element]) throws(ApusError) {
        index += 1
        let name = self.name()
        count += 1
        guard !name.isEmpty, count <= S3Element.countMax, open.count <= S3Element.depthMax else {
            throw Self.malformed("it has too many elements")
        }
        try skip(to: ">")
        if bytes[index - 2] == UInt8(ascii: "/") {
            open[open.count - 1].children.append(S3Element(name: name))
        } else {
            open.append(S3Element(name: name))
        }
    }

    /// The name at the index, without its prefix.
    private mutating func name() -> String {
        let start = index
        let ends = Array(" \t\r\n/>".utf8)
        while index < bytes.count, !ends.contains(bytes[index]) { index += 1 }
        let name = String(decoding: bytes[start..<index], as: UTF8.self)
        return name.parts(separatedBy: ":").last ?? name
    }

    private mutating func text() throws(ApusError) -> String {
        let start = index
        while index < bytes.count, bytes[index] != UInt8(ascii: "<") { index += 1 }
        let text = String(decoding: bytes[start..<index], as: UTF8.self)
        guard text.contains("&") else { return text }
        var result = ""
        var rest = Substring(text)
        while let mark = rest.firstIndex(of: "&") {
            result += rest[..<mark]
            guard let end = rest[mark...].firstIndex(of: ";"),
                let character = Self.character(String(rest[rest.index(after: mark)..<end]))
            else { throw Self.malformed("an entity is unknown") }
            result.append(character)
            rest = rest[rest.index(after: end)...]
        }
        return result + rest
    }

    private static func character(_ entity: String) -> Character? {
        switch entity {
        case "amp": return "&"
        case "lt": return "<"
        case "gt": return ">"
        case "quot": return "\""
        case "apos": return "'"
        default:
            let isHexadecimal = entity.hasPrefix("#x")
            guard entity.hasPrefix("#"),
                let number = UInt32(entity.dropFirst(isHexadecimal ? 2 : 1), radix: isHexadecimal ? 16 : 10),
                let scalar = Unicode.Scalar(number)
            else { return nil }
            return Character(scalar)
        }
    }

    private func starts(with text: String) -> Bool { bytes[index...].starts(with: text.utf8) }

    /// Continues behind the next occurrence of a text.
    private mutating func skip(to text: String) throws(ApusError) {
        let wanted = Array(text.utf8)
        while index + wanted.count <= bytes.count {
            if bytes[index..<index + wanted.count].elementsEqual(wanted) {
                index += wanted.count
                return
            }
            index += 1
        }
        throw Self.malformed("it is truncated")
    }
}
