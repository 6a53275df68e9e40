import HTTPTypes

/// What a request for a file asks for: all of it, a range, or nothing if the client has it (RFC 9110 §13, §14).
///
/// Pure.
enum ByteRangeRequest: Sendable, Equatable {
    case whole
    /// 206.
    case part(Range<Int>)
    /// 416: the range is behind the end.
    case behindEnd
    /// 304: the client has this content.
    case unchanged

    /// The longest header that is looked at, in bytes.
    private static let byteCountMax = 1024

    /// - Parameters:
    ///   - headers: of the request.
    ///   - byteCount: of the file.
    ///   - tag: the strong entity tag of the file, without quotes.
    init(_ headers: HTTPFields, byteCount: Int, tag: String) {
        let none = headers[.ifNoneMatch] ?? ""
        if none.utf8.count <= Self.byteCountMax, Self.tags(none).contains(where: { $0 == "*" || $0 == "\"\(tag)\"" }) {
            self = .unchanged
            return
        }
        // A range of another version of the file is no use to the client.
        if let condition = headers[.ifRange], condition != "\"\(tag)\"" {
            self = .whole
            return
        }
        self = headers[.range].flatMap { Self.range($0, byteCount: byteCount) } ?? .whole
    }

    /// The tags of a list, each without its mark of weakness.
    private static func tags(_ text: String) -> [String] {
        text.split(separator: ",").map { part in
            let tag = part.drop { $0 == " " }
            let plain = tag.hasPrefix("W/") ? tag.dropFirst(2) : tag
            return String(plain.reversed().drop { $0 == " " }.reversed())
        }
    }

    /// Nil if the text is not one range of bytes. For several ranges the file is sent whole (§14.2).
    private static func range(_ text: String, byteCount: Int) -> Self? {
        guard text.utf8.count <= byteCountMax, text.lowercased().hasPrefix("bytes=") else { return nil }
        let bounds = text.dropFirst(6).split(separator: "-", omittingEmptySubsequences: false)
        guard bounds.count == 2 else { return nil }
        let (first, last) = (number(bounds[0]), number(bounds[1]))
        guard bounds[0].isEmpty || first != nil, bounds[1].isEmpty || last != nil else { return nil }
        switch (first, last) {
        case (nil, nil): return nil
        case (nil, let count?):
            guard count > 0, byteCount > 0 else { return .behindEnd }
            return .part(max(0, byteCount - count)..<byteCount)
        case (let start?, nil): return start < byteCount ? .part(start..<byteCount) : .behindEnd
        case (let start?, let end?):
            guard start <= end else { return nil }
            guard start < byteCount else { return .behindEnd }
            return .part(start..<min(byteCount, end == .max ? .max : end + 1))
        }
    }

    /// Digits only. A number that is too large is the largest one.
    private static func number(_ text: Substring) -> Int? {
        guard !text.isEmpty, text.utf8.allSatisfy({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }) else {
            return nil
        }
        return Int(text) ?? .max
    }
}
