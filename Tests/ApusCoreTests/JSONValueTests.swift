import ApusCore
import Testing

@Suite("JSON of tokens (RFC 8259)")
struct JSONValueTests {
    private func read(_ text: String) -> JSONValue? { JSONValue(Array(text.utf8)[...]) }

    @Test("Every kind of value is read, with space around it")
    func kinds() throws {
        let json = try #require(
            read(" {\"a\" : [1, -2.5e3 ,true,false,null, \"x\"],\r\n\t\"b\":{}, \"c\": \"\" , \"d\":[]} "))
        #expect(
            json["a"]
                == .array([.number("1"), .number("-2.5e3"), .bool(true), .bool(false), .null, .string("x")]))
        #expect(json["b"] == .object([]))
        #expect(json["c"]?.string == "")
        #expect(json["d"] == .array([]))
        #expect(json["e"] == nil)
        #expect(json["a"]?.string == nil)
        #expect(read("7")?["a"] == nil)
    }

    @Test(
        "Escapes become what they stand for (§7)",
        arguments: [
            (#""a\"b\\c\/d""#, "a\"b\\c/d"), (#""\b\f\n\r\t""#, "\u{8}\u{c}\n\r\t"), (#""\u0041\u00e9""#, "Aé"),
            (#""\ud83d\ude00x""#, "😀x"), (#""é😀""#, "é😀"), (#""\u0000""#, "\0"),
        ])
    func escapes(text: String, expected: String) {
        #expect(read(text)?.string == expected)
    }

    @Test(
        "Text that the grammar does not make is refused",
        arguments: [
            "", " ", "{", "}", "[", "[1", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\" 1}",
            "{\"a\":1}x", "1 2", "tru", "nul", "True", "+1", "01", "-", "1.", ".5", "1e", "1e+", "0x1", "NaN",
            "\"", "\"a", "\"\\\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800\\u0041\"",
            "\"\\udc00\"", "\"a\nb\"", "\"\u{1}\"", "'a'", "[1] []", "\u{feff}1",
        ])
    func grammar(text: String) {
        #expect(read(text) == nil)
    }

    @Test("Bytes that are no UTF-8 are refused, with escapes and without")
    func encoding() {
        for bytes: [UInt8] in [[0x22, 0xff, 0x22], [0x22, 0xc3, 0x22], [0x22, 0x5c, 0x6e, 0xc0, 0x80, 0x22]] {
            #expect(JSONValue(bytes[...]) == nil)
        }
    }

    @Test("A name that comes twice in one object is refused (RFC 7519 §4)")
    func duplicates() {
        #expect(read(#"{"a":1,"a":1}"#) == nil)
        #expect(read(#"{"a":1,"\u0061":1}"#) == nil)
        #expect(read(#"{"a":{"a":1},"b":[{"a":1}]}"#) != nil)
    }

    @Test("Two normalizations of a name are two names, and of a text two texts (RFC 8259 §8.3)")
    func normalizations() throws {
        let both = try #require(read("{\"\u{e9}\":1,\"e\u{301}\":2}"))
        #expect(both["\u{e9}"] == .number("1"))
        #expect(both["e\u{301}"] == .number("2"))
        for (one, other) in [("\"\u{e9}\"", "\"e\u{301}\""), ("[\"\u{e9}\"]", "[\"e\u{301}\"]")] {
            #expect(read(one) != read(other))
            #expect(read(one) == read(one))
        }
        #expect(read("{\"\u{e9}\":1}") != read("{\"e\u{301}\":1}"))
    }

    @Test(
        "A number beyond the range of a double is refused, unless it is stored already",
        arguments: ["1e400", "-1E+400", "1.5e309", "1e-400", "-0.001e-330", "1e99999999999999999999"])
    func range(text: String) {
        #expect(read(text) == nil)
        #expect(read("[\(text)]") == nil)
        #expect(JSONValue(Array(text.utf8)[...], isStored: true) == .number(text))
    }

    @Test("A number of a double's range is accepted", arguments: ["1.7e308", "5e-324", "0e999", "-0.0E-999", "1e0"])
    func inRange(text: String) {
        #expect(read(text) == .number(text))
    }

    @Test("Depth, members and digits are bounded")
    func bounds() {
        let depth = JSONValue.depthMax
        #expect(read(String(repeating: "[", count: depth) + String(repeating: "]", count: depth)) != nil)
        #expect(read(String(repeating: "[", count: depth + 1) + String(repeating: "]", count: depth + 1)) == nil)
        #expect(read(String(repeating: "{\"a\":", count: 100_000)) == nil)
        func object(_ count: Int) -> String {
            "{" + (0..<count).map { "\"\($0)\":0" }.joined(separator: ",") + "}"
        }
        #expect(read(object(JSONValue.memberCountMax)) != nil)
        #expect(read(object(JSONValue.memberCountMax + 1)) == nil)
        #expect(read(String(repeating: "1", count: JSONValue.numberByteCountMax)) != nil)
        #expect(read(String(repeating: "1", count: JSONValue.numberByteCountMax + 1)) == nil)
    }

    @Test(
        "A whole number is one however it is written, and nothing else is",
        arguments: [
            ("0", 0), ("-0", 0), ("1800000000", 1_800_000_000), ("1800000000.0", 1_800_000_000),
            ("1.8e9", 1_800_000_000),
            ("9223372036854775807", Int64.max), ("-9223372036854775808", Int64.min), ("9223372036854775808", nil),
            ("1.5", nil), ("1e400", nil), ("\"1\"", nil), ("true", nil),
        ] as [(String, Int64?)])
    func integers(text: String, expected: Int64?) {
        #expect(read(text)?.integer == expected)
    }
}
