import ApusContract
import ApusEvents
import Testing

@Suite("The URL of a hook (IV-D12)")
struct HookURLTests {
    private static let valid: [(text: String, host: String)] = [
        ("http://127.0.0.1:8080/apus", "127.0.0.1"), ("https://alarms.acme.example", "alarms.acme.example"),
        ("https://acme.example/in?key=a%20b&from=apus", "acme.example"), ("http://a_b:65535?x", "a_b"),
    ]
    private static let invalid = [
        "", "http://", "ftp://acme.example", "HTTP://acme.example", "http://user@acme.example/",
        "http://acme.example#x",
        "http://acme.example:0/", "http://acme.example:65536/", "http://acme.example:080/", "http://acme..example/",
        "http://acme.example/%zz", "http://acme.example/%4", "http://acme.example/a b", "http://acme.example/<a>",
        "http://acme.example/[1]", "http://acme.ex%61mple/", "http://öl.example/", "http://acme.example:/", "//acme",
    ]

    @Test("What is a URL, and what is none; the documents of the API say the same")
    func texts() throws {
        let pattern = try Regex(try #require(FieldRule.hookURL.pattern))
        for (text, host) in Self.valid {
            #expect(HookURL(text)?.host == host, "\(text)")
            #expect(text.wholeMatch(of: pattern) != nil, "\(text)")
        }
        for text in Self.invalid {
            #expect(HookURL(text) == nil, "\(text)")
            #expect(text.wholeMatch(of: pattern) == nil, "\(text)")
        }
    }

    @Test("An address of IPv6 is a host, and the length is bounded")
    func bounds() {
        #expect(HookURL("http://[2001:db8::1]:8080/")?.host != nil)
        let longest = "http://acme.example/" + String(repeating: "a", count: 1004)
        #expect(HookURL(longest)?.host == "acme.example")
        #expect(HookURL(longest + "a") == nil)
    }
}
