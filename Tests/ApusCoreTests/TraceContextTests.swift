import ApusCore
import Testing

@Suite("Trace contexts (W3C Trace Context)")
struct TraceContextTests {
    private static let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    @Test("The specification's example is read and written")
    func example() throws {
        let trace = try #require(TraceContext(traceparent: Self.text))
        #expect(trace.traceID == "4bf92f3577b34da6a3ce929d0e0e4736" && trace.spanID == "00f067aa0ba902b7")
        #expect(trace.isSampled && trace.traceparent == Self.text)
    }

    @Test("Only the flag `sampled` is kept", arguments: [("00", false), ("02", false), ("ff", true), ("03", true)])
    func flags(flags: String, isSampled: Bool) throws {
        let trace = try #require(TraceContext(traceparent: "\(Self.text.dropLast(2))\(flags)"))
        #expect(trace.isSampled == isSampled && trace.traceparent.hasSuffix(isSampled ? "-01" : "-00"))
    }

    @Test("A later version may have more fields")
    func laterVersion() {
        let later = "cc\(Self.text.dropFirst(2))"
        #expect(TraceContext(traceparent: later) != nil)
        #expect(TraceContext(traceparent: "\(later)-more") != nil)
        #expect(TraceContext(traceparent: "\(later).more") == nil)
    }

    @Test(
        "What is not valid is no context",
        arguments: [
            "", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ])
    func notValid(text: String) { #expect(TraceContext(traceparent: text) == nil) }

    @Test("A text that is cut anywhere is no context", arguments: 0..<55)
    func cut(length: Int) { #expect(TraceContext(traceparent: String(Self.text.prefix(length))) == nil) }
}
