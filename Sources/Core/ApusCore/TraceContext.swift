/// The place of a span in its trace, as it is passed to the next process (https://www.w3.org/TR/trace-context/).
///
/// Of the flags only `sampled` is kept and passed on, as §3.2.2.5.2 demands.
public struct TraceContext: Sendable, Hashable {
    /// The trace's id: never both 0.
    public let traceHigh: UInt64
    public let traceLow: UInt64
    /// The span's id: never 0.
    public let span: UInt64
    /// True if the spans of the trace are recorded. Whoever begins a trace decides; all others keep the decision.
    public let isSampled: Bool

    /// Nil if the trace's or the span's id is 0, which is not valid.
    public init?(traceHigh: UInt64, traceLow: UInt64, span: UInt64, isSampled: Bool) {
        guard traceHigh | traceLow != 0, span != 0 else { return nil }
        (self.traceHigh, self.traceLow, self.span, self.isSampled) = (traceHigh, traceLow, span, isSampled)
    }

    /// Reads the header field `traceparent` (§3.2.2); nil if it is not valid. Of a version above 00 the first four
    /// fields are read.
    public init?(traceparent text: String) {
        let bytes = Array(text.utf8.prefix(56))
        let dash = UInt8(ascii: "-")
        guard bytes.count >= 55, bytes[2] == dash, bytes[35] == dash, bytes[52] == dash,
            let version = Self.number(bytes[0..<2]), version != 0xff,
            bytes.count == 55 || (version > 0 && bytes[55] == dash),
            let high = Self.number(bytes[3..<19]), let low = Self.number(bytes[19..<35]),
            let span = Self.number(bytes[36..<52]), let flags = Self.number(bytes[53..<55])
        else { return nil }
        self.init(traceHigh: high, traceLow: low, span: span, isSampled: flags & 1 != 0)
    }

    /// The header field `traceparent`.
    public var traceparent: String { "00-\(traceID)-\(spanID)-\(isSampled ? "01" : "00")" }

    /// 32 digits.
    public var traceID: String { Self.text(traceHigh) + Self.text(traceLow) }

    /// 16 digits.
    public var spanID: String { Self.text(span) }

    /// An id in 16 lower-case hexadecimal digits.
    public static func text(_ id: UInt64) -> String {
        let digits = String(id, radix: 16)
        return String(repeating: "0", count: 16 - digits.count) + digits
    }

    /// Lower-case digits only.
    private static func number(_ digits: ArraySlice<UInt8>) -> UInt64? {
        var number: UInt64 = 0
        for digit in digits {
            switch digit {
            case UInt8(ascii: "0")...UInt8(ascii: "9"): number = number << 4 | UInt64(digit - UInt8(ascii: "0"))
            case UInt8(ascii: "a")...UInt8(ascii: "f"): number = number << 4 | UInt64(digit - UInt8(ascii: "a") + 10)
            default: return nil
            }
        }
        return number
    }
}
