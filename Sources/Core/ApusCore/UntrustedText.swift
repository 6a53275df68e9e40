public import Logging

/// Text from outside, such as user names, agents and SDP, escaped for a log or a terminal.
///
/// A newline in it could forge a log line, and an escape sequence could control the reader's terminal. Control
/// characters, characters that change the text direction, and line separators are written as `\u{…}`. The backslash is
/// written as `\\`, so that escapes are unambiguous.
public enum UntrustedText {
    /// The longest text that is shown, in characters. A longer one is truncated, and ends with `…`.
    public static let characterCountMax = 1024

    /// The text with all such characters escaped.
    public static func escaped(_ text: String) -> String {
        let isPlain =
            text.utf8.count <= characterCountMax && text.utf8.allSatisfy { (0x20..<0x7f).contains($0) && $0 != 0x5c }
        if isPlain { return text }
        var result = ""
        var count = 0
        for scalar in text.unicodeScalars {
            guard count < characterCountMax else { return result + "…" }
            count += 1
            if scalar == "\\" {
                result += "\\\\"
            } else if isShown(scalar) {
                result.unicodeScalars.append(scalar)
            } else {
                result += "\\u{\(String(scalar.value, radix: 16))}"
            }
        }
        return result
    }

    /// The text with every character that could control a terminal, or that is not shown, as `\u0000`: the escape of
    /// JSON, which means the same within a JSON text. Line feeds, tabs and the joiners of scripts and emoji stay.
    /// Nothing else is changed or cut off.
    public static func shown(_ text: String) -> String {
        let kept: [Unicode.Scalar] = ["\n", "\t", "\u{200c}", "\u{200d}"]
        let isShown: (Unicode.Scalar) -> Bool = { Self.isShown($0) || kept.contains($0) }
        let isPlain = text.utf8.allSatisfy { (0x20..<0x7f).contains($0) || $0 == 0x0a || $0 == 0x09 }
        guard !isPlain, !text.unicodeScalars.allSatisfy(isShown) else { return text }
        var result = ""
        for scalar in text.unicodeScalars {
            guard !isShown(scalar) else {
                result.unicodeScalars.append(scalar)
                continue
            }
            for unit in String(scalar).utf16 {
                let digits = String(unit, radix: 16)
                result += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            }
        }
        return result
    }

    private static func isShown(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar.properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator, .surrogate, .privateUse, .unassigned: false
        default: true
        }
    }
}

/// Escapes the metadata of every line before another log handler writes it, so that no caller can forget it. Messages
/// are constant sentences of this project or its libraries; they are escaped too.
public struct EscapingLogHandler: LogHandler {
    private var base: any LogHandler

    public init(_ base: any LogHandler) { self.base = base }

    public var metadata: Logger.Metadata {
        get { base.metadata }
        set { base.metadata = newValue.mapValues(Self.escaped) }
    }
    public var metadataProvider: Logger.MetadataProvider? {
        get { base.metadataProvider }
        set { base.metadataProvider = newValue }
    }
    public var logLevel: Logger.Level {
        get { base.logLevel }
        set { base.logLevel = newValue }
    }

    public subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { base[metadataKey: key] }
        set { base[metadataKey: key] = newValue.map(Self.escaped) }
    }

    public func log(event: LogEvent) {
        var event = event
        event.message = "\(UntrustedText.escaped(event.message.description))"
        event.metadata = event.metadata?.mapValues(Self.escaped)
        base.log(event: event)
    }

    private static func escaped(_ value: Logger.Metadata.Value) -> Logger.Metadata.Value {
        switch value {
        case .string(let text): .string(UntrustedText.escaped(text))
        case .stringConvertible(let value): .string(UntrustedText.escaped(value.description))
        case .array(let values): .array(values.map(escaped))
        case .dictionary(let values): .dictionary(values.mapValues(escaped))
        }
    }
}
