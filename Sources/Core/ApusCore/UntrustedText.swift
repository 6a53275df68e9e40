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
