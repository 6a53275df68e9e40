import ApusCore
import Logging
import Synchronization
import Testing

@Suite("Text of others in logs and on terminals")
struct UntrustedTextTests {
    @Test(
        "What is not shown by itself is escaped, and what is escaped cannot be written by others",
        arguments: [
            ("ann", "ann"), ("Ünï-cödé 写真", "Ünï-cödé 写真"), ("a\nforged line", #"a\u{a}forged line"#),
            ("\u{1b}[2J\u{7}", #"\u{1b}[2J\u{7}"#), ("a\r\n", #"a\u{d}\u{a}"#), (#"\u{a}"#, #"\\u{a}"#),
            ("\u{202e}gpj.exe", #"\u{202e}gpj.exe"#), ("\u{9b}31m", #"\u{9b}31m"#), ("\u{2028}x", #"\u{2028}x"#),
            ("", ""),
        ])
    func escapes(_ text: String, _ expected: String) {
        #expect(UntrustedText.escaped(text) == expected)
    }

    @Test(
        "What could control a terminal is shown as JSON escapes it, and all else stays as it is",
        arguments: [
            ("ann", "ann"), ("Ünï-cödé 写真 👩🏽‍🚒", "Ünï-cödé 写真 👩🏽‍🚒"), ("a\nb\tc", "a\nb\tc"), (#"a\u{a}"#, #"a\u{a}"#),
            ("{\"a\":\"\u{1b}[2J\u{7}\"}", #"{"a":"\u001b[2J\u0007"}"#), ("a\r\n", "a\\u000d\n"),
            ("\u{202e}gpj.exe", #"\u202egpj.exe"#), ("\u{9b}31m", #"\u009b31m"#), ("\u{7f}", #"\u007f"#),
            ("\u{e0001}", #"\udb40\udc01"#), ("", ""),
        ])
    func shown(_ text: String, _ expected: String) {
        #expect(UntrustedText.shown(text) == expected)
        #expect(UntrustedText.shown(expected) == expected)
    }

    @Test("A long text is cut")
    func long() {
        let text = String(repeating: "x", count: 100_000)
        #expect(UntrustedText.escaped(text).count == UntrustedText.characterCountMax + 1)
    }

    private struct Keeping: LogHandler {
        final class Lines: Sendable {
            let all = Mutex<[String]>([])
        }
        let lines: Lines
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.info
        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }
        func log(event: LogEvent) {
            let facts = metadata.merging(event.metadata ?? [:]) { $1 }
            lines.all.withLock { $0.append("\(event.message) \(facts.map { "\($0.key)=\($0.value)" }.sorted())") }
        }
    }

    @Test("No line of a log holds a control character, wherever the text stands")
    func handler() {
        let lines = Keeping.Lines()
        var log = Logger(label: "test") { _ in EscapingLogHandler(Keeping(lines: lines)) }
        let evil = "x\n2026-01-01 error forged\u{1b}[31m"
        log[metadataKey: "a"] = "\(evil)"
        log.info("\(evil)", metadata: ["b": "\(evil)", "c": .array(["\(evil)"]), "d": .dictionary(["e": "\(evil)"])])
        let written = lines.all.withLock { $0 }
        #expect(written.count == 1)
        #expect(!written[0].unicodeScalars.contains { $0.value < 0x20 || $0.value == 0x7f })
        #expect(written[0].contains(#"\u{1b}[31m"#))
    }
}
