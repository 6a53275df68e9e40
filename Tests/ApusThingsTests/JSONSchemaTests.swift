import ApusCore
import ApusSessions
import ApusThings
import Testing

@Suite("The subset of JSON Schema 2020-12")
struct JSONSchemaTests {
    static func value(_ text: String, depthMax: Int = 32) throws -> JSONValue {
        try #require(JSONValue(ArraySlice(text.utf8), depthMax: depthMax, isStored: true), "\(text)")
    }

    static func schema(_ text: String) throws -> JSONSchema { try JSONSchema(try value(text)) }

    /// A schema, what fits, and what does not, with the keyword.
    struct Case: Sendable, CustomStringConvertible {
        var schema: String
        var valid: [String]
        var invalid: [(value: String, keyword: String)]

        init(_ schema: String, valid: [String], _ keyword: String, invalid: [String]) {
            (self.schema, self.valid) = (schema, valid)
            self.invalid = invalid.map { ($0, keyword) }
        }

        var description: String { schema }
    }

    /// Sections are those of the Validation and Core vocabularies, 2020-12.
    static let cases = [
        // Core §4.3.2: boolean schemas, and the empty one.
        Case("true", valid: ["1", "null", "{}"], "", invalid: []),
        Case("{}", valid: ["1", "null", "[[]]"], "", invalid: []),
        Case("false", valid: [], "false", invalid: ["1", "null", "{}", "[]", #""""#]),
        // §6.1.1: a number without a fraction is an integer.
        Case(
            #"{"type":"integer"}"#, valid: ["1", "-3", "1.0", "1e2", "0.0", "1e400"], "type",
            invalid: ["1.1", "1e-1", #""1""#, "null", "true", "{}", "[]"]),
        Case(#"{"type":"number"}"#, valid: ["1", "1.1", "-0"], "type", invalid: [#""1""#, "null", "false", "[1]"]),
        Case(#"{"type":"string"}"#, valid: [#""""#, #""1""#], "type", invalid: ["1", "null", "{}", "[]", "true"]),
        Case(#"{"type":"boolean"}"#, valid: ["true", "false"], "type", invalid: ["0", "1", #""true""#, "null", "[]"]),
        Case(#"{"type":"null"}"#, valid: ["null"], "type", invalid: ["0", "false", #""""#, "{}", "[]"]),
        Case(#"{"type":"array"}"#, valid: ["[]", "[1]"], "type", invalid: ["{}", "1", #""[]""#]),
        Case(#"{"type":"object"}"#, valid: ["{}", #"{"a":1}"#], "type", invalid: ["[]", "1", "null"]),
        Case(
            #"{"type":["integer","null"]}"#, valid: ["1", "null"], "type", invalid: ["1.5", #""a""#, "[]"]),
        // §6.1.2 and §6.1.3: numbers are equal if their values are, texts if their characters are.
        Case(
            #"{"enum":[1,"a",null,false]}"#, valid: ["1", "1.0", "10e-1", #""a""#, "null", "false"], "enum",
            invalid: ["2", #""A""#, "true", "0", #""1""#, "[]", "{}", "[1]"]),
        Case(#"{"const":0}"#, valid: ["0", "0.0", "-0"], "const", invalid: ["false", "1", "null", #""""#, "[]"]),
        Case(#"{"const":"\u00e9"}"#, valid: [#""\u00e9""#], "const", invalid: [#""e\u0301""#, #""e""#]),
        Case(#"{"enum":["e\u0301"]}"#, valid: [#""e\u0301""#], "enum", invalid: [#""\u00e9""#]),
        // §6.2: bounds hold for numbers, and for nothing else.
        Case(
            #"{"minimum":1.1}"#, valid: ["1.1", "1.10", "2", "1e400", #""x""#, "null", "[]"], "minimum",
            invalid: ["1.0999999999999999999999", "0", "-1e400"]),
        Case(
            #"{"maximum":300}"#, valid: ["300", "300.0", "-1e9", "{}"], "maximum",
            invalid: ["300.5", "1e3", "1e400"]),
        Case(
            #"{"exclusiveMinimum":0}"#, valid: ["1e-400", "1", #""0""#], "exclusiveMinimum",
            invalid: ["0", "-0.0", "-1"]),
        Case(
            #"{"exclusiveMaximum":3}"#, valid: ["2.9999999999999999999"], "exclusiveMaximum",
            invalid: ["3", "3.0", "4"]),
        Case(
            #"{"maximum":9007199254740992}"#, valid: ["9007199254740992"], "maximum", invalid: ["9007199254740993"]),
        // §6.3: in characters of Unicode.
        Case(
            #"{"minLength":2}"#, valid: [#""ab""#, #""\u00e9\u00e9""#, "1", "[]"], "minLength",
            invalid: [#""a""#, #""💩""#]),
        Case(
            #"{"maxLength":2}"#, valid: [#""""#, #""ab""#, #""💩💩""#, "100"], "maxLength",
            invalid: [#""abc""#, #""e\u0301e""#]),
        Case(#"{"maxLength":2.0}"#, valid: [#""ab""#], "maxLength", invalid: [#""abc""#]),
        // §6.4.
        Case(#"{"minItems":1}"#, valid: ["[1]", "[null]", "{}", #""""#], "minItems", invalid: ["[]"]),
        Case(#"{"maxItems":2}"#, valid: ["[]", "[1,2]", #""abc""#], "maxItems", invalid: ["[1,2,3]"]),
        // Core §10.3.1.2: all elements.
        Case(
            #"{"items":{"type":"integer"}}"#, valid: ["[]", "[1,2.0]", #"{"0":"a"}"#, #""a""#], "type",
            invalid: [#"[1,"a"]"#, "[null]", "[[1]]"]),
        Case(#"{"items":false}"#, valid: ["[]", "1"], "false", invalid: ["[1]", "[null]"]),
        // Core §10.3.2: members that are not there are not checked, `required` is for that (§6.5.3).
        Case(
            #"{"properties":{"a":{"type":"integer"},"b":{"type":"string"}}}"#,
            valid: ["{}", #"{"a":1}"#, #"{"a":1,"b":"x"}"#, #"{"c":[]}"#, "[]", "12"], "type",
            invalid: [#"{"a":"1"}"#, #"{"a":1,"b":{}}"#]),
        Case(#"{"properties":{"a":false}}"#, valid: ["{}", #"{"b":1}"#], "false", invalid: [#"{"a":1}"#]),
        Case(
            #"{"required":["a","b"]}"#, valid: [#"{"b":1,"a":null,"c":3}"#, "[]", "1", #""a""#], "required",
            invalid: ["{}", #"{"a":1}"#, #"{"A":1,"b":2}"#]),
        Case(#"{"required":[]}"#, valid: ["{}"], "", invalid: []),
        Case(
            #"{"properties":{"a":{}},"additionalProperties":false}"#, valid: ["{}", #"{"a":[1]}"#, "[1]", #""b""#],
            "additionalProperties", invalid: [#"{"b":1}"#, #"{"a":1,"b":1}"#]),
        Case(
            #"{"properties":{"a":{}},"additionalProperties":{"type":"boolean"}}"#,
            valid: [#"{"a":1,"b":true}"#, "{}"], "type", invalid: [#"{"b":1}"#, #"{"a":1,"c":null}"#]),
        // Annotations say nothing about values.
        Case(
            #"{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"https://example.org/a","title":"a","#
                + #""description":"b","$comment":"c","default":[1],"examples":[1,{"a":2}],"type":"integer"}"#,
            valid: ["1"], "type", invalid: ["[1]"]),
    ]

    @Test("Values fit, or do not, as the standard says", arguments: cases)
    func standard(test: Case) throws {
        let schema = try Self.schema(test.schema)
        for text in test.valid {
            #expect(schema.failure(of: try Self.value(text)) == nil, "\(text) fits \(test.schema)")
        }
        for (text, keyword) in test.invalid {
            let failure = schema.failure(of: try Self.value(text))
            #expect(failure?.keyword == keyword, "\(text) does not fit \(test.schema)")
        }
    }

    @Test("A failure names the place, and nothing of the value")
    func places() throws {
        let schema = try Self.schema(
            #"{"properties":{"a":{"items":{"properties":{"b":{"maximum":3},"c":{"enum":["x","y"]}}}}}}"#)
        let first = try #require(schema.failure(of: try Self.value(#"{"a":[{},{"b":12345}]}"#)))
        #expect(first == JSONSchema.Failure("maximum", "3 or less", place: ["a", "1", "b"]))
        let second = try #require(schema.failure(of: try Self.value(#"{"a":[{"c":"secret"}]}"#)))
        #expect(second == JSONSchema.Failure("enum", #"one of "x", "y""#, place: ["a", "0", "c"]))
    }

    @Test(
        "A keyword that is not of the subset, and a wrong value of one, is refused with its place (21031)",
        arguments: [
            (#"{"pattern":"^a"}"#, "/pattern"), (#"{"properties":{"a":{"$ref":"x"}}}"#, "/properties/a/$ref"),
            (#"{"items":{"oneOf":[]}}"#, "/items/oneOf"), (#"{"additionalProperties":{"not":{}}}"#, "/not"),
            (#"{"Type":"integer"}"#, "/Type"), (#"{"type":"int"}"#, "/type"), (#"{"type":1}"#, "/type"),
            (#"{"type":[]}"#, "/type"), (#"{"type":["null","null"]}"#, "/type/1"), (#"{"enum":[]}"#, "/enum"),
            (#"{"enum":"a"}"#, "/enum"), (#"{"enum":[1,[2]]}"#, "/enum/1"), (#"{"const":{}}"#, "/const"),
            (#"{"minimum":"1"}"#, "/minimum"), (#"{"exclusiveMinimum":true}"#, "/exclusiveMinimum"),
            (#"{"minLength":-1}"#, "/minLength"), (#"{"maxLength":1.5}"#, "/maxLength"),
            (#"{"minItems":null}"#, "/minItems"), (#"{"maxItems":"3"}"#, "/maxItems"), (#"{"items":[{}]}"#, "/items"),
            (#"{"properties":[]}"#, "/properties"), (#"{"properties":{"a/b~c":1}}"#, "/properties/a~1b~0c"),
            (#"{"required":"a"}"#, "/required"), (#"{"required":["a",1]}"#, "/required/1"),
            (#"{"required":["a","a"]}"#, "/required/1"), (#"{"additionalProperties":null}"#, "/additionalProperties"),
            (#"{"title":1}"#, "/title"), (#"{"examples":{}}"#, "/examples"),
            (#"{"$schema":"http://json-schema.org/draft-07/schema"}"#, "/$schema"),
        ])
    func refused(text: String, place: String) throws {
        let value = try Self.value(text)
        do {
            _ = try JSONSchema(value)
            Issue.record("\(text) is accepted")
        } catch {
            #expect(error.code == .badParameter && error.message.contains("\(place): "), "\(error.message)")
        }
    }

    @Test("A schema with a keyword of the prototype of all objects, or an empty name, is like any other")
    func names() throws {
        let schema = try Self.schema(#"{"properties":{"":{"type":"null"},"__proto__":{"type":"null"}}}"#)
        #expect(schema.failure(of: try Self.value(#"{"":1}"#))?.place == [""])
        #expect(schema.failure(of: try Self.value(#"{"__proto__":1}"#))?.place == ["__proto__"])
        #expect(schema.failure(of: try Self.value(#"{"":null,"__proto__":null}"#)) == nil)
    }

    @Test("A long list of values and a long array are compared in a time that grows with their lengths")
    func cost() throws {
        let choices = (0..<2000).map(String.init).joined(separator: ",")
        let schema = try Self.schema("{\"items\":{\"enum\":[\(choices)]}}")
        let elements = (0..<10_000).map { "\($0 % 2000)" }.joined(separator: ",")
        let value = try Self.value("[\(elements)]")
        let start = ContinuousClock.now
        #expect(schema.failure(of: value) == nil)
        // Each with each would be 20 million comparisons.
        #expect(ContinuousClock.now - start < .seconds(5))
    }
}
