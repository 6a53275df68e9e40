package import ApusCore
package import Tracing

/// A span that has ended.
package struct FinishedSpan: Sendable, Equatable {
    package var trace: TraceContext
    /// The span that caused it, in this process or another; nil if the trace begins with it.
    package var parent: UInt64?
    package var name: String
    package var kind: SpanKind
    /// Unix nanoseconds.
    package var start: UInt64
    package var end: UInt64
    package var attributes: SpanAttributes
    package var isFailure: Bool

    package init(
        trace: TraceContext, parent: UInt64? = nil, name: String, kind: SpanKind = .internal, start: UInt64,
        end: UInt64, attributes: SpanAttributes = [:], isFailure: Bool = false
    ) {
        (self.trace, self.parent, self.name, self.kind) = (trace, parent, name, kind)
        (self.start, self.end, self.attributes, self.isFailure) = (start, end, attributes, isFailure)
    }
}

/// An `ExportTraceServiceRequest` in protobuf's JSON encoding, as OTLP over HTTP sends it
/// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): ids in hexadecimal digits, enums and times as
/// numbers, 64-bit numbers as texts.
package enum TraceExport {
    /// - Parameter resource: the attributes of this process, in order.
    package static func json(_ spans: [FinishedSpan], resource: [(name: String, value: String)]) -> String {
        let resource = resource.map { attribute($0.name, .string($0.value)) }.joined(separator: ",")
        return #"{"resourceSpans":[{"resource":{"attributes":[\#(resource)]},"scopeSpans":[{"scope":{"name":"apus"},"#
            + #""spans":[\#(spans.map(json).joined(separator: ","))]}]}]}"#
    }

    private static func json(_ span: FinishedSpan) -> String {
        var attributes: [(name: String, value: SpanAttribute)] = []
        span.attributes.forEach { attributes.append(($0, $1)) }
        attributes.sort { $0.name < $1.name }
        let parent = span.parent.map { #""parentSpanId":"\#(TraceContext.text($0))","# } ?? ""
        return #"{"traceId":"\#(span.trace.traceID)","spanId":"\#(span.trace.spanID)",\#(parent)"#
            + #""name":\#(text(span.name)),"kind":\#(number(span.kind)),"#
            + #""startTimeUnixNano":"\#(span.start)","endTimeUnixNano":"\#(span.end)","#
            + #""attributes":[\#(attributes.map { attribute($0.name, $0.value) }.joined(separator: ","))],"#
            + #""status":{\#(span.isFailure ? #""code":2"# : "")}}"#
    }

    private static func attribute(_ name: String, _ value: SpanAttribute) -> String {
        let written =
            switch value {
            case .int32(let number): #""intValue":"\#(number)""#
            case .int64(let number): #""intValue":"\#(number)""#
            case .bool(let flag): #""boolValue":\#(flag)"#
            case .double(let number) where number.isFinite: #""doubleValue":\#(number)"#
            case .string(let string): #""stringValue":\#(text(string))"#
            default: #""stringValue":\#(text("\(value)"))"#
            }
        return #"{"key":\#(text(name)),"value":{\#(written)}}"#
    }

    private static func number(_ kind: SpanKind) -> Int {
        switch kind {
        case .internal: 1
        case .server: 2
        case .client: 3
        case .producer: 4
        case .consumer: 5
        }
    }

    /// A text between quotation marks (RFC 8259 §7).
    private static func text(_ plain: String) -> String {
        var text = "\""
        for scalar in plain.unicodeScalars {
            switch scalar {
            case "\"", "\\": text += "\\\(scalar)"
            case "\u{0}"..<" ":
                let digits = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: text.unicodeScalars.append(scalar)
            }
        }
        return text + "\""
    }
}
